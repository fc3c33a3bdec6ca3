"""What documents may say of ottava's commands and of scripts: which words --help, configs/keys.md and a script's text know."""
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
KEYS = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "configs/keys.md").read_text(), re.M))


def faults_of_script(words):
    """`words`: a script and what it is called with."""
    script = ROOT / words[0]
    if not script.exists():
        return [f"there is no {words[0]}"]
    parts = [script, *script.with_suffix("").glob("*.py")]  # gpu_check.sh hands its options on
    text = "".join(part.read_text() for part in parts)
    options = [word.split("=")[0] for word in words[1:] if re.match(r"--[a-z]", word)]
    return [f"{words[0]} has no {option}" for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", text)]


class Program:
    def __init__(self, path):
        self.path = str(pathlib.Path(path).resolve())
        self.helps = {}

    def help_of(self, words):
        key = tuple(words)
        if key not in self.helps:
            done = subprocess.run([self.path, *words, "--help"], capture_output=True, text=True)
            self.helps[key] = done.stdout if done.returncode == 0 else None
        return self.helps[key]

    def refusal_of(self, words):
        done = subprocess.run([self.path, *words], capture_output=True, text=True, cwd=ROOT)
        return done.stdout + done.stderr

    def faults_of_words(self, words):
        """`words`: an ottava command without the program's name."""
        rest = words[words.index("--") + 1:] if "--" in words else None
        words = words[:words.index("--")] if "--" in words else words
        command = []
        while words and not words[0].startswith("-"):
            if self.help_of([*command, words[0]]) in (None, self.help_of(command)) or len(command) == 2:
                break
            command.append(words.pop(0))
        text = self.help_of(command)
        if not command or text is None:
            return [f"no such command: ottava {' '.join(command + words)}"]
        faults = []
        for word in words:
            name = word.split("=")[0]
            if name.startswith("--") and "." in name:
                if name[2:] not in KEYS:
                    faults.append(f"no such key: {name}")
            elif re.match(r"--?[a-z]", name) and not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
                faults.append(f"ottava {' '.join(command)} has no {name}")
            elif re.fullmatch(r"configs/[\w./]+", word) and not (ROOT / word).exists():
                faults.append(f"there is no {word}")
        return faults + (self.faults_of_words(rest) if rest is not None else [])

    def faults_of_line(self, line):
        """`line`: of a shell."""
        faults = []
        for part in re.split(r"\s\|\s|&&|;", re.sub(r"\s#.*", "", line)):
            words = shlex.split(part)
            names = [i for i, w in enumerate(words) if w in ("build/ottava", "ottava")]
            scripts = [i for i, w in enumerate(words) if re.fullmatch(r"scripts/[\w/]+\.\w+", w)]
            if names and not words[0].startswith(("git", "cmake")):
                faults += self.faults_of_words(words[names[0] + 1:])
            elif scripts:
                faults += faults_of_script(words[scripts[0]:])
        return faults
