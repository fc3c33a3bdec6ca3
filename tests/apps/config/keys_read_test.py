"""Every key that configs/keys.md calls "used" has a reader: code that names the member it is kept in, outside tables and checks.

A member is read as `.member` of something of its struct's type: a section of Config by its name, or a variable, parameter or member
declared with that type. A member function of the struct that reads it stands for it where it is called. Where two sections share a
type (training.dataloader, validation.dataloader), each must be handed to a reader by name.
"""

import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("core", "fp8", "parallel", "models", "apps")
KEPT_ONLY_TO_BE_CHECKED = {
    "model.name": "there is one family",
    "training.dtype": "masters are FP32",
    "training.mixed_precision_level": "short for other keys: config.cpp sets these",
    "comm.mode": "there is one mode",
}


def code_of(text):
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: '"' + " " * (len(m.group(0)) - 2) + '"' if m.group(0)[0] == '"' else " " * len(m.group(0)), text, flags=re.S)


def body(text, at):
    """What the next braces after `at` hold."""
    begin = text.index("{", at)
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[begin:i]


def tables(texts):
    """struct -> {key: member}, struct -> {section: (member, struct)}, struct -> files that declare it."""
    keys, sections, files = defaultdict(dict), defaultdict(dict), defaultdict(set)
    types = {}  # (struct, member) -> struct of the member
    for name, text in texts.items():
        for match in re.finditer(r"\bstruct (\w+Config|Config) \{", text):
            files[match.group(1)].add(name)
            for kind, member in re.findall(r"^  (\w+Config) (\w+);", body(text, match.start()), re.M):
                types[match.group(1), member] = kind
    for name, text in texts.items():
        for match in re.finditer(r"(?:void|config::Section) declare\w*\((?:config::Section& s, )?(\w+)& c\) \{", text):
            struct, declared = match.group(1), body(text, match.start())
            files[struct].add(name)
            for how, key, member in re.findall(r'\b(\w+)\(\s*"(\w+)",\s*c\.(\w+)', declared):
                if how == "section":
                    sections[struct][key] = (member, types[struct, member])
                else:
                    keys[struct][key] = member
    return keys, sections, files


def readers(struct, texts, files):
    """Names by which the methods of a struct are called, per member that they read."""
    found = defaultdict(set)
    for name in files[struct]:
        text = texts[name]
        for match in re.finditer(rf"\b{struct}::(\w+)\([^)]*\) const \{{", text):
            for word in re.findall(r"\w+", body(text, match.start())):
                found[word].add(match.group(1))
        for match in re.finditer(rf"\bstruct {struct} \{{", text):
            inside = body(text, match.start())
            for method in re.finditer(r"\b(\w+)\([^)]*\) const \{", inside):
                for word in re.findall(r"\w+", body(inside, method.start())):
                    found[word].add(method.group(1))
    return found


def without_tables(text):
    """Declaring a key or refusing a combination is no use of it."""
    out, at = "", 0
    for match in re.finditer(r"\b(?:void|config::Section|Section&?) (?:declare|validate|check_combinations|apply_precision_level)\w*\([^;{]*\) (?=\{)", text):
        if match.start() >= at:
            out += text[at:match.start()]
            at = match.end() + len(body(text, match.end())) + 1
    return re.sub(r"\b(?:declare|validate)\w*\([^;{]*\);", "", out + text[at:])


def unread(root=ROOT):
    raw = {str(p.relative_to(root)): p.read_text() for f in FOLDERS for p in (root / f).rglob("*") if p.suffix in {".h", ".cpp"}}
    keys, sections, files = tables({n: re.sub(r"//[^\n]*", "", t) for n, t in raw.items()})
    code = {n: code_of(t) for n, t in raw.items()}
    reading = {n: without_tables(t) for n, t in code.items() if not n.endswith("config_inputs.cpp")}  # which checks that files are there
    kinds = [kind for of in sections.values() for _, kind in of.values()]

    @cache
    def named(struct):
        """What variables, parameters and members of this type are called."""
        return {name for text in reading.values() for name in re.findall(rf"\b{struct}&? (\w+)\b", text)}

    @cache
    def methods(struct):
        return readers(struct, code, files)

    pairs = {n: set(re.findall(r"\b(\w+)(?=(?:\.|->)(\w+))", text)) for n, text in reading.items()}

    def is_asked(owners, members, apart_from=()):
        wanted = {(owner, member) for owner in owners for member in members}
        return any(not wanted.isdisjoint(asked) for name, asked in pairs.items() if name not in apart_from)

    used = re.findall(r"^\| `([\w.]+)` \|[^|]*\|[^|]*\| used \|", (root / "configs/keys.md").read_text(), re.M)
    missing = []
    for path in (p for p in used if p not in KEPT_ONLY_TO_BE_CHECKED):
        *names, key = path.removeprefix("quantize.linear.").split(".")
        owner, struct, member = "", "Config", ""
        for name in names:
            owner, before, (member, struct) = struct, member, sections[struct][name]
        kept = keys[struct].get(key)
        if kept is None:
            missing.append(f"{path}: no table declares it")
        elif not is_asked(named(struct) | {member}, {kept} | methods(struct)[kept], files[struct]):
            missing.append(f"{path}: `{kept}` of {struct} has no reader")
        elif kinds.count(struct) > 1 and not is_asked(named(owner) | {before}, {member}):
            missing.append(f"{path}: `{member}` of {owner} has no reader")
    return used, missing


def main():
    used, missing = unread()
    if len(used) < 100:
        missing.append(f"configs/keys.md lists {len(used)} used keys; expected more than 100: has its form changed?")
    print("\n".join(missing) if missing else f"{len(used)} used keys, each with a reader")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
