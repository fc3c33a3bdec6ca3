#!/usr/bin/env python3
"""Breaks the program in forty places, one at a time, and shows which test notices: tests that bite.

    scripts/mutants.py list                       # the mutants drawn for HEAD
    scripts/mutants.py run --work /tmp/mutants    # build, run, table in /tmp/mutants/mutants.md; hours on two cores, outside CI
    scripts/mutants.py run --work DIR --commit C --only 3,17

The draw depends on the commit, --seed, --count and --includers only: every source folder gets a mutant, the rest go by lines of
code; within a folder the rule used least so far, and the place whose hash (of seed, file, rule and statement) is smallest. None is
picked by hand.
Headers that more than --includers files include are left out: mutating them would rebuild everything.

All mutants are compiled in at once (`ottava_mutant(K) ? mutated : original`, K from the environment), so that one build serves
all. One that does not compile is replaced by its folder's next. A first run of all tests shows which test reaches which place and
how long it takes; a mutant then runs the tests that reach it, those that mirror its folder first, then the shortest, until one
fails. A test that takes ten times as long and a minute more counts as failed. Kernels run on the host execution layer, for which the
CUDA toolkit's headers must be found.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AREAS = ("core", "fp8", "parallel", "models", "apps")
SOURCES = {".cpp", ".h", ".cu", ".cuh", ".inc"}
RULES = {
    "index": "an index or a loop's bound one too large or too small",
    "wait": "a wait, join or synchronise dropped",
    "collective": "a collective left out",
    "add": "an addition left out",
    "scale": "a scale and its inverse swapped",
    "condition": "a condition negated",
    "stale": "an invalidation skipped",
    "buffer": "an event, barrier or lock of a shared buffer skipped",
}
SWITCH = """#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/// The mutant of this process (OTTAVA_MUTANT; 0: none), and a byte per mutant that OTTAVA_MUTANT_REACHED names a file for.
struct OttavaMutants {
  OttavaMutants() {
    if (const char* chosen = getenv("OTTAVA_MUTANT")) now = atoi(chosen);
    const char* file = getenv("OTTAVA_MUTANT_REACHED");
    const int opened = file ? open(file, O_RDWR) : -1;
    if (opened < 0) return;
    void* at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    if (at != MAP_FAILED) reached = static_cast<volatile char*>(at);
    close(opened);
  }
  int now = 0;
  volatile char* reached = nullptr;
};
inline const OttavaMutants ottava_mutants;

