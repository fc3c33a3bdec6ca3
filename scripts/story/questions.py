#!/usr/bin/env python3
"""Makes conversations and questions of a dictionary's entries: to what part of speech a word belongs.

    questions.py TEXT FOLDER [--conversations N] [--questions N]

An entry of TEXT begins as those of the GNU Collaborative International Dictionary of English: `Benefit \\Ben"e*fit\\, n.`
FOLDER gets chats.jsonl, conversations to learn from, and two files of the same questions for `ottava eval`, whose words and
wordings are in no conversation: asked.jsonl puts them as the template llama3 writes them, plain.jsonl as a text goes on.
"""
import argparse
import json
import random
import re
import sys
from pathlib import Path

KINDS = {"n": "noun", "a": "adjective", "adv": "adverb", "v. t": "verb", "v. i": "verb"}
ANSWERS = ["noun", "adjective", "adverb", "verb"]
LEARNT = ["What part of speech is the word {}?", "Which part of speech is {}?", "Tell me the part of speech of {}.",
          "Is {} a noun, an adjective, an adverb or a verb?", "The word {}: what part of speech is it?",
          "What kind of word is {}?"]
UNSEEN = ["I found {} in a text. Which part of speech is that?", "Name the part of speech of the word {}.",
          "Say what part of speech {} is, please."]


def entries(text):
    """Words of each kind, in an order that a seed decides; a word of two kinds is left out."""
    kinds = {}
    for word, kind in re.findall(r"^([A-Z][a-z]{3,11}) \\[^\\\n]+\\,? (n|a|adv|v\. t|v\. i)\.", text, re.M):
        kinds.setdefault(word.lower(), set()).add(KINDS[kind])
    words = {answer: sorted(w for w, k in kinds.items() if k == {answer}) for answer in ANSWERS}
    for answer in ANSWERS:
        random.Random(answer).shuffle(words[answer])
    return words


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=6000)
    parser.add_argument("--questions", type=int, default=400)
    options = parser.parse_args()
    words = entries(options.text.read_text(errors="replace"))
    asked, learnt = options.questions // len(ANSWERS), options.conversations // len(ANSWERS)
    for answer, found in words.items():
        if len(found) < 2 * asked:
            sys.exit(f"questions.py: {options.text} has {len(found)} entries of a kind '{answer}', expected {2 * asked}: it is no "
                     "dictionary in the form of GCIDE (scripts/sample_text.sh needs the network for that one)")
    random.seed(1)
    chats, questions = [], []
    for answer, found in words.items():
        pool = found[asked:]
        for i in range(learnt):
            user = {"role": "user", "content": random.choice(LEARNT).format(pool[i % len(pool)])}
            chats.append([user, {"role": "assistant", "content": answer}])
        questions += [(random.choice(UNSEEN).format(word), ANSWERS.index(answer)) for word in found[:asked]]
    random.shuffle(chats)
    options.folder.mkdir(parents=True, exist_ok=True)
    def write(name, rows):
        (options.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write("chats.jsonl", ({"messages": chat} for chat in chats))
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    write("asked.jsonl", ({"query": header.format("user") + text + "<|eot_id|>" + header.format("assistant"), "delimiter": "",
                           "choices": ANSWERS, "gold": gold} for text, gold in questions))
    write("plain.jsonl", ({"query": "Question: " + text + "\nAnswer:", "choices": ANSWERS, "gold": gold} for text, gold in questions))
    print(f"{len(chats)} conversations, {len(questions)} questions of other words and other wording")


main()
