#!/usr/bin/env python3
"""make_texts.py FOLDER PROGRAM...: what an installation has besides programs, made from what PROGRAM (with the emulator it may need
before it) says of itself in --help and `config --schema`: ottava.1.gz, ottava.bash, _ottava (zsh), and copies of configs and
scripts that call the program by its installed name."""

import dataclasses
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ["sample_text.sh", "slurm_example.sbatch"]
ROW = re.compile(r"^  (\S.*?)(?:\s{2,}(.*))?$")
HEADINGS = {"options": "options", "positionals": "positionals", "subcommands": "subcommands"}


@dataclasses.dataclass
class Command:
    """One --help. Rows are (what stands on the left, meaning)."""
    name: str
    about: list
    usage: str = ""
    options: list = dataclasses.field(default_factory=list)
    positionals: list = dataclasses.field(default_factory=list)
    subcommands: list = dataclasses.field(default_factory=list)
    footer: list = dataclasses.field(default_factory=list)
    children: list = dataclasses.field(default_factory=list)

    @property
    def takes_keys(self):
        return any("--section.key" in line for line in self.footer)

    def tree(self):
        yield self
        for child in self.children:
            yield from child.tree()


def names_of(row):
    return re.findall(r"(?<![\w<|-])--?[A-Za-z][\w-]*", row[0].split("=")[0])


def output_of(program, words):
    # With a way of waiting given the program need not start itself again, which an emulator may be unable to do.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    return subprocess.run([*program, *words], check=True, capture_output=True, text=True, env=environment).stdout


def read_command(program, words):
    text = output_of(program, [*words, "--help"])
    command, into = Command(" ".join(["ottava", *words]), []), None
    for line in text.splitlines():
        heading = HEADINGS.get(line.rstrip(":").lower())
        if heading:
            into = getattr(command, heading)
        elif line.lower().startswith("usage:"):
            command.usage = line.split(":", 1)[1].strip()
        elif not line.strip():
            into = None
        elif into is not None and (row := ROW.match(line)):
            into.append((row[1], (row[2] or "").strip()))
        elif into:  # the meaning of a long row
            into[-1] = (into[-1][0], f"{into[-1][1]} {line.strip()}".strip())
        else:
            (command.footer if command.options else command.about).append(line.strip())
    if not command.usage or not command.options:
        sys.exit(f"make_texts.py: {command.name} --help has no usage or no options:\n{text}")
    command.children = [read_command(program, [*words, name]) for name, _ in command.subcommands]
    return command


def read_keys(schema, path=""):
    """(path, meaning, choices) of every key that does something here."""
    for name, row in schema["properties"].items():
        full, meaning = f"{path}{name}", row.get("description", "")
        if "properties" in row:
            yield from read_keys(row, f"{full}.")
        elif "default" in row and "Ignored: " not in meaning and "Only the default is supported: " not in meaning:
            choices = row.get("enum", [])
            if "boolean" in row.get("type", []) and "string" not in row["type"]:
                choices = ["true", "false"]
            yield full, meaning, [c for c in choices if isinstance(c, str)]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def cases(rows):
    return "\n".join(f"    {quoted(key)}) {text} ;;" for key, text in rows)


BASH = """# Completion of ottava for bash, made by scripts/install/make_texts.py.
_ottava_subcommands() {
  case $1 in
%(subcommands)s
  esac
}
_ottava_options() {
  case $1 in
%(options)s
  esac
}
_ottava_takes_keys() {
  case $1 in %(takes_keys)s) return 0 ;; esac
  return 1
}
_ottava_values() {
  case $1 in
%(values)s
  esac
}
_ottava_keys=%(keys)s
_ottava() {
  local current=${COMP_WORDS[COMP_CWORD]} command=ottava words i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case " $(_ottava_subcommands "$command") " in
      *" ${COMP_WORDS[i]} "*) command+=" ${COMP_WORDS[i]}" ;;
      *) break ;;
    esac
  done
  words=$(_ottava_values "${COMP_WORDS[COMP_CWORD - 1]}")
  if [[ -z $words && $current == -* ]]; then
    words=$(_ottava_options "$command")
    if _ottava_takes_keys "$command"; then words+=" $_ottava_keys"; fi
  elif [[ -z $words ]]; then
    words=$(_ottava_subcommands "$command")
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _ottava ottava
"""

