"""Finds the modules of scripts/gpu_check, and stands in for programs that only a GPU would answer."""

import importlib.util
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/gpu_check"
sys.path.insert(0, str(SCRIPT))

from check import Failed, Training

spec = importlib.util.spec_from_file_location("gpu_check_main", SCRIPT / "__main__.py")
main = importlib.util.module_from_spec(spec)
spec.loader.exec_module(main)


BENCH = """[ottava] INFO - Attention: cudnn (forward and backward of a layer: flash 9.1 ms, cudnn 4.2 ms)
[ottava] INFO - Precision: compute bf16, masters f32, moments bf16, gradient sums f32; 8 of 32 blocks are recomputed
attention: cudnn; loss: 2048 tokens at a time
CUDA graphs: on
step: median 0.405 s, fastest 0.404 s, slowest 0.409 s of 3
tokens/s: 20227 (8192 tokens per step)
model FLOPs: 512.3 TFLOP/s on each device (6 (N - N of the embedding) + 12 L H D T per token)
utilization: 49.2% (FLOPs as computed / time / GEMM peak)
memory: plan 94.026 GiB; 95.120 GiB in use on the GPU, 0.612 GiB of them before the plan's block
"""


class Bench:
    """A Check whose programs answer at once; `answers` maps words of the command to an output or an error."""

    dry, device, python, text, gpu, work = False, "cuda", "python3", "text.txt", "0", Path("/nowhere")

    def __init__(self, answers, gib=140.0, torch=True):
        self.answers, self.gib, self.torch = answers, gib, torch
        self.noted = []

    def so_far(self, text, data):
        self.noted.append(data)

    def start(self, command, file):
        raise Failed("nvidia-smi cannot be started")

    def program(self, name):
        return name

    def folder(self, name):
        return Path("/nowhere") / name

    def seconds_left(self):
        return 100

    def gpu_gib(self):
        return self.gib

    def compute_capability(self):
        return None

    def has_torch(self):
        return self.torch

    def without_graphs(self, device, extra=()):
        return []

    def run(self, command, **_):
        line = " ".join(map(str, command))
        answer = next((answer for words, answer in self.answers if all(w in line for w in words)), "")
        if isinstance(answer, Exception):
            raise answer
        return answer


class Trainings:
    """A Check whose trainings end at once, with the losses that `changed` alters by the run's name."""

    dry, device, graphs_fault = False, "cuda", ""

    def __init__(self, changed=None, said="CUDA graphs: on: step 1 runs as it is"):
        self.changed, self.said, self.commands = changed or {}, said, {}

    def copy_of(self, name, copy):
        return copy

    def train(self, name, device, steps, extra, first=1):
        self.commands[name] = extra
        losses = {step: 7 - step / 10 for step in range(first, steps + 1)} | self.changed.get(name, {})
        return Training(losses, {step: 1.0 for step in losses}, self.said)
