"""Runs programs for the stages: within their time, with their output, on a text that is the same everywhere."""

import contextlib
import dataclasses
import functools
import glob
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cuda_libraries import missing_library_folders
from program_output import Reader

ROOT = Path(__file__).resolve().parent.parent.parent


class Failed(Exception):
    """Something is wrong: the stage is red. `data`: what was found all the same."""

    def __init__(self, text, data=None):
        super().__init__(text)
        self.data = data


class TimedOut(Failed):
    """A program did not end in its time."""

    def __init__(self, text, output=""):
        super().__init__(text)
        self.output = output


class Skipped(Exception):
    """Cannot be done on this machine, which is no fault of the program."""


class NotMeasured(Exception):
    """A stage came to its end without a single figure. `data`: what was found all the same."""

    def __init__(self, text, data=None):
        super().__init__(text)
        self.data = data


@dataclasses.dataclass
class Training:
    losses: dict  # by step
    grad_norms: dict
    output: str

    def curve(self):
        return list(self.losses.values())


def tail(text, lines=12):
    return "\n".join(text.strip().splitlines()[-lines:])[-4000:]


def json_lines(output):
    """Of a program that prints other things too, and may have been ended in the middle of a line."""
    out = []
    for line in output.splitlines():
        try:
            if line.startswith("{"):
                out.append(json.loads(line))
        except ValueError:
            pass
    return out


def distance(a, b):
    """Largest relative distance of two curves; infinite where one is no number."""
    if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in [*a, *b]):
        return math.inf
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def made_up_text():
    """English-like, with rules to learn: the same bytes everywhere."""
    rng = random.Random(1)
    words = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(1, 3))) for _ in range(300)]
    follows = {w: rng.sample(words, 6) for w in words}
    lines, word = [], words[0]
    for _ in range(6000):
        line = []
        for _ in range(rng.randint(6, 14)):
            word = rng.choice(follows[word])
            line.append(word)
        lines.append(" ".join(line).capitalize() + ".")
    return "\n".join(lines)


# A group that can be ended whole; where Python can, in the session of the caller, who ends what is left if this is killed.
OWN_GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