constexpr bool ottava_mutant(int k) {
  if (__builtin_is_constant_evaluated()) return false;
  if (ottava_mutants.reached) ottava_mutants.reached[k] = 1;
  return ottava_mutants.now == k;
}
"""


def blanked(text):
    """The text with comments, literals and preprocessor lines as spaces: same length, same lines."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def closing(code, at):
    """Index of the bracket that closes the one at `at`, or -1."""
    depth = 0
    for i in range(at, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return -1


def statement(code, at):
    """[begin, end) of the expression statement around `at`, its `;` included; None inside parentheses and in declarations."""
    i, depth = at, 0
    while i > 0:
        c = code[i - 1]
        if c in ")]" or (c == "}" and depth):
            depth += 1
        elif c in "([" or (c == "{" and depth):
            if depth == 0:
                return None
            depth -= 1
        elif depth == 0 and c in ";{}":
            break
        i -= 1
    while True:
        i += len(code[i:]) - len(code[i:].lstrip())
        if header := re.compile(r"(if|for|while)\s*(constexpr\s*)?\(").match(code, i):
            i = closing(code, header.end() - 1) + 1
        elif header := re.compile(r"(else|do)\b|(case\b[^:;]*|default\s*):(?!:)").match(code, i):
            i = header.end()
        else:
            break
    if i > at:
        return None
    end, depth = i, 0
    while end < len(code) and not (code[end] == ";" and depth == 0):
        depth += (code[end] in "([{") - (code[end] in ")]}")
        if depth < 0:
            return None
        end += 1
    text = code[i:end]
    if re.match(r"(return|throw|const|auto|static|using|break|continue|delete|constexpr|struct|class|enum|template|typename|namespace|friend|virtual|"
                r"explicit|inline|operator|try|catch|public|private|protected|extern|mutable|typedef|goto|switch|asm)\b", text):
        return None
    if re.match(r"[\w:]+(<[^;=]*>)?(\s*[&*]+\s*|\s+)\w+\s*([=({;,\[:]|$)", text) or re.match(r"[:,]", text):
        return None
    return (i, end + 1)


def computed_by_the_compiler(code):
    """Spans of the initial values of constants, where no switch reaches."""
    for match in re.finditer(r"\bconstexpr\b[^;{}()]*=", code):
        end, depth = match.end(), 0
        while end < len(code) and not (code[end] == ";" and depth == 0):
            depth += (code[end] in "([{") - (code[end] in ")]}")
            end += 1
        yield match.start(), end


def mutants_of(path, text):
    """(rule, begin, end, text before, replacement with {k}) of every place where a rule applies."""
    code = blanked(text)

    def dropped(rule, pattern, unless=r"$^"):
        for match in re.finditer(pattern, code):
            span = statement(code, match.start())
            if span and not re.search(unless, code[span[0]:span[1]]):
                original = text[span[0]:span[1]]
                yield rule, *span, original, "if (ottava_mutant({k})) {{}} else " + "{o}"

    yield from dropped("wait", r"(?<!fmt::)\b(wait\w*|join|synchroni[sz]e\w*|fsync|flush)\s*\(", r"fmt::|^lock|changed_?\.wait")
    yield from dropped("collective", r"\b(all_reduce|reduce_scatter|all_gather|all_to_all|broadcast|gather\w*|share\w*|exchange\w*)\s*\(")
    yield from dropped("add", r"(?<=\s)\+=(?=\s)|\b(sum_into|add|accumulate\w*)\s*\(")
    yield from dropped("stale", r"\b\w*(current|valid|ready|changed|stale|dirty|fresh|made|done|version|generation|pending|cached|filled|known|seen|has_)\w*\s*=(?==)?(?!=)|"
                                r"\.(clear|reset)\(\)|\b\w*(invalidate|changed|forget)\w*\(|=\s*(nullptr|\{\s*\}|false)\s*;")
    yield from dropped("buffer", r"\b(record|wait_event|__sync\w+|barrier\w*|fence\w*|cp_async\w*|lock|unlock|notify\w*|(?<=\.)store|release)\s*\(", r"recorder\(\)")

    for match in re.finditer(r"(?<=[\w\])])\[", code):
        end = closing(code, match.start())
        inside = code[match.end():end].strip()
        before = re.split(r"[;{}(]", code[max(0, match.start() - 200):match.start()])[-1].strip()
        is_declared = re.match(r"(?!return\b|else\b|case\b)[\w:<>,*&\s]+[\s*&>]\w+$", before) or re.search(r"\bnew\b|\bdelete$|operator$", before)
        if end < 0 or not inside or "\n" in inside or is_declared or re.search(r"[,=\"{;]|^&|^this$|\.\.\.", inside) or text[match.end():end].count('"'):
            continue
        sign = "+-"[int(hashlib.sha256((path + before + inside).encode()).hexdigest(), 16) % 2]
        yield "index", match.start(), end + 1, text[match.start():end + 1], f"[ottava_mutant({{k}}) ? ({inside}) {sign} 1 : ({inside})]"
    for match in re.finditer(r"\bfor \([^;()]*;\s*\w+ <=? ([^;]+);", code):
        bound = match.group(1).strip()
        if "\n" not in bound:
            yield "index", match.start(1), match.end(1), text[match.start(1):match.end(1)], f"(ottava_mutant({{k}}) ? ({bound}) - 1 : ({bound}))"

    for match in re.finditer(r" [*/] (\*?(?:[\w]+(?:\.|->|::))*\w*(?:scale|inverse|reciprocal|rstd)\w*(?:\[[^\[\]\n]*\]|\([^()\n]*\))*)(?![\w(\[.]|->)", code):
        operand = text[match.start(1):match.end(1)]
        yield "scale", match.start(1), match.end(1), operand, f"(ottava_mutant({{k}}) ? 1.0f / ({operand}) : ({operand}))"

    for match in re.finditer(r"\b(if|while) \(", code):
        end = closing(code, match.end() - 1)
        inside = text[match.end():end]
        if end > 0 and not re.search(r";|[\w>&*] \w+ = ", code[match.end():end]) and "{" not in inside:
            yield "condition", match.end(), end, inside, "ottava_mutant({k}) != static_cast<bool>({o})"


Test = namedtuple("Test", "folder command properties")


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


class Build:
    def __init__(self, tree, work, commit, jobs):
        self.tree, self.work, self.jobs = tree, work, jobs
        self.source, self.build = work / "tree", work / "tree" / "build"
        if not self.source.exists():
            self.source.mkdir(parents=True)
            archive = subprocess.Popen(["git", "-C", ROOT, "archive", commit], stdout=subprocess.PIPE)
            subprocess.run(["tar", "x", "-C", self.source], stdin=archive.stdout, check=True)
            (work / "commit").write_text(commit)
        if (work / "commit").read_text() != commit:
            sys.exit(f"mutants: {work} holds the tree of {(work / 'commit').read_text()}, not of {commit}: name another folder, or --commit")
        if not (self.build / "build.ninja").exists():
            subprocess.run(["cmake", "--preset", "release", "-DOTTAVA_CUDA=OFF", "-DOTTAVA_TESTS=ON", "-DOTTAVA_UNITY=OFF"], cwd=self.source, check=True, stdout=subprocess.DEVNULL)
        self.write("ottava_mutant.h", SWITCH)
        self.objects = defaultdict(list)
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            name = os.path.relpath(entry["file"], self.source)
            self.objects[name].append(entry["output"] if "output" in entry else re.search(r" -o (\S+)", entry["command"]).group(1))

    def write(self, name, text):
        file = self.source / name
        if not file.exists() or file.read_text() != text:
            file.write_text(text)

    def apply(self, mutants):
        by_file = defaultdict(list)
        for k, m in enumerate(mutants, 1):
            by_file[m.path].append((m, k))
        for name, text in self.tree.texts.items():
            for m, k in sorted(by_file[name], key=lambda e: -e[0].begin):
                text = text[:m.begin] + m.written(k) + text[m.end:]
            self.write(name, f'#include "ottava_mutant.h"\n#line 1\n{text}' if by_file[name] else text)

    def ninja(self, targets):
        done = subprocess.run(["ninja", "-C", self.build, f"-j{self.jobs}", "-k0", *targets], capture_output=True, text=True)
        (self.work / "build.log").write_text(done.stdout)
        return done

    def units(self, name):
        return [name] if Path(name).suffix in {".cpp", ".cu"} else sorted(u for u in self.tree.includers[name] if u in self.objects)

    def compile(self):
        """Builds all; returns the mutants, those that compile."""
        refused = set()
        while True:
            mutants = self.tree.draw(refused)
            self.apply(mutants)
            bad = {m.key for m in mutants if not any(u in self.objects for u in self.units(m.path))}
            if not bad:
                done = self.ninja(sorted({o for m in mutants for u in self.units(m.path) for o in self.objects[u]}))
                if done.returncode:
                    errors = [(os.path.relpath(os.path.join(self.build, f), self.source), int(l)) for f, l in
                              re.findall(r"^([^\s:]+):(\d+):\d+: (?:fatal )?error", re.sub(r"\x1b\[[0-9;]*[mK]", "", done.stdout), re.M)]
                    bad = {m.key for m in mutants for f, l in errors if f == m.path and m.line <= l <= m.last_line}
                    bad = bad or {m.key for m in mutants for f, _ in errors if f == m.path}
                    if not bad:
                        sys.exit(f"mutants: the tree does not build: {self.work}/build.log")
            if not bad:
                break
            refused |= bad
            for key in sorted(bad):
                print(f"does not compile, replaced: {key}", flush=True)
        if self.ninja([]).returncode:
            sys.exit(f"mutants: the tree does not build: {self.work}/build.log")
        return mutants

    def tests(self):
        """name -> Test, as CTest knows them."""
        shown = json.loads(subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout)
        graph = shown["backtraceGraph"]
        found = {}
        for test in shown["tests"]:
            node = graph["nodes"][test["backtrace"]]
            while "parent" in node and (graph["files"][node["file"]].endswith("/tests/CMakeLists.txt") or "/cuda_host/" in graph["files"][node["file"]]):
                node = graph["nodes"][node["parent"]]  # the function that adds it is called by its folder
            folder = os.path.relpath(Path(graph["files"][node["file"]]).parent, self.source / "tests")
            found[test["name"]] = Test(folder, test["command"], {p["name"]: p["value"] for p in test["properties"]})
        return found

    def run(self, test, seconds, **environment):
        """(passed, seconds taken, what it printed) of a test, of Catch2's up to the first failure."""
        tag, began = f"{os.getpid()}.{time.monotonic_ns()}", time.monotonic()
        given = dict(e.split("=", 1) for e in test.properties.get("ENVIRONMENT", []))
        is_catch = re.search(r"_test(_cuda_host)?$", test.command[0]) and "mpirun" not in test.command[0]
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(test.command + ["-a"] * bool(is_catch), cwd=test.properties.get("WORKING_DIRECTORY", self.build), stdout=printed, stderr=printed,
                                       env={**os.environ, **given, **environment, "OTTAVA_MUTANT_RUN": tag}, start_new_session=True)
            try:
                passed = process.wait(timeout=seconds) == 0
            except subprocess.TimeoutExpired:
                passed = None
            self.end(tag)
            process.wait()
            printed.seek(0)
            out = printed.read(1 << 20).decode(errors="replace")
        if wanted := test.properties.get("PASS_REGULAR_EXPRESSION"):
            passed = passed is not None and any(re.search(w, out) for w in wanted)
        # A test that is skipped notices nothing.
        if any(re.search(s, out) for s in test.properties.get("SKIP_REGULAR_EXPRESSION", [])) or str(process.returncode) == str(test.properties.get("SKIP_RETURN_CODE")):
            passed = True
        return bool(passed), time.monotonic() - began, "Timeout" if passed is None else out + f"\nexit code {process.returncode}"

    @staticmethod
    def end(tag):
        """Ends what a test left running: processes of its own have its tag in their environment."""
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"OTTAVA_MUTANT_RUN={tag}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass


def failure(out):
    """The line that failed, or how it ended, in a few words."""
    if out == "Timeout":
        return "timeout"
    if match := re.search(r"([\w.]+\.(?:cpp|h)):(\d+): FAILED", out):
        return f"{match.group(1)}:{match.group(2)}"
    return re.search(r"exit code (-?\d+)$", out).group(0)


def baseline(build, count):
    """name -> {seconds, reached}, from one run of every test without a mutant; kept in baseline.json."""
    kept = build.work / "baseline.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    tests = build.tests()

    def one(test):
        reached = build.work / "reached" / test
        reached.parent.mkdir(exist_ok=True)
        reached.write_bytes(bytes(4096))
        passed, seconds, out = build.run(tests[test], 1800, OTTAVA_MUTANT_REACHED=str(reached))
        bytes_ = reached.read_bytes()
        known[test] = {"passed": passed, "seconds": seconds, "reached": [k for k in range(1, count + 1) if bytes_[k]]}
        kept.write_text(json.dumps(known))
        print(f"{'passed' if passed else 'FAILED'} {seconds:6.1f} s  {test}" + ("" if passed else f": {failure(out)}"), flush=True)

    with ThreadPoolExecutor(build.jobs) as pool:
        list(pool.map(one, [t for t in tests if t not in known]))
    return known


def judge(build, mutants, known, only):
    tests = build.tests()
    results_file = build.work / "results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}

    def one(k):
        m = mutants[k - 1]
        reaching = [t for t, b in known.items() if b["passed"] and k in b["reached"]]
        mirrors = lambda t: len(os.path.commonprefix([tests[t].folder.split("/"), m.folder.split("/")]))
        reaching.sort(key=lambda t: (-mirrors(t), known[t]["seconds"], t))
        verdict = {"killed": None, "tests": len(reaching)}
        for test in reaching:
            passed, _, out = build.run(tests[test], 10 * known[test]["seconds"] + 60, OTTAVA_MUTANT=str(k))
            if not passed:
                verdict["killed"] = f"{test} ({failure(out)})"
                break
        results[str(k)] = verdict
        results_file.write_text(json.dumps(results))
        print(f"{k:3} {'killed by ' + verdict['killed'] if verdict['killed'] else 'SURVIVED ' + str(len(reaching)) + ' tests'}: {m.path}:{m.line} {m.rule}: {m.described()}", flush=True)

    with ThreadPoolExecutor(build.jobs) as pool:
        list(pool.map(one, [k for k in range(1, len(mutants) + 1) if (not only or k in only) and (only or str(k) not in results)]))
    return results


def table(mutants, results, commit, seed):
    killed = sum(bool(r["killed"]) for r in results.values())
    lines = [f"Mutants of {commit}, seed {seed}: {killed} of {len(results)} killed.", "", "| | place | rule | change | killed by |", "|---|---|---|---|---|"]
    for k, m in enumerate(mutants, 1):
        r = results.get(str(k))
        verdict = "" if r is None else r["killed"] or f"**survived** {r['tests']} tests"
        lines.append(f"| {k} | {m.path}:{m.line} | {m.rule} | {m.described().replace('|', '&#124;')} | {verdict} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "build", "run"])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--includers", type=int, default=12)
    parser.add_argument("--work", type=Path, help="folder for the mutated tree, its build and what is known so far; a second run goes on there")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="numbers of mutants to judge (again), by commas")
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=7", args.commit], capture_output=True, text=True, check=True).stdout.strip()
    tree = Tree(commit, args.seed, args.count, args.includers)
    if args.what == "list":
        print(table(tree.draw(set()), {}, commit, args.seed), end="")
        return
    if not args.work:
        parser.error("--work DIR is needed")
    build = Build(tree, args.work.resolve(), commit, args.jobs)
    mutants = build.compile()
    print(f"{len(mutants)} mutants of {commit}: built", flush=True)
    if args.what == "build":
        return
    known = baseline(build, len(mutants))
    results = judge(build, mutants, known, {int(k) for k in args.only.split(",")} if args.only else None)
    (build.work / "mutants.md").write_text(table(mutants, results, commit, args.seed))
    print((build.work / "mutants.md").read_text(), end="")


if __name__ == "__main__":
    main()
