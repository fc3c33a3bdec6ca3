"""Runs programs for the stages: within their time, with their output, on a text that is the same everywhere."""

import dataclasses
import json
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


@dataclasses.dataclass
class Training:
    losses: dict  # by step
    grad_norms: dict
    output: str

    def curve(self):
        return list(self.losses.values())


def tail(text, lines=12):
    return "\n".join(text.strip().splitlines()[-lines:])


def distance(a, b):
    """Largest relative distance of two curves."""
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


class Check:
    def __init__(self, dry, programs, seconds):
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.programs = ROOT / programs
        self.python = os.environ.get("OTTAVA_TORCH_PYTHON", sys.executable)
        self.deadline = self.stage_deadline = time.monotonic() + seconds
        self.work = Path(tempfile.mkdtemp(prefix="ottava-gpu-check-"))
        self.text = self.work / "text.txt"
        self.text.write_text(made_up_text())
        # Algorithms of products that a run measured are there for the next one, and gone with the report.
        self.environment = {"XDG_CACHE_HOME": str(self.work / "cache"), **({} if dry else missing_library_folders(self.python))}
        self.curves = None  # of the CPU, made while the GPU does other things (parity.py)

    def program(self, name):
        for path in (self.programs / name, self.programs / "tests" / name):
            if path.exists():
                return str(path)
        raise Failed(f"{name} was not found in {self.programs}")

    def seconds_left(self):
        return min(self.stage_deadline, self.deadline) - time.monotonic()

    def run(self, command, env=None, seconds=None, until=None, check=True):
        """Output of a command, which ends with its whole group `seconds` from now, at `until`, or with the stage's time."""
        limit = self.seconds_left() if until is None else until - time.monotonic()
        limit = min(limit, seconds or limit)
        if limit <= 1:
            raise TimedOut("no time was left")
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self.environment, **(env or {})}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            out, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            raise TimedOut(f"not done after {limit:.0f} s: {' '.join(map(str, command))}\n{tail(out)}", out) from None
        if check and process.returncode != 0:
            raise Failed(f"exit code {process.returncode}: {' '.join(map(str, command))}\n{tail(out)}")
        return out

    def folder(self, name):
        return self.work / re.sub(r"\W+", "-", name)

    def train_command(self, folder, device, steps, extra):
        return ["train", "configs/debug.yaml", "--job.dump_folder", str(folder),
                "--training.dataset_path", str(self.text), "--training.seq_len", "256", "--training.local_batch_size", "2",
                "--training.global_batch_size", "2", "--training.steps", str(steps), "--training.device", device,
                "--attention.backend", "flash", "--metrics.log_freq", "1", "--metrics.enable_json_lines", "true",
                "--checkpoint.enable", "false", *extra]

    def train(self, name, device, steps, extra, launcher=(), env=None, until=None):
        """A run in a folder of its name, which may hold a checkpoint to go on from. `launcher`: what starts the command on ranks."""
        folder = self.folder(name)
        out = self.run([*(launcher or [self.program("ottava")]), *self.train_command(folder, device, steps, list(extra))], env=env, until=until)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses = {line["step"]: line["loss_metrics/global_avg_loss"] for line in lines}
        if list(losses) != list(range(1, steps + 1)):
            raise Failed(f"{name}: steps {list(losses)} of {steps} were logged")
        return Training(losses, {line["step"]: line["grad_norm"] for line in lines}, out)

    def copy_of(self, name, copy):
        """The folder of a run, for another one to go on from."""
        shutil.rmtree(self.folder(copy), ignore_errors=True)
        shutil.copytree(self.folder(name), self.folder(copy))
        return copy

    def compute_capability(self):
        """90 for 9.0; None where the CPU stands in for the GPU."""
        if self.dry:
            return None
        out = self.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
        return int(out.split()[0].replace(".", ""))

    def close(self):
        if self.curves:
            self.curves.close()
        shutil.rmtree(self.work, ignore_errors=True)
