#!/usr/bin/env python3
"""Writes tests/golden/tokenizer: ids by HF `tokenizers` for tricky texts, and the small tokenizers they belong to.

    python3 -m venv VENV && VENV/bin/pip install tokenizers
    VENV/bin/python scripts/reference/make_tokenizer_golden.py --text TEXT [--ottava build/ottava]

TEXT is any English text of some megabytes (the golden files in the repository: the dictionary text of Debian's
dict-gcide). With --ottava, about a megabyte of it and of random Unicode is also encoded by both and compared; nothing
of that is written.
"""
import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/tokenizer"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

TEXTS = [
    "", " ", "a", "  ", "\n", "\r\n", "\t", "\0", "\x7f", "Hello, world!", " leading", "trailing ", "two  spaces   three",
    "tabs\t\tand\nnew\n\nlines\r\n\r\nmixed \n \n  end  \n", "    indented\n        more\n", "\n\n\n\n", " \n \n ",
    "I'm you're he'll they've we'd it's don't", "I'M YOU'RE HE'LL THEY'VE WE'D IT'S DON'T", "'s't're've'm'll'd''",
    "x'\u017f y'\u212a 'LL'ſ", "o\u2019clock don\u2019t", "1 12 123 1234 12345 1234567890 3.14159 1,000,000", "a1b22c333d4444",
    "\u0661\u0662\u0663\u0664 \u00b2\u00b3 \u2167 \u00bd \u4e00\u4e8c", "foo_bar fooBar FOO-bar", "C++ && || != === -> => ::",
    "https://example.com/a?b=c&d=e#f", "{\"key\": [1, 2, {\"x\": null}]}", "!!!???...", "\u2014\u2013\u2026\u201cquoted\u201d",
    "na\u00efve caf\u00e9 \u00fcber", "nai\u0308ve cafe\u0301 u\u0308ber", "e\u0301\u0323 e\u0323\u0301 \u1e69 s\u0323\u0307 s\u0307\u0323",
    "\u212b \u2126 \ufb01 \uff21 \u0344 \u0958 \u2adc", "\uac00\uac01 \u1100\u1161 \u1100\u1161\u11a8 \u1112\u1161\u11ab",
    "\u0b47\u0b57 \u0cc6\u0cc2\u0cd5 \u0dd9\u0dcf\u0dca \U000110a5\U000110ba", "\u0301start with a mark", "a\u0300\u0301\u0302\u0303\u0304",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u4e2d\u6587\u6587\u672c \ud55c\uad6d\uc5b4", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600\U0001f44d\U0001f3fd\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f", "\U0001d54f\U0001d7d8 \U00020000",
    "\u00a0nbsp\u00a0\u00a0", "\u3000ideographic\u3000space", "\u2003em\u2009thin\u200azero\u200bwidth", "\u0085\u2028\u2029\u1680\u180e\u205f\u202f",
    "\ufeffbom", "\ufffd\ufffe\uffff\U0010ffff", "\u00ad\u200c\u200d\u2060", "x" * 300, " " * 300, "ab" * 200 + "!", "\n" * 50 + " " * 50,
    "<|begin_of_text|>hi<|end_of_text|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>", "<|endoftext", "<<|endoftext|>>",
    "<|im_start|>user\nhi<|im_end|>\n", "<tool_call>{}</tool_call>", "left <mask> right", "left   <mask>   right", "<mask><mask>", "a word b",
    "a wordy b", "sword", "word", "word word", "word_ -word- \u00e9word word\u00e9", "a <right>  \n b", "a \n <left> b", "<left><right>",
    "  <left>  <right>  ", "caf\u00e9token", "cafe\u0301token", "x caf\u00e9token y", "ab abc abcd abcde", "<|a|><|ab|><|abc|>", "the of and dictionary",
]
ALPHABET = ("aAbBzZ eéñß'sStTrReEvVmMlLdD0123456789 \t\n\r .,!?-_<|>()\"\u00a0\u00b2\u0301\u0308\u0323\u0345\u0394\u03c3\u0416\u05d0\u0627\u0661\u0928\u094d"
            "\u0e01\u1100\u1161\u11a8\u1e69\u200b\u200d\u2028\u2167\u3000\u3042\u4e2d\uac00\ufb01\uff11\U0001f600\U0001f468\U0001d54f\u017f\u212a\u212b")


