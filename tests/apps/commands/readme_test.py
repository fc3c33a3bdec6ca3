#!/usr/bin/env python3
"""The commands of README.md: every one is known with its options; a block after `<!-- run -->` runs; every message that the
troubleshooting table quotes is one of the program's.

    readme_test.py OTTAVA
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
OTTAVA = str(pathlib.Path(sys.argv[1]).resolve())
problems = []


def complain(where, what):
    problems.append(f"README.md:{where}: {what}")


def help_of(words, seen={}):
    key = tuple(words)
    if key not in seen:
        done = subprocess.run([OTTAVA, *words, "--help"], capture_output=True, text=True)
        seen[key] = done.stdout if done.returncode == 0 else None
    return seen[key]


KEYS = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "configs/keys.md").read_text(), re.M))


def check_words(where, words):
    """`words`: an ottava command without the program's name."""
    rest = words[words.index("--") + 1:] if "--" in words else None
    words = words[:words.index("--")] if "--" in words else words
    command = []
    while words and not words[0].startswith("-"):
        if help_of([*command, words[0]]) in (None, help_of(command)) or len(command) == 2:
            break
        command.append(words.pop(0))
    text = help_of(command)
    if not command or text is None:
        return complain(where, f"no such command: ottava {' '.join(command + words)}")
    for word in words:
        name = word.split("=")[0]
        if name.startswith("--") and "." in name:
            if name[2:] not in KEYS:
                complain(where, f"no such key: {name}")
        elif re.match(r"--?[a-z]", name) and not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
            complain(where, f"ottava {' '.join(command)} has no {name}")
        elif re.fullmatch(r"configs/[\w./]+", word) and not (ROOT / word).exists():
            complain(where, f"there is no {word}")
    if rest is not None:
        check_words(where, rest)


def check_line(where, line):
    for part in re.split(r"\s\|\s|&&|;", re.sub(r"\s#.*", "", line)):
        words = shlex.split(part)
        names = [i for i, w in enumerate(words) if w in ("build/ottava", "ottava")]
        if names and not words[0].startswith(("git", "cmake")):
            check_words(where, words[names[0] + 1:])
        for word in words:
            if word.startswith("scripts/") and not (ROOT / word).exists():
                complain(where, f"there is no {word}")


def run(where, lines):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("configs", "README.md"):
            (pathlib.Path(folder) / name).symlink_to(ROOT / name)
        for line in lines:
            done = subprocess.run(line.replace("build/ottava", OTTAVA), shell=True, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                complain(where, f"failed: {line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main():
    text = (ROOT / "README.md").read_text()
    block, begins, marked, found, ran = [], 0, False, 0, 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("    "):
            begins = begins or number
            command = line.strip()
            if not command.startswith(("$", "ottava:", "command line:", "[", "|")):
                block.append(command)
                check_line(number, command)
                found += 1
            continue
        if block and marked:
            run(begins, block)
            ran += 1
        if line.strip() or block:
            marked = line.strip() == "<!-- run -->"
        block, begins = [], 0
    sources = "".join(p.read_text() for d in ("core", "fp8", "parallel", "models", "apps") for p in (ROOT / d).rglob("*.cpp"))
    sources = re.sub(r'"\s*\n\s*"', "", sources)
    quoted = re.findall(r"^\| `([^`]+)` \| ", text, re.M)
    messages = 0
    for message in quoted:
        if " " not in message or message.startswith("model."):
            continue
        messages += 1
        for fragment in message.split("..."):
            fragment = re.sub(r"^\[\w+\]", "", fragment)  # fail() puts the place there
            if fragment.strip() not in sources:
                complain("table", f"the program does not say: {fragment}")
    if found < 20 or ran < 2 or messages < 6:
        complain(0, f"only {found} commands, {ran} runnable blocks and {messages} messages were found: is this test reading it right?")
    print("\n".join(problems) or f"{found} lines of commands, {ran} blocks ran, {messages} messages")
    sys.exit(bool(problems))


main()