ZSH = """#compdef ottava
# Completion of ottava for zsh, made by scripts/install/make_texts.py.
_ottava_subcommands() {
  case $1 in
%(subcommands)s
    *) reply=() ;;
  esac
}
_ottava_options() {
  case $1 in
%(options)s
    *) reply=() ;;
  esac
}
_ottava_takes_keys() {
  case $1 in %(takes_keys)s) return 0 ;; esac
  return 1
}
_ottava_values() {
  case $1 in
%(values)s
    *) reply=() ;;
  esac
}
_ottava_keys=(
%(keys)s
)
_ottava() {
  local command=ottava i
  local -a reply
  for ((i = 2; i < CURRENT; ++i)); do
    _ottava_subcommands $command
    (( ${reply[(I)${words[i]}:*]} )) || break
    command+=" ${words[i]}"
  done
  _ottava_values "${words[CURRENT - 1]}"
  if (( $#reply )); then
    compadd -- $reply
    return
  fi
  if [[ ${words[CURRENT]} == -* ]]; then
    _ottava_options $command
    if _ottava_takes_keys $command; then reply+=($_ottava_keys); fi
    _describe -o option reply
    return
  fi
  _ottava_subcommands $command
  if (( $#reply )); then _describe command reply; else _files; fi
}
if [[ $funcstack[1] == _ottava ]]; then _ottava "$@"; else compdef _ottava ottava; fi
"""


def bash_completion(root, keys):
    commands = list(root.tree())
    values = [(f"--{path}", "echo " + quoted(" ".join(choices))) for path, _, choices in keys if choices]
    return BASH % {
        "subcommands": cases((c.name, "echo " + quoted(" ".join(name for name, _ in c.subcommands))) for c in commands if c.subcommands),
        "options": cases((c.name, "echo " + quoted(" ".join(n for row in c.options for n in names_of(row)))) for c in commands),
        "takes_keys": " | ".join(quoted(c.name) for c in commands if c.takes_keys),
        "values": cases(values),
        "keys": quoted(" ".join(f"--{path}" for path, _, _ in keys)),
    }


def zsh_completion(root, keys):
    commands = list(root.tree())

    def described(rows):
        return "reply=(" + " ".join(quoted(f"{name}:{meaning}") for name, meaning in rows) + ")"
    values = [(f"--{path}", "reply=(" + " ".join(map(quoted, choices)) + ")") for path, _, choices in keys if choices]
    return ZSH % {
        "subcommands": cases((c.name, described(c.subcommands)) for c in commands if c.subcommands),
        "options": cases((c.name, described((n, row[1]) for row in c.options for n in names_of(row))) for c in commands),
        "takes_keys": " | ".join(quoted(c.name) for c in commands if c.takes_keys),
        "values": cases(values),
        "keys": "\n".join(f"  {quoted(f'--{path}:{meaning}')}" for path, meaning, _ in keys),
    }


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def rows_of(rows):
    return [line for left, meaning in rows for line in (".TP", f"\\fB{roff(left)}\\fR", roff(meaning) or "\\&")]


def man_page(root, keys, version):
    about = " ".join(root.about)
    lines = [f'.TH OTTAVA 1 "" "ottava {version}" "User Commands"', ".SH NAME", f"ottava \\- {roff(about.removeprefix('ottava ').rstrip('.'))}",
             ".SH SYNOPSIS", f".B {roff(root.usage)}", ".SH DESCRIPTION", roff(about), *rows_of(root.subcommands),
             ".SH OPTIONS", *rows_of(root.options), ".SH COMMANDS"]
    for command in list(root.tree())[1:]:
        if command.children:
            continue
        lines += [f".SS {roff(command.usage)}", roff(" ".join(command.about)), *rows_of(command.positionals), *rows_of(command.options)]
        lines += [".PP", *map(roff, command.footer)] if command.footer else []
    lines += [".SH KEYS", "Of a configuration file, and of the command line as \\-\\-section.key value.",
              *rows_of((path, f"{meaning} ({', '.join(choices)})" if choices else meaning) for path, meaning, choices in keys)]
    return "\n".join(lines) + "\n"


def copy_texts(folder):
    """Configs and scripts name the program as it is called where it is installed."""
    shutil.copytree(ROOT / "configs", folder / "configs", dirs_exist_ok=True)
    (folder / "scripts").mkdir(exist_ok=True)
    for name in SCRIPTS:
        shutil.copy(ROOT / "scripts" / name, folder / "scripts" / name)
    for file in [*(folder / "configs").glob("*.*"), *(folder / "scripts").iterdir()]:
        file.write_text(file.read_text().replace("build/ottava", "ottava"))


def main():
    folder, program = Path(sys.argv[1]), sys.argv[2:]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root, keys = read_command(program, []), list(read_keys(json.loads(output_of(program, ["config", "--schema"]))))
    (folder / "ottava.bash").write_text(bash_completion(root, keys))
    (folder / "_ottava").write_text(zsh_completion(root, keys))
    (folder / "ottava.1.gz").write_bytes(gzip.compress(man_page(root, keys, output_of(program, ["--version"]).strip()).encode(), mtime=0))
    copy_texts(folder)


if __name__ == "__main__":
    main()
