#!/usr/bin/env python3
"""The plan of 8B at 32k to 262k tokens on 8 H200, sequences shared by context parallel ranks, as a table beside TorchTitan's runs of the same
layouts. Printed; scripts/results.md holds it.
    scripts/long_sequences.py [--ottava build/ottava]
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

# TorchTitan's, tokens per second and GPU, by context parallel degree.
PUBLISHED = {32768: (1, 3890), 65536: (2, 2540), 131072: (4, 1071), 262144: (8, 548)}
PRECISIONS = {"bf16": [], "FP8": ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.enable_fsdp_float8_all_gather", "true",
                                  "--quantize.linear.float8.filter_fqns", "output"]}


def plan(ottava, file, sequence, degree, more):
    subprocess.run([ottava, "plan", "configs/llama3_8b.yaml", "--world-size", "8", "--device", "h200_sxm", "--json", file,
                    "--training.seq_len", str(sequence), "--parallelism.context_parallel_degree", str(degree),
                    "--training.local_batch_size", "1", "--training.global_batch_size", "-1", "--activation_checkpoint.mode", "full", *more],
                   check=True, stdout=subprocess.DEVNULL)
    whole = json.loads(pathlib.Path(file).read_text())
    return whole, whole["layouts"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ottava", default="build/ottava")
    ottava = parser.parse_args().ottava
    print("Planned by the device's table, not measured; one sequence in each group of cp ranks, every block recomputed, attention by cuDNN.")
    print("TorchTitan's: benchmarks/llama3_h100_202412, FP8, every block recomputed, H100 of 96 GB held to 500 W. Published PyTorch runs reach")
    print("55 to 80% of the planned tokens/s.\n")
    print("| tokens of a sequence | cp | products | memory | sent by a rank | transfers: hidden, exposed | step | tokens/s per GPU | TorchTitan, H100 |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for sequence, (degree, theirs) in PUBLISHED.items():
            for name, more in PRECISIONS.items():
                whole, step = plan(ottava, f"{folder}/plan.json", sequence, degree, more)
                time = step["time"]
                rate, low, high = (whole["tokens_per_step"] / whole["ranks"] / time[key] for key in ("median", "high", "low"))
                print(f"| {sequence:,} | {degree} | {name} | {step['memory_gib']:.1f} GiB | {step['traffic']['sent_bytes'] / 2**30:.1f} GiB | "
                      f"{time['transfers'] - time['exposed']:.3f} s, {time['exposed']:.3f} s | {time['median']:.1f} s | "
                      f"{rate:,.0f} ({low:,.0f} to {high:,.0f}) | {f'{theirs:,}' if name == 'FP8' else ''} |")


main()
