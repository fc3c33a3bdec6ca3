#!/usr/bin/env python3
"""Writes core/data/tokenizer/unicode_tables.inc from Python's own Unicode data.

    python3 scripts/reference/make_unicode_tables.py > core/data/tokenizer/unicode_tables.inc
"""
import sys
import unicodedata as u

# Circled and squared letters: Alphabetic through Other_Alphabetic, which unicodedata does not tell.
OTHER_ALPHABETIC_SYMBOLS = [(0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)]
SCALARS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def is_word(c):
    category = u.category(chr(c))
    return (category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in (0x200C, 0x200D)
            or any(a <= c <= b for a, b in OTHER_ALPHABETIC_SYMBOLS))


def ranges(keyed):
    """[(first, last, key)] of neighbours with one key; key None is left out."""
    out = []
    for c in SCALARS:
        key = keyed(c)
        if key is None:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == key:
            out[-1][1] = c
        else:
            out.append([c, c, key])
    return out


def emit(name, items):
    print(f"{name}[] = {{")
    line = ""
    for item in items:
        if len(line) + len(item) + 1 > 118:
            print(line)
            line = ""
        line += item + ","
    print(line + "};")


def main():
    print(f"// Made by scripts/reference/make_unicode_tables.py from Unicode {u.unidata_version}. Do not edit.")
    emit("constexpr Range kWordRanges", [f"{{{a:#x},{b:#x}}}" for a, b, _ in ranges(lambda c: is_word(c) or None)])
    emit("constexpr ClassRange kCombiningClasses",
         [f"{{{a:#x},{b:#x},{k}}}" for a, b, k in ranges(lambda c: u.combining(chr(c)) or None)])
    rows = []
    for c in SCALARS:
        d = u.decomposition(chr(c))
        if not d or d[0] == "<":
            continue
        parts = [int(x, 16) for x in d.split()] + [0]
        composes = u.normalize("NFC", chr(c)) == chr(c)
        rows.append(f"{{{c:#x},{parts[0]:#x},{parts[1]:#x},{int(composes)}}}")
    emit("constexpr Decomposition kDecompositions", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
