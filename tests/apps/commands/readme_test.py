#!/usr/bin/env python3
"""The commands of README.md: every one is known with its options; a block after `<!-- run -->` runs; every message that the
troubleshooting table quotes is one of the program's.

    readme_test.py OTTAVA
"""
import pathlib
import re
import subprocess
import sys
import tempfile

from command_words import ROOT, Program

OTTAVA = Program(sys.argv[1])
problems = []


def complain(where, what):
    problems.append(f"README.md:{where}: {what}")


def run(where, lines):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("configs", "README.md"):
            (pathlib.Path(folder) / name).symlink_to(ROOT / name)
        for line in lines:
            done = subprocess.run(line.replace("build/ottava", OTTAVA.path), shell=True, cwd=folder, capture_output=True, text=True)
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
                for fault in OTTAVA.faults_of_line(command):
                    complain(number, fault)
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
