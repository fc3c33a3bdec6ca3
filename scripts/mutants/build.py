"""A tree with all mutants compiled in, and its tests."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, namedtuple
from pathlib import Path

from draw import ROOT

Test = namedtuple("Test", "folder command properties")


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
        self.write("ottava_mutant.h", (Path(__file__).parent / "ottava_mutant.h").read_text())
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
