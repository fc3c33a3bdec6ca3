#!/usr/bin/env python3
"""Ottava against PyTorch on this machine's CPU: the shapes of configs/debug.yaml and configs/llama_60m.yaml in BF16, eager
and compiled. Runs take turns, Ottava's on both sides of PyTorch's, so that a busy hour meets all alike. Writes
scripts/pytorch_race.md and puts it into scripts/results.md, as scripts/results.sh puts it into outputs/results.md. Leave the machine alone
meanwhile: minutes, less with --model, --against and --rounds 1.

    scripts/pytorch_race.py --python /path/to/venv/bin/python       # one that has torch
    scripts/pytorch_race.py --python ... --model 60M --against eager --rounds 1     # the other rows stay
    scripts/pytorch_race.py --python ... --model "60M fp32" --model "debug fp32"    # for a CPU without bf16 instructions, where
                                                                                    # PyTorch in BF16 takes many times as long as in FP32
"""

import argparse
import itertools
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
RESULTS = ROOT / "scripts/results.md"
HEADER = ("| model | PyTorch | runs, in turns | Ottava | PyTorch | ratio | goal | GEMM peak, peak of multiply-adds | step, of the GEMM peak | "
          "attention, of the GEMM peak | step, of its ceiling | torch | threads |")
GOALS = {("60M", "eager"): 1.8, ("60M", "compiled"): 1.7, ("debug", "eager"): 3.2}
MODELS = {  # PyTorch's run, the head dimension, and Ottava's configuration with the same batch
    "60M": ("60M:8:1024:4:bf16", 64, ["configs/llama_60m.yaml", "--training.local_batch_size", "4", "--training.global_batch_size", "4"]),
    "debug": ("debugmodel:6:2048:2:bf16", 16, ["configs/debug.yaml", "--training.local_batch_size", "2"]),
}
IN_BF16 = tuple(MODELS)
for name, (run, head_dim, config) in tuple(MODELS.items()):
    MODELS[f"{name} fp32"] = (run.replace("bf16", "fp32"), head_dim, [*config, "--training.mixed_precision_param", "float32"])


def figures_of(name):
    peak = "fp32" if name not in IN_BF16 else "bf16"
    return [r"^step: median ([0-9.]+) s", rf"GEMM peaks .*\b{peak} ([0-9.]+) TFLOP/s", r"^peak of f32 .*: ([0-9.]+) TFLOP/s",
            r"^utilization: ([0-9.]+)%", r"^attention\.core .* ([0-9.]+)%$", r"^operations, in a step of ([0-9.]+) s"]


