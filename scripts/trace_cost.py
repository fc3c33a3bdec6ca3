#!/usr/bin/env python3
"""trace_cost.py [--program build/ottava] [--text TEXT] [--steps 60]: what tracing a step costs it.

One run of the 60M model traces every fourth step; its file is written beside the one that follows. Prints a section of
scripts/results.md: the median of each of the four. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EVERY = 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/ottava")
    parser.add_argument("--text", default="outputs/sample/sample.txt")
    parser.add_argument("--steps", type=int, default=60)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([a.program, "train", "configs/llama_60m.yaml", "--training.steps", str(a.steps), "--training.dataset_path", a.text,
                               "--training.local_batch_size", "1", "--training.global_batch_size", "1", "--checkpoint.enable", "false",
                               "--validation.enable", "false", "--metrics.log_freq", "1", "--job.dump_folder", folder,
                               "--profiling.enable_profiling", "true", "--profiling.profile_freq", str(EVERY),
                               "--profiling.profiler_warmup", "0", "--profiling.profiler_active", "1"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr[-500:])
        seconds = {}
        for line in Path(folder, "metrics.jsonl").read_text().splitlines():
            m = json.loads(line)
            if m["step"] > EVERY:
                seconds.setdefault(m["step"] % EVERY, []).append(m["time_metrics/end_to_end(s)"])
        size = next(Path(folder, "profile_traces").rglob("*.json.gz")).stat().st_size
    median = {k: statistics.median(v) for k, v in seconds.items()}
    plain = statistics.median(seconds[2] + seconds[3])
    spread = abs(median[2] / median[3] - 1)
    print("| step | median s | against a step without |")
    print("|---|---|---|")
    for name, k in (("traced", 0), ("the next, while the file is written", 1), ("without", 2), ("without", 3)):
        print(f"| {name} | {median[k]:.4f} | {100 * (median[k] / plain - 1):+.2f}% |")
    share = (median[0] + median[1] - 2 * plain) / (10 * plain)
    print(f"\nA file of {size / 1024:.0f} KiB. At one traced step of ten (the default): {100 * share:+.2f}% of the run; the two without differ by "
          f"{100 * spread:.2f}%.")


if __name__ == "__main__":
    main()
