#!/usr/bin/env python3
"""Llama 3 405B on 512 GPUs of 80 GB as `ottava plan` has it, in several layouts, beside what TorchTitan published for
512 H100 (its benchmarks folder): a Markdown table. Needs no GPU.
   scripts/plan_405b.py [OTTAVA]"""
import json, subprocess, sys, tempfile, time

OTTAVA = sys.argv[1] if len(sys.argv) > 1 else "build/ottava"
PIPELINE = {"parallelism.pipeline_parallel_degree": 8, "training.global_batch_size": 256, "training.local_batch_size": 32,
            "quantize.linear.float8.enable_fsdp_float8_all_gather": "false"}
BLOCKS = {"parallelism.enable_async_tensor_parallel": "true"}
LONG = {"parallelism.context_parallel_degree": 8, "training.seq_len": 131072, "training.local_batch_size": 16,
        "training.global_batch_size": 16}
LAYOUTS = [  # name, keys, published tokens/s of a GPU and GiB
    ("FSDP 64 x TP 8, the file as it is", {}, "-"),
    ("the same, TP in blocks", BLOCKS, "-"),
    ("PP 8 x FSDP 8 x TP 8, 1F1B, TP in blocks", {**PIPELINE, **BLOCKS}, "100 (82.5 GiB)"),
    ("the same, Interleaved1F1B",
     {**PIPELINE, **BLOCKS, "parallelism.pipeline_parallel_schedule": "Interleaved1F1B"}, "128 (72.7 GiB)"),
    ("the same, ZBVZeroBubble", {**PIPELINE, **BLOCKS, "parallelism.pipeline_parallel_schedule": "ZBVZeroBubble"}, "-"),
    ("PP 8 x CP 8 x TP 8, 131,072 tokens, 1F1B", {**PIPELINE, **BLOCKS, **LONG}, "31"),
]


def plan(keys):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        options = [text for key, value in keys.items() for text in (f"--{key}", str(value))]
        begin = time.time()
        done = subprocess.run([OTTAVA, "plan", "configs/llama3_405b.yaml", "--world-size", "512", "--device", "h100_sxm",
                               "--json", file.name, *options], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr or done.stdout)
        report = json.load(open(file.name))
        return report, report["layouts"][0], time.time() - begin


print("| layout | GiB | tokens/s of a GPU | sent GiB | transfers hidden | exposed | computes nothing | TorchTitan |")
print("|---|---|---|---|---|---|---|---|")
for name, keys, published in LAYOUTS:
    report, row, _ = plan(keys)
    t = row["time"]
    between = {axis: part for axis, part in t["axes"].items() if not axis.startswith("pp ")}
    seconds, exposed = (sum(part[what] for part in between.values()) for what in ("seconds", "exposed"))
    rate = report["tokens_per_step"] / report["ranks"] / t["median"]
    nothing = t["idle_share"] or t["exposed"] / t["median"]
    print(f"| {name} | {row['memory_gib']:.1f} | {rate:.0f} | {row['traffic']['sent_bytes'] / 2**30:.0f} "
          f"| {100 * max(0, seconds - exposed) / t['median']:.1f}% of the step | {100 * exposed / t['median']:.1f}% "
          f"| {100 * nothing:.0f}% | {published} |")