def output(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def attention_ceiling(head_dim, products, in_bf16):
    """Of the GEMM peak, forward (2 products) and backward (5) together: core/ops/attention/attention_cpu.cpp. Softmax goes at the rate
    of AVX-512's multiply-adds, of which the GEMM peak is so many times (`products`): 1 without instructions for pairs of bf16."""
    softmax, gradient = (5, 3) if in_bf16 and products >= 1.5 else (4.5, 1.8) if in_bf16 else (6, 2.4)
    return 7 / (2 * (head_dim + softmax * products) / head_dim + 5 * (head_dim + gradient * products) / head_dim)


def ceiling_of(text, head_dim, products, in_bf16):
    """Milliseconds of a step whose products run at the GEMM peak, its attention at its own ceiling, the rest as it does."""
    total = 0
    for label, ms, utilization in re.findall(r"^(\S+) +([0-9.]+) +-?[0-9.]+% +[0-9.]+ +([0-9.]+)%$", text, re.MULTILINE):
        part = float(utilization) / 100
        at_most = attention_ceiling(head_dim, products, in_bf16) if label == "attention.core" else 1
        total += float(ms) * (part / at_most if part else 1)
    return total


def ottava(a, name):
    """Figures of a run, in the order of figures_of()."""
    _, head_dim, config = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        text = output(["build/ottava", "bench", "train", *config, "--steps", str(a.steps), "--training.dataset_path", a.text,
                       "--job.dump_folder", folder])
    patterns = figures_of(name)
    found = [re.search(pattern, text, re.MULTILINE) for pattern in patterns]
    if not all(found):
        sys.exit(f"ottava bench printed no figure for {patterns[found.index(None)]}:\n{text[-2000:]}")
    figures = [float(f.group(1)) for f in found]
    return [*figures, 100 * ceiling_of(text, head_dim, max(figures[1] / figures[2], 1), name in IN_BF16) / 1e3 / figures[-1]]


def pytorch(a, run, opponent):
    """`compiled`: the model and its loss as a whole."""
    how = {"eager": "off", "compiled": "model"}[opponent]
    line = json.loads(output([a.python, "scripts/reference/bench_pytorch.py", "--device", "cpu", "--compile", how, "--steps",
                              str(a.steps), "--run", run]).splitlines()[-1])
    if "error" in line:
        sys.exit(f"PyTorch, {run}, {opponent}: {line['error']}")
    return line["seconds_per_step"], line["torch"]


def row(a, name, opponent):
    run = MODELS[name][0]
    ours, theirs = [ottava(a, name)], []
    for _ in range(a.rounds):
        seconds, version = pytorch(a, run, opponent)
        theirs.append(seconds)
        ours.append(ottava(a, name))
    seconds, gemm, multiply_adds, step, attention, _, of_ceiling = zip(*ours)
    ratio = statistics.median(theirs) / statistics.median(seconds)
    times = lambda t: f"{statistics.median(t):.3f} s ({min(t):.3f} to {max(t):.3f})"
    goal = GOALS.get((name, opponent))
    verdict = "" if goal is None else f"{goal}: {'met' if ratio >= goal else 'not met'}"
    threads = os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))
    return (f"| {name} | {opponent} | {len(ours)}, {len(theirs)} | {times(seconds)} | {times(theirs)} | {ratio:.2f} | {verdict} | "
            f"{max(gemm):.3f}, {max(multiply_adds):.3f} TFLOP/s | {statistics.median(step):.1f}% | {statistics.median(attention):.1f}% | "
            f"{statistics.median(of_ceiling):.1f}% | {version} | {threads} |")


def put_into_results():
    """The page as the section of results.md that results.sh would make of it, with the remarks that stand there below
    the table, of which nothing here knows whether they still hold."""
    section = "## Beside PyTorch\n\n" + PAGE.read_text().split("\n", 2)[2]
    parts = re.split(r"^(?=## )", RESULTS.read_text(), flags=re.MULTILINE)
    old = [i for i, part in enumerate(parts) if part.startswith("## Beside PyTorch")]
    if old:
        remarks = re.split(r"^\|.*\n", parts[old[0]], flags=re.MULTILINE)[-1].strip("\n")
        section += f"\n{remarks}\n" if remarks else ""
    before = old or [i for i, part in enumerate(parts) if part.startswith("## The whole life")] or [len(parts)]
    parts[before[0]:before[0] + len(old)] = [section + "\n"]
    RESULTS.write_text("".join(parts))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    p.add_argument("--model", choices=MODELS, action="append")
    p.add_argument("--against", choices=("eager", "compiled"), action="append")
    p.add_argument("--rounds", type=int, default=2, help="runs of PyTorch, each between two of Ottava")
    p.add_argument("--steps", type=int, default=3, help="of each run, after two that are not counted")
    p.add_argument("--text", default="outputs/sample/sample.txt", help="scripts/sample_text.sh makes it")
    a = p.parse_args()
    rows = {}
    if PAGE.exists():
        rows = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    for key in itertools.product(a.model or IN_BF16, a.against or ("eager", "compiled")):
        rows[key] = row(a, *key)
        print(rows[key], flush=True)
        PAGE.write_text("# Ottava against PyTorch on a CPU\n\nMade by `scripts/pytorch_race.py`. BF16 products of FP32 weights (in rows that say fp32, all of it in FP32), fused AdamW, same shapes and batch; median step times of the\n"
                        "runs, fastest and slowest run in brackets, and how many times longer PyTorch took. The ceiling of a step has its products\n"
                        "at the GEMM peak, its attention at 78% and 90% of it at head dimension 16, 93% and 97% at 64 (forward, backward:\n"
                        "core/ops/attention/attention_cpu.cpp, which also has those of f32 and of bf16 multiplied in pairs), and everything else as it is.\n\n"
                        + HEADER + "\n" + "|---" * (HEADER.count("|") - 1) + "|\n"
                        + "".join(rows[k] + "\n" for k in itertools.product(MODELS, ("eager", "compiled")) if k in rows))
        put_into_results()


if __name__ == "__main__":
    main()
