#!/usr/bin/env python3
"""small_dictionary.py FILE: a dictionary of made-up words whose endings say what they are, for the shortened story."""
import random
import sys
from bisect import insort

STEMS = ["b", "br", "c", "d", "f", "fl", "g", "gr", "h", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "tr", "v"]
ENDINGS = {"n.": ["ness", "tion", "ment"], "a.": ["ous", "ful", "able"], "adv.": ["ly"], "v. t.": ["ize", "ify"]}
random.seed(5)
words = set()
in_order = []
with open(sys.argv[1], "w") as out:
    for _ in range(6000):
        kind = random.choice(list(ENDINGS))
        word = "".join(random.choice(STEMS) + random.choice("aeiou") for _ in range(2)) + random.choice(ENDINGS[kind])
        if word in words or not 4 <= len(word) <= 12:
            continue
        words.add(word)
        insort(in_order, word)
        meaning = " ".join(random.choice(in_order[:400]) for _ in range(12))
        out.write(f"{word.capitalize()} \\{word[:3]}*{word[3:]}\\, {kind}\n   {meaning}.\n   [1913 Webster]\n\n")
