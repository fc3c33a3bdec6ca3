"""Every key that configs/keys.md calls "used" does something: a run in which only that key is changed behaves, writes, plans or says
otherwise than the same run without the change. Changes and where they show: keys_change_rows.py; a used key without a row fails, and
so does a row of a key that is no longer used.

    keys_change_test.py OTTAVA [--nvtx-recorder LIBRARY] [--without-change] [--only REGEX] [--keep FOLDER]

Losses, weights and files are compared exactly: a run on the CPU repeats bit for bit. No time is compared. --without-change leaves the
changes out: then every row must fail, since one that passes would do so whatever its key does.
"""

import argparse
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keys_change_rows import COMMON, GROUPS, NVTX_ROWS, ROWS, WITHOUT_NVTX_ROWS, write_inputs

ROOT = Path(__file__).resolve().parents[3]
TIME_LIMIT = 60  # seconds of one run: a hang, on the slowest machine


def used_keys():
    return re.findall(r"^\| `([\w.]+)` \|[^|]*\|[^|]*\| used \|", (ROOT / "configs/keys.md").read_text(), re.M)


def as_text(value):
    return value.replace("{root}", str(ROOT)) if isinstance(value, str) else json.dumps(value)


def nested(flat):
    tree = {}
    for path, value in flat.items():
        *sections, key = path.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[key] = as_text(value) if isinstance(value, str) else value
    return tree


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A command in a process group of its own, with its output in a file."""

    def __init__(self, command, folder, environment, name="output.txt"):
        self.output = folder / name
        with open(self.output, "w") as file:
            self.popen = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                          stderr=subprocess.STDOUT, start_new_session=True)

    def end(self, limit=TIME_LIMIT):
        """Its exit code; None for a run that had to be killed."""
        try:
            return self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self):
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()


def on_terminal(command, folder, environment):
    """The exit code of a command whose output is a terminal, and goes from there to output.txt."""
    ours, theirs = os.openpty()
    popen = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    watch = threading.Timer(TIME_LIMIT, popen.kill)
    watch.start()
    text = b""
    try:
        while part := os.read(ours, 1 << 16):
            text += part
    except OSError:  # the end, on Linux
        pass
    code = popen.wait()
    watch.cancel()
    os.close(ours)
    (folder / "output.txt").write_bytes(text)
    return code if code >= 0 else None


def by_hand(command, folder, environment, how):
    """Rank 0 of two, alone or with a rank 1 that is stopped when step 2 is logged; of the former are output and exit code."""
    both = {**environment, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    start = lambda rank, name: Process(command, folder, both | {"RANK": rank, "LOCAL_RANK": rank}, name)
    first, second = start("0", "output.txt"), None if how == "alone" else start("1", "output of rank 1.txt")
    try:
        if second:
            metrics, begin = folder / "out/metrics.jsonl", time.monotonic()
            while first.popen.poll() is None and time.monotonic() < begin + TIME_LIMIT:
                if metrics.exists() and '{"step":2,' in metrics.read_text():
                    break
                time.sleep(0.05)
            second.popen.send_signal(signal.SIGSTOP)
        return first.end()
    finally:
        first.kill()
        if second:
            second.kill()


def base_of(group, also):
    """Names the run without the change."""
    return group, json.dumps(also)


class Run:
    """One run of the program in a folder of its own."""

    def __init__(self, test, name, group, overrides):
        self.group, self.folder = GROUPS[group], test.work / name
        if before := self.group.get("after"):
            shutil.copytree(test.bases[base_of(before, {})].folder, self.folder)
        else:
            self.folder.mkdir(parents=True)
        words = [str(test.work / f"{group}.yaml")] + [w for k, v in overrides.items() for w in (f"--{k}", as_text(v))]
        self.planning = [test.ottava, "plan", *words[:1], *self.group.get("words", []), *words[1:]]
        self.started = [test.ottava, "train", *words]
        self.environment = {k: v for k, v in os.environ.items() if k not in ("LOG_RANK", "NO_COLOR")} | {
            "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache"), "TERM": "xterm"}
        if test.recorder:
            self.environment |= {"NVTX_INJECTION64_PATH": test.recorder, "OTTAVA_NVTX_FILE": str(self.folder / "nvtx.txt")}
        self.start(self.group.get("how", "train"))

    def start(self, how):
        if how == "plan":
            self.started = self.planning
        elif how == "launch":
            self.started[1:1] = ["launch", "-n", "2", "--grace", "5", "--"]
        what = self.started, self.folder, self.environment
        if how == "terminal":
            self.code = on_terminal(*what)
        elif how in ("alone", "stopped"):
            self.code = by_hand(*what, how)
        else:
            self.code = Process(*what).end()
        self.text = (self.folder / "output.txt").read_text(errors="replace")

    def plan(self):
        process = Process(self.planning, self.folder, self.environment, "plan.txt")
        code = process.end()
        text = process.output.read_text(errors="replace")
        if code != 0:
            raise ValueError(f"ottava plan ended with {code}: {text[-500:]}")
        return text

    def metrics(self):
        path = self.folder / self.group["keys"].get("job.dump_folder", "out") / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# What Row.sees names, of one run.
def loss(run, _):
    return [[line.get(k) for k in ("step", "loss_metrics/global_avg_loss", "grad_norm")] for line in run.metrics()]


def metric(run, name):
    return [(line["step"], line[k]) for line in run.metrics() for k in line if re.fullmatch(name, k)]


def content(run, pattern):
    return {str(p.relative_to(run.folder)): p.read_bytes() for p in run.folder.glob(pattern)}


def weights(run, _):
    return content(run, "**/model*.safetensors")


def files(run, _):
    """Those of TensorBoard have the time in their names."""
    return {re.sub(r"(tfevents).*", r"\1", str(p.relative_to(run.folder))) for p in run.folder.rglob("*") if p.is_file()}


def traced_steps(run, _):
    return {p.parent.name: json.loads(gzip.decompress(p.read_bytes()))["ottava"]["steps"] for p in run.folder.glob("**/*_trace.json.gz")}


def log(run, regex):
    return re.findall(regex, run.text)


def plan(run, regex):
    return re.findall(regex, run.text if run.group.get("how") == "plan" else run.plan())


SEES = {f.__name__.replace("_", " "): f for f in (loss, metric, content, weights, files, traced_steps, log, plan)}
SEES |= {"says": log, "error": log, "weights or error": log}


def complaint(row, base, changed):
    """What is wrong with a row, or None."""
    kind, _, what = row.sees.partition(": ")
    if kind == "weights or error":
        kind = "error" if changed.code else "weights"
    if None in (base.code, changed.code):
        return f"a run was killed after {TIME_LIMIT} s"
    fails = base.group.get("fails", False)
    if kind != "says" and (base.code != 0) != fails:
        return f"the run without the change ended with {base.code}"
    if kind != "says" and (changed.code != 0) != (fails or kind == "error"):
        return f"the changed run ended with {changed.code}"
    try:
        before, after = SEES[kind](base, what), SEES[kind](changed, what)
    except ValueError as error:
        return str(error)
    if not before and not after:
        return "there is no such thing in either run"
    if kind == "error" and not after:
        return "the changed run was refused in other words"
    return None if before != after else f"no difference: {str(before)[:300]}"


class Test:
    def __init__(self, arguments, work):
        self.ottava = str(arguments.ottava.resolve())
        self.recorder = arguments.nvtx_recorder and str(arguments.nvtx_recorder.resolve())
        self.work, self.with_change, self.bases = work, not arguments.without_change, {}
        write_inputs(work)
        for name, group in GROUPS.items():
            common = {"model.hf_assets_path": str(ROOT / "configs/tokenizers/en-2256")} | COMMON | group["keys"]
            (work / f"{name}.yaml").write_text(json.dumps(nested({k: v for k, v in common.items() if v is not None})))

    def make_base(self, base):
        group, also = base[0], json.loads(base[1])
        return Run(self, "-".join(["bases/" + group, *also]), group, also)

    def check(self, row):
        """What is to be printed of a row that fails."""
        base = self.bases[base_of(row.group, row.also)]
        change = {row.key: row.value} if self.with_change else {}
        changed = Run(self, f"rows/{ROWS.index(row)}-{row.key}", row.group, row.also | change)
        wrong = complaint(row, base, changed)
        if wrong is None:
            return None
        last = "\n    ".join(changed.text.splitlines()[-5:])
        return f"{row.key} ({row.group}): expected another {row.sees}; {wrong}\n  {shlex.join(changed.started)}\n    {last}"

    def run(self, rows):
        needed = list(dict.fromkeys(base_of(r.group, r.also) for r in rows))
        before = list(dict.fromkeys(base_of(GROUPS[g]["after"], {}) for g, _ in needed if "after" in GROUPS[g]))
        workers = os.cpu_count() or 1
        several = lambda group: GROUPS[group].get("how") in ("launch", "stopped")
        failures = []
        with ThreadPoolExecutor(workers) as one, ThreadPoolExecutor(max(workers // 2, 1)) as two:
            # Those that others begin after come first.
            for bases in (before, [b for b in needed if b not in before]):
                for pool, some in ((one, [b for b in bases if not several(b[0])]), (two, [b for b in bases if several(b[0])])):
                    self.bases |= dict(zip(some, pool.map(self.make_base, some)))
            for pool, some in ((one, [r for r in rows if not several(r.group)]), (two, [r for r in rows if several(r.group)])):
                failures += [(row, found) for row, found in zip(some, pool.map(self.check, some)) if found]
        return failures


def problems_of_table(rows, used):
    keys = {row.key for row in rows}
    return [f"{key}: a used key without a row" for key in used if key not in keys] + \
        [f"{key}: a row, and configs/keys.md does not call it used" for key in sorted(keys - set(used))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ottava", type=Path)
    parser.add_argument("--nvtx-recorder", type=Path, help="tests/support/nvtx_recorder.cpp, where the program was built with NVTX")
    parser.add_argument("--without-change", action="store_true", help="leave the changes out; every row must fail")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose key or group has this in it")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an empty folder for what the runs write, which stays")
    arguments = parser.parse_args()
    used = used_keys()
    ROWS.extend(NVTX_ROWS if arguments.nvtx_recorder else WITHOUT_NVTX_ROWS)
    failures = problems_of_table(ROWS, used)
    if len(used) < 100:
        failures.append(f"configs/keys.md lists {len(used)} used keys; expected more than 100: has its form changed?")
    rows = [row for row in ROWS if re.search(arguments.only, f"{row.key} {row.group}")]
    if not rows:
        parser.error(f"--only {arguments.only}: no row has this")
    with tempfile.TemporaryDirectory() as folder:
        failed = Test(arguments, (arguments.keep or Path(folder)).resolve()).run(rows)
    if arguments.without_change:
        passed = [row for row in rows if row not in [failing for failing, _ in failed]]
        print("\n".join(f"{row.key} ({row.group}): passes without its change" for row in passed))
        print(f"{len(failed)} of {len(rows)} rows fail without their change")
        return 1 if passed else 0
    failures += [found for _, found in failed]
    if failures:
        print("\n".join(failures))
        print(f"{len(failed)} of {len(rows)} rows fail")
        return 1
    print(f"{len(used)} used keys, each changes what a run does, writes, plans or says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
