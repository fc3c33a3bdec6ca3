#!/usr/bin/env python3
"""Llama 3 405B on 512 H100 of 96 GB as `ottava plan` has it, in several layouts, beside what TorchTitan published for
512 H100 (its benchmarks folder): a Markdown table. Needs no GPU.
   scripts/plan_405b.py [OTTAVA]"""
import json, subprocess, sys, tempfile, time

OTTAVA = sys.argv[1] if len(sys.argv) > 1 else "build/ottava"
DEVICE = "tests/apps/predict/h100_96gb.yaml"  # the GPU of the published runs
BLOCKS = {"parallelism.enable_async_tensor_parallel": "true"}
PIPELINE = {**BLOCKS, "parallelism.pipeline_parallel_degree": 8, "quantize.linear.float8.auto": "false",
            "quantize.linear.float8.enable_fsdp_float8_all_gather": "false", "quantize.linear.float8.enable_tp_float8_all_gather": "true"}


def pipeline(schedule, micro_batch):
    return {**PIPELINE, "training.global_batch_size": 256, "training.local_batch_size": 32,
            "parallelism.pipeline_parallel_schedule": schedule, "parallelism.pipeline_parallel_microbatch_size": micro_batch}


def long(cp):
    return {**PIPELINE, "parallelism.context_parallel_degree": cp, "training.seq_len": 32768 * cp, "training.local_batch_size": 8,
            "training.global_batch_size": 64 // cp}


LAYOUTS = [  # name, keys, published tokens/s of a GPU and GiB; micro-batches are those that TorchTitan had by default
    ("FSDP 64 x TP 8, the file as it is", {}, "-"),
    ("the same, TP in blocks", BLOCKS, "-"),
    ("PP 8 x FSDP 8 x TP 8, TP in blocks, 1F1B, 8 micro-batches of 4", pipeline("1F1B", 4), "100 (82.5 GiB)"),
    ("the same, Interleaved1F1B", pipeline("Interleaved1F1B", 4), "128 (72.7 GiB)"),
    ("the same, ZBVZeroBubble", pipeline("ZBVZeroBubble", 4), "-"),
    ("the same, 32 micro-batches of 1", pipeline("ZBVZeroBubble", 1), "-"),
    ("PP 8 x FSDP 8 x TP 8, 32,768 tokens, 1F1B", long(1), "76 (75.3 GiB)"),
    ("PP 8 x FSDP 4 x CP 2 x TP 8, 65,536 tokens", long(2), "47 (75.9 GiB)"),
    ("PP 8 x FSDP 2 x CP 4 x TP 8, 131,072 tokens", long(4), "31 (77.1 GiB)"),
    ("PP 8 x CP 8 x TP 8, 262,144 tokens", long(8), "16 (84.9 GiB)"),
]


def plan(keys):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        options = [text for key, value in keys.items() for text in (f"--{key}", str(value))]
        begin = time.time()
        done = subprocess.run([OTTAVA, "plan", "configs/llama3_405b.yaml", "--world-size", "512", "--device", DEVICE,
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
