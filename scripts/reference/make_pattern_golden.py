#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/patterns.json: the pieces that HF `tokenizers` cuts texts into by patterns whose
constructs other engines read otherwise, among them Kimi-K2's and that of Mistral's byte-level tokenizers.

    python3 -m venv VENV && VENV/bin/pip install tokenizers
    VENV/bin/python scripts/reference/make_pattern_golden.py
"""
import json
from pathlib import Path

import tokenizers
from tokenizers import Regex, pre_tokenizers

OUT = Path(__file__).resolve().parents[2] / "tests/golden/tokenizer/patterns.json"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN_UPPER, TEKKEN_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{TEKKEN_UPPER}*{TEKKEN_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{TEKKEN_UPPER}+{TEKKEN_LOWER}*",
                   r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

PATTERNS = [
    KIMI, TEKKEN, r"[a-z&&[^b]]+", r"(?i:[a-z&&[^b]]+)", r"(?<=[a-z&&[^b]])x", r"[\p{L}&&[^\p{Han}\s]]+", r"[a-z-&&[^]b]]+", r"[a-z&&[^\h]]{2}",
    r"\h+", r"\H+", r"[x\h]+", r"[x\H]+", r"[^\h]+", r"[^\H]+", r"^a", r"a$", r"^", r"$", r"\s+$", r"\Aa", r"a\Z", r"a\z", r".+",
    r"(?m:a.)", r"(?m)a.", r"(?i-m:a.)", r"(?mi:a.)", r"\v+", r"[a\v]+", r"[a&b]+", r"[]a]+", r"[^]a]+", r"[a\[b]+", r"[[:alpha:]0]+",
    r"[[:alpha:]\s&&[^b]]+", r"\p{N}{1,3}", r"\x{41}+", r"a{1,2}", r"a{", r"\N+", r"\R", r"\[a&&b\]",
    r"\p{Han}+", r"[^\p{Han}]+", r"\p{^Han}+", r"\P{Han}+", r"\p{Hiragana}+", r"\p{Latin}+", r"\w+", r"\W+", r"[\w-]+", r"[^\w]+", r"[[:punct:]]+",
    r"[[:alnum:]]+", r"[[:word:]]+", r"[[:space:]]+", r"[[:upper:]]+", r"[^\S]+", r"[\Sa]+",
]
TEXTS = [
    "", "a", "abcabc ABC abcdabcd", "a\na\r\na\ra\u2028a\n", "a  \n b  ", "a0fg \tF1\uff21\uff22\u0663xX\n", "axbx a-b]c", "a\n\nAb\n", "a\v\n\f\u0085a",
    "a&b [a&&b]", "]a[b", "ab01 12345 1", "AAaa{ aaa", "dictionary caf\u00e9 na\u0131ve \u212aelvin \u017f",
    "\u4e2d\u6587abc\u6587\u672c DEF\u4e2dGhi\u3042\u30a2\u30fc x\u0301\u4e2d", "Don't DON'T we'll 123456 $%^!\r\n\r\n  end  \n \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\u4e2d\u6587\u3002\u6211\u3001\u4f60\u300c\u3042\u3002\u300d\u30fc\u3007\u3005", "e\u0301x\u00b2\u00bd a\u20acb$c a\u180eb \u09f4_\u24b6",
]


def main():
    cases = []
    for pattern in PATTERNS:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        cases.append({"pattern": pattern, "pieces": [[piece for piece, _ in split.pre_tokenize_str(text)] for text in TEXTS]})
    golden = {"made_by": "scripts/reference/make_pattern_golden.py", "tokenizers": tokenizers.__version__, "texts": TEXTS, "cases": cases}
    OUT.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")).replace('},{"pattern"', '},\n{"pattern"') + "\n")


if __name__ == "__main__":
    main()
