#!/usr/bin/env python3
"""plan_accuracy.py [--program build/ottava] [--text TEXT] [--steps 3]: how far planned step times of this CPU are from measured ones.

Operations of one step of one model on one rank are timed (`ottava bench kernels --json`); with these `ottava plan --calibration`
predicts other sequences, another model, recomputation and two ranks, and `ottava bench train` measures them. Prints a section of
scripts/results.md. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ["configs/llama_60m.yaml", "--training.global_batch_size", "-1"]
ONE_THREAD = ["--training.threads", "1", "--training.device", "cpu"]
CALIBRATION = [*MODEL, "--training.local_batch_size", "2"]
# What is predicted: name, ranks, configuration and keys.
CASES = [
    ("60M, 2 sequences (calibrated on)", 1, [*CALIBRATION]),
    ("60M, 4 sequences", 1, [*MODEL, "--training.local_batch_size", "4"]),
    ("60M, 4 sequences of 512", 1, [*MODEL, "--training.local_batch_size", "4", "--training.seq_len", "512"]),
    ("60M, everything recomputed", 1, [*MODEL, "--training.local_batch_size", "2", "--activation_checkpoint.mode", "full"]),
    ("60M, two micro-batches", 1, [*MODEL[:2], "4", "--training.local_batch_size", "2"]),
    ("dim 512, 6 layers", 1, [*MODEL, "--training.local_batch_size", "4", "--model.dim", "512", "--model.n_layers", "6", "--model.n_heads", "8",
                              "--model.n_kv_heads", "8", "--model.ffn_dim", "1408"]),
    ("60M, 2 ranks, dp_shard 2", 2, [*MODEL, "--training.local_batch_size", "2"]),
    ("60M, 2 ranks, tp 2", 2, [*MODEL, "--training.local_batch_size", "2", "--parallelism.tensor_parallel_degree", "2"]),
]


def run(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/ottava")
    parser.add_argument("--text", default="outputs/sample/sample.txt")
    parser.add_argument("--steps", default="3")
    parser.add_argument("--seconds", default="20", help="of calibration")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calibration, plan = Path(folder, "kernels.json"), Path(folder, "plan.json")
        run([a.program, "bench", "kernels", *CALIBRATION, *ONE_THREAD, "--seconds", a.seconds, "--json", calibration])
        # Runs compute in the ways that calibration decided, as plans do by themselves.
        decided = [text for key, value in (json.loads(calibration.read_text())["decisions"] or {}).items() for text in (f"--{key}", value)]
        print("| step | measured s | planned s | difference | by measured, interpolated, tabled operations |")
        print("|---|---|---|---|---|")
        errors = []
        for name, ranks, keys in CASES:
            run([a.program, "plan", *keys, *ONE_THREAD, "--world-size", str(ranks), "--calibration", calibration, "--json", plan])
            time = json.loads(plan.read_text())["layouts"][0]["time"]
            launch = ["launch", "-n", str(ranks), "--only-rank", "0", "--"] if ranks > 1 else []
            out = run([a.program, *launch, "bench", "train", *keys, *ONE_THREAD, *decided, "--steps", a.steps, "--training.dataset_path", a.text,
                       "--job.dump_folder", Path(folder, "run"), "--checkpoint.enable", "false"])
            measured = float(re.search(r"median ([\d.]+) s", out).group(1))
            error = time["median"] / measured - 1
            if "calibrated" not in name:
                errors.append(abs(error))
            shares = ", ".join(f"{100 * time['sources'][k] / time['compute']:.0f}%" for k in ("measured", "interpolated", "table"))
            print(f"| {name} | {measured:.3f} | {time['median']:.3f} | {100 * error:+.1f}% | {shares} |", flush=True)
        print(f"\nMean error of those that were not calibrated on: {100 * statistics.mean(errors):.1f}%.")


if __name__ == "__main__":
    main()