def random_texts(count, longest, seed):
    rng = random.Random(seed)
    special = ["<|endoftext|>", "<mask>", "word", "<left>", "<right>", "<tool_call>"]
    out = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, longest)):
            parts.append(rng.choice(special) if rng.random() < 0.02 else rng.choice(ALPHABET))
            if rng.random() < 0.1:
                parts[-1] *= rng.randint(2, 5)
        out.append("".join(parts))
    return out


def train(corpus, pre, normalizer=None, size=700):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    if normalizer:
        tok.normalizer = normalizer
    tok.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def save(name, tok, config, edit=None):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    data = json.loads(tok.to_str())
    if edit:
        edit(data)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def drop_last_merges(ignore):
    """Leaves tokens in the vocabulary that no merge makes: only ignore_merges reaches them."""
    def edit(data):
        data["model"]["merges"] = data["model"]["merges"][:-60]
        data["model"]["ignore_merges"] = ignore
    return edit


def gpt2_file(data):
    """As GPT-2's own file: no model type, merges as strings, empty strings for null."""
    del data["model"]["type"]
    data["model"].update(unk_token="", continuing_subword_prefix="", end_of_word_suffix="")
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]


def make_tokenizers(corpus):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = lambda regex: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level])

    tok = train(corpus, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok.add_special_tokens(["<|endoftext|>"])
    save("gpt2-style", tok, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, gpt2_file)

    tok = train(corpus, pre_tokenizers.ByteLevel(add_prefix_space=True))
    tok.add_special_tokens(["<|endoftext|>", AddedToken("<mask>", lstrip=True, special=True)])
    save("prefix-space", tok, {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|endoftext|>"}})

    tok = train(corpus, split(LLAMA3))
    tok.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", AddedToken("<left>", lstrip=True, special=True),
                            AddedToken("<right>", rstrip=True, special=True)])
    tok.add_tokens([AddedToken("word", single_word=True, normalized=False), "<|a|>", "<|ab|>", "<|a|><|ab|>"])
    bos = "<|begin_of_text|>"
    template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1",
                                             special_tokens=[(bos, tok.token_to_id(bos))])
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    config = {"bos_token": bos, "eos_token": "<|end_of_text|>"}
    save("llama3-style", tok, config, drop_last_merges(True))
    save("llama3-style-merges", tok, config, drop_last_merges(False))

    tok = train(corpus, split(QWEN2), normalizers.NFC())
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tok.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False),
                    AddedToken("cafe\u0301token", normalized=True)])
    save("qwen-style", tok, {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})


def ours(binary, folder, text):
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode())
        file.flush()
        result = subprocess.run([binary, "tokenizer", "encode", str(folder), "--file", file.name], check=True,
                                capture_output=True, text=True)
    return [int(x) for x in result.stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--ottava", help="compare with this executable over a megabyte as well")
    args = parser.parse_args()
    text = Path(args.text).read_text(errors="replace")

    OUT.mkdir(parents=True, exist_ok=True)
    make_tokenizers([text[:2_000_000]] + TEXTS * 20)
    folders = {name: OUT / name for name in
               ["gpt2-style", "prefix-space", "llama3-style", "llama3-style-merges", "qwen-style"]}
    for name in ["en-2256", "en-2560"]:
        folders[name] = ROOT / "configs/tokenizers" / name

    texts = TEXTS + random_texts(150, 40, 1)
    golden = {"made_by": "scripts/reference/make_tokenizer_golden.py", "tokenizers": tokenizers.__version__,
              "python": platform.python_version(), "texts": texts, "ids": {}, "ids_as_the_files_say": {}}
    long_text = text[5_000_000:6_000_000] + "".join(random_texts(2000, 60, 2))
    for name, folder in folders.items():
        tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
        golden["ids"][name] = [tok.encode(t, add_special_tokens=False).ids for t in texts]
        golden["ids_as_the_files_say"][name] = tok.encode(texts[9]).ids
        if args.ottava:
            expected, got = tok.encode(long_text, add_special_tokens=False).ids, ours(args.ottava, folder, long_text)
            if expected != got:
                at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
                near = [[tok.id_to_token(i) for i in ids[max(at - 5, 0):at + 10]] for ids in (expected, got)]
                sys.exit(f"{name}: token {at} of {len(expected)} differs:\n  HF   {near[0]}\n  ours {near[1]}")
            print(f"{name}: {len(expected)} tokens of {len(long_text.encode())} bytes agree")
    lines = json.dumps(golden, ensure_ascii=True, separators=(",", ":")).replace('],[', '],\n[')
    (OUT / "golden.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
