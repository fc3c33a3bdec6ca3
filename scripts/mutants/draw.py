"""The mutants that a seed draws from a commit."""

import hashlib
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

from statements import blanked, computed_by_the_compiler, mutants_of

ROOT = Path(__file__).resolve().parents[2]
AREAS = ("core", "fp8", "parallel", "models", "apps")
SOURCES = {".cpp", ".h", ".cu", ".cuh", ".inc"}


class Mutant:
    def __init__(self, path, text, rule, begin, end, before, replacement, nth):
        self.path, self.rule, self.begin, self.end, self.before, self.replacement = path, rule, begin, end, before, replacement
        self.line, self.last_line = text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 1
        self.key = f"{path}|{rule}|{' '.join(before.split())}|{nth}"
        self.folder = str(Path(path).parent)
        # What surrounds an index or an operand, for the table.
        first = text.rfind("\n", 0, begin) + 1
        self.shown = " ".join(text[first:text.find("\n", end - 1) if text.find("\n", end - 1) > 0 else len(text)].split())

    def written(self, k):
        return self.replacement.replace("{k}", str(k)).replace("{o}", self.before).replace("{{}}", "{}")

    def described(self):
        short = " ".join(self.before.split())
        if self.rule == "index":
            short = self.shown if len(self.shown) <= 100 else short
            change = re.search(r" ([+-]) 1 ", self.replacement).group(1) + "1"
            return f"`{' '.join(self.before.split())}` {change} in `{short}`"
        if self.rule == "condition":
            return f"`!({short})`"
        if self.rule == "scale":
            return f"`1 / {short}` in `{self.shown}`"
        return f"without `{short}`"


class Tree:
    def __init__(self, commit, seed, count, includers):
        out = subprocess.run(["git", "-C", ROOT, "ls-tree", "-r", "--name-only", commit, *AREAS], capture_output=True, text=True, check=True).stdout
        self.seed, self.count = seed, count
        self.texts = {name: subprocess.run(["git", "-C", ROOT, "show", f"{commit}:{name}"], capture_output=True, text=True, check=True).stdout
                      for name in out.split() if Path(name).suffix in SOURCES}
        self.includers = self.count_includers()
        allowed = {n: t for n, t in self.texts.items() if Path(n).suffix in {".cpp", ".cu"} or 0 < len(self.includers[n]) <= includers}
        self.places = defaultdict(lambda: defaultdict(list))  # folder -> rule -> mutants, in the order of the draw
        for name, text in allowed.items():
            seen, spans, constants = Counter(), set(), list(computed_by_the_compiler(blanked(text)))
            for rule, begin, end, before, replacement in mutants_of(name, text):
                if (rule, begin) in spans or any(b <= begin < e for b, e in constants):
                    continue
                spans.add((rule, begin))
                key = (rule, " ".join(before.split()))
                self.places[str(Path(name).parent)][rule].append(Mutant(name, text, rule, begin, end, before, replacement, seen[key]))
                seen[key] += 1
        for rules in self.places.values():
            for places in rules.values():
                places.sort(key=lambda m: self.hash(m.key))

    def hash(self, text):
        return hashlib.sha256(f"{self.seed}|{text}".encode()).hexdigest()

    def count_includers(self):
        """Translation units that include each header, directly or not."""
        direct = {n: [p if p in self.texts else str(Path(n).parent / p) for p in re.findall(r'^\s*#\s*include\s*"([^"]+)"', t, re.M)] for n, t in self.texts.items()}
        found = defaultdict(set)
        for unit in (n for n in self.texts if Path(n).suffix in {".cpp", ".cu"}):
            open_, done = list(direct[unit]), set()
            while open_:
                header = open_.pop()
                if header in done or header not in self.texts:
                    continue
                done.add(header)
                found[header].add(unit)
                open_ += direct[header]
        return found

    def slots(self):
        """A (folder, rule) for each mutant."""
        lines = {f: sum(t.count("\n") for n, t in self.texts.items() if str(Path(n).parent) == f) for f in self.places}
        order = sorted(lines, key=lambda f: (-lines[f], f))
        share = Counter(order[:self.count])
        rest, total = self.count - len(share), sum(lines.values())
        exact = {f: lines[f] / total * rest for f in share} if rest > 0 else {}
        for f in exact:
            share[f] += int(exact[f])
        for f in sorted(exact, key=lambda f: (int(exact[f]) - exact[f], f))[:self.count - sum(share.values())]:
            share[f] += 1
        used, slots = Counter(), []
        for folder in sorted(share, key=lambda f: self.hash(f)):
            for n in range(share[folder]):
                rules = sorted(self.places[folder], key=lambda r: (used[r], self.hash(f"{folder}|{n}|{r}")))
                used[rules[0]] += 1
                slots.append((folder, rules[0]))
        return sorted(slots)

    def draw(self, refused):
        """The mutants, without those in `refused` (keys that did not compile)."""
        taken = []
        for folder, rule in self.slots():
            others = sorted((r for r in self.places[folder] if r != rule), key=lambda r: self.hash(f"{folder}|{r}"))
            for m in (m for r in [rule] + others for m in self.places[folder][r]):
                if m.key not in refused and not any(o.path == m.path and o.begin < m.end and m.begin < o.end for o in taken):
                    taken.append(m)
                    break
        return taken