def opened(devices):
    """Held open, GPUs keep their driver's state between programs that come and go: each that has lost it takes seconds to start."""
    out = []
    for device in devices:
        with contextlib.suppress(OSError):  # another user's
            out.append(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    return out


class Check:
    def __init__(self, dry, programs, seconds, log=None):
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.programs = ROOT / programs
        self.python = os.environ.get("OTTAVA_TORCH_PYTHON", sys.executable)
        self.deadline = self.stage_deadline = time.monotonic() + seconds
        self.log = log  # of all that programs say (program_output.py)
        self.drivers = [] if dry else opened(sorted(glob.glob("/dev/nvidia[0-9]*")))
        self.work = Path(tempfile.mkdtemp(prefix="ottava-gpu-check-"))
        self.text = self.work / "text.txt"
        self.text.write_text(made_up_text())
        # Algorithms of products that a run measured are there for the next one, and gone with the report.
        self.environment = {"XDG_CACHE_HOME": str(self.work / "cache"), **({} if dry else missing_library_folders(self.python))}
        # All stages but `nccl` check one GPU: with several, "two ranks share one" would take two.
        self.gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        if not dry:
            self.environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        self.curves = None  # of the CPU, made while the GPU does other things (parity.py)
        self.so_far = lambda text, data: None  # a stage may say what it has: in the report however the call ends
        self.graphs_fault = ""  # why runs go without CUDA graphs (first_training.py)
        self.running = set()

    def program(self, name):
        for path in (self.programs / name, self.programs / "tests" / name):
            if path.exists():
                return str(path)
        raise Failed(f"{name} was not found in {self.programs}")

    def seconds_left(self):
        return min(self.stage_deadline, self.deadline) - time.monotonic()

    def execute(self, command, env=None, seconds=None, until=None, watched=None):
        """(exit code, output) of a command, which ends with its whole group `seconds` from now, at `until`, with the stage's time, or,
        given `watched` (a file, seconds), when it has added nothing to the file for so long."""
        limit = self.seconds_left() if until is None else until - time.monotonic()
        limit = min(limit, seconds or limit, self.deadline - time.monotonic())
        if limit <= 1:
            raise TimedOut("no time was left")
        began = time.monotonic()
        try:
            process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self.environment, **(env or {})}, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **OWN_GROUP)
        except OSError as e:
            raise Failed(f"{command[0]} cannot be started: {e}") from None
        self.running.add(process)
        reader, ended = Reader(process.stdout), None
        try:
            self.wait(process, limit, watched)
            ended = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired as e:
            ended = f"not done after {limit:.0f} s" if e.timeout == limit else f"nothing new for {e.timeout:.0f} s"
        finally:
            if process.poll() is None:
                self.kill(process)
            self.running.discard(process)
        out = reader.text(seconds=3)
        if self.log:
            self.log.add(command, time.monotonic() - began, ended, out)
        if not ended.startswith("exit"):
            raise TimedOut(f"{ended}: {' '.join(map(str, command))}\n{tail(out)}", out)
        return process.returncode, out

    def start(self, command, file):
        """A program that runs beside others, and writes to the file, until end_one()."""
        try:
            with open(file, "wb") as out:
                process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=out,
                                           stderr=subprocess.DEVNULL, **OWN_GROUP)
        except OSError as e:
            raise Failed(f"{command[0]} cannot be started: {e}") from None
        self.running.add(process)
        return process

    def end_one(self, process):
        self.kill(process)
        self.running.discard(process)

    def wait(self, process, limit, watched):
        if not watched:
            process.wait(limit)
            return
        file, patience = watched
        end, size, since = time.monotonic() + limit, -1, time.monotonic()
        while process.poll() is None:
            now, grown = time.monotonic(), file.stat().st_size if file.exists() else 0
            if grown != size:
                size, since = grown, now
            if now >= end:
                raise subprocess.TimeoutExpired(process.args, limit)
            if now - since >= patience:
                raise subprocess.TimeoutExpired(process.args, patience)
            time.sleep(0.05)

    def kill(self, process):
        """With its group. One that a driver does not let go is left to itself."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass  # all have ended
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            pass

    def run(self, command, env=None, seconds=None, until=None, check=True):
        """The output alone; with `check`, of a command that ended well."""
        code, out = self.execute(command, env, seconds, until)
        if check and code != 0:
            raise Failed(f"exit code {code}: {' '.join(map(str, command))}\n{tail(out)}")
        return out

    def folder(self, name):
        return self.work / re.sub(r"\W+", "-", name)

    def without_graphs(self, device, extra=()):
        """Options of a run where CUDA graphs do not work."""
        return ["--training.cuda_graphs", "off"] if self.graphs_fault and device == "cuda" and "--training.cuda_graphs" not in extra else []

    def train_command(self, folder, device, steps, extra):
        return ["train", "configs/debug.yaml", "--job.dump_folder", str(folder),
                "--training.dataset_path", str(self.text), "--training.seq_len", "256", "--training.local_batch_size", "2",
                "--training.global_batch_size", "2", "--training.steps", str(steps), "--training.device", device,
                "--attention.backend", "flash", "--metrics.log_freq", "1", "--metrics.enable_json_lines", "true",
                "--checkpoint.enable", "false", *extra, *self.without_graphs(device, extra)]

    def train(self, name, device, steps, extra, launcher=(), env=None, until=None, seconds=None, first=1):
        """A run in a folder of its name, which may hold a checkpoint to go on from; `first` is its first step. `launcher`: what starts
        the command on ranks."""
        folder = self.folder(name)
        out = self.run([*(launcher or [self.program("ottava")]), *self.train_command(folder, device, steps, list(extra))], env=env,
                       until=until, seconds=seconds)
        # A run that only looks leaves the metrics of the run in its folder as they are.
        own = folder / "load_only" if "--checkpoint.load_only" in extra else folder
        try:
            lines = [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]
            losses = {line["step"]: line["loss_metrics/global_avg_loss"] for line in lines}
            norms = {line["step"]: line["grad_norm"] for line in lines}
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise Failed(f"{name}: its metrics.jsonl is none ({e!r})\n{tail(out)}") from None
        if list(losses) != list(range(first, steps + 1)):
            raise Failed(f"{name}: steps {list(losses)} of {first} to {steps} were logged\n{tail(out)}")
        return Training(losses, norms, out)

    def copy_of(self, name, copy):
        """The folder of a run, for another one to go on from."""
        shutil.rmtree(self.folder(copy), ignore_errors=True)
        shutil.copytree(self.folder(name), self.folder(copy))
        return copy

    @functools.cache
    def asked_of_gpu(self, what):
        """nvidia-smi's answer; empty where it gives none."""
        if self.dry:
            return ""
        try:
            out = self.run(["nvidia-smi", "-i", self.gpu, f"--query-gpu={what}", "--format=csv,noheader,nounits"], until=self.deadline, seconds=15)
        except Failed:
            return ""
        return out.strip().split("\n")[0].strip()

    @functools.cache
    def gpus(self):
        """All that this process may use, as CUDA_VISIBLE_DEVICES names them; the one that is checked comes first."""
        if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
            return [gpu for gpu in named.split(",") if gpu]
        try:
            out = self.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], until=self.deadline, seconds=15)
        except Failed:
            return [self.gpu]
        return [line.strip() for line in out.splitlines() if line.strip().isdigit()] or [self.gpu]

    def compute_capability(self):
        """90 for 9.0; None where the CPU stands in for the GPU, or nothing says it."""
        answer = self.asked_of_gpu("compute_cap").replace(".", "")
        return int(answer) if answer.isdigit() else None

    def gpu_gib(self):
        """All of the GPU's memory; None where the CPU stands in for it, or nothing says it."""
        answer = self.asked_of_gpu("memory.total")
        return int(answer) / 1024 if answer.isdigit() else None

    @functools.cache
    def has_torch(self):
        """None: nothing says it."""
        find = "import importlib.util as u; raise SystemExit(7 * (u.find_spec('torch') is None))"
        try:
            return {0: True, 7: False}.get(self.execute([self.python, "-c", find], until=self.deadline, seconds=30)[0])
        except Failed:
            return None

    def end(self):
        """Nothing starts any more, and what runs ends."""
        self.deadline = 0
        self.end_running()

    def end_running(self):
        for process in list(self.running):
            self.kill(process)

    def close(self):
        self.end_running()
        if self.curves:
            self.curves.close()
        while self.drivers:
            os.close(self.drivers.pop())
        shutil.rmtree(self.work, ignore_errors=True)
