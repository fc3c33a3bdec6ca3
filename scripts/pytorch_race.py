#!/usr/bin/env python3
"""Ottava against PyTorch on this machine's CPU: the shapes of configs/debug.yaml and configs/llama_60m.yaml in BF16, eager
and compiled, runs taking turns so that a busy hour meets all alike. Writes scripts/pytorch_race.md, which scripts/results.sh
puts into its page. Leave the machine alone meanwhile: minutes, less with --model and --rounds 1.

    scripts/pytorch_race.py --python /path/to/venv/bin/python       # one that has torch
    scripts/pytorch_race.py --python ... --model 60M --rounds 1     # the other model's rows stay
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "scripts/pytorch_race.md"
HEADER = "| model | runs of each, in turns | Ottava | PyTorch eager | ratio | torch.compile | ratio | torch | threads |"
MODELS = {  # PyTorch's run, and Ottava's configuration with the same batch
    "60M": ("60M:8:1024:4:bf16", ["configs/llama_60m.yaml", "--training.local_batch_size", "4", "--training.global_batch_size", "4"]),
    "debug": ("debugmodel:6:2048:2:bf16", ["configs/debug.yaml", "--training.local_batch_size", "2"]),
}


def output(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def ottava(a, config):
    with tempfile.TemporaryDirectory() as folder:
        text = output(["build/ottava", "bench", "train", *config, "--steps", str(a.steps), "--training.dataset_path", a.text,
                       "--job.dump_folder", folder])
    found = re.search(r"^step: median ([0-9.]+) s", text, re.MULTILINE)
    if not found:
        sys.exit(f"ottava bench printed no median:\n{text[-2000:]}")
    return float(found.group(1))


def pytorch(a, run, how):
    """--compile model compiles the model and its loss as a whole."""
    line = json.loads(output([a.python, "scripts/reference/bench_pytorch.py", "--device", "cpu", "--compile", how, "--steps",
                              str(a.steps), "--run", run]).splitlines()[-1])
    if "error" in line:
        sys.exit(f"PyTorch, {run}, --compile {how}: {line['error']}")
    return line["seconds_per_step"], line["torch"]


def row(a, name):
    run, config = MODELS[name]
    ours, eager, compiled = [], [], []
    for _ in range(a.rounds):
        ours.append(ottava(a, config))
        seconds, version = pytorch(a, run, "off")
        eager.append(seconds)
        ours.append(ottava(a, config))
        compiled.append(pytorch(a, run, "model")[0])
    best = statistics.median(ours)
    cells = lambda times: f"{statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f}) | {statistics.median(times) / best:.2f}"
    threads = os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))
    return (f"| {name} | {2 * a.rounds}, {a.rounds}, {a.rounds} | {best:.3f} s ({min(ours):.3f} to {max(ours):.3f}) | {cells(eager)} | "
            f"{cells(compiled)} | {version} | {threads} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    p.add_argument("--model", choices=MODELS, action="append")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=3, help="of each run, after two that are not counted")
    p.add_argument("--text", default="outputs/sample/sample.txt", help="scripts/sample_text.sh makes it")
    a = p.parse_args()
    rows = {}
    if PAGE.exists():
        rows = {line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    for name in a.model or MODELS:
        rows[name] = row(a, name)
        print(rows[name], flush=True)
        PAGE.write_text("# Ottava against PyTorch on a CPU\n\nMade by `scripts/pytorch_race.py`. BF16 products of FP32 weights, fused AdamW, same shapes and batch; median step times of the\n"
                        "runs, fastest and slowest run in brackets, and how many times longer PyTorch took.\n\n"
                        + HEADER + "\n" + "|---" * (HEADER.count("|") - 1) + "|\n"
                        + "".join(rows[name] + "\n" for name in MODELS if name in rows))


if __name__ == "__main__":
    main()
