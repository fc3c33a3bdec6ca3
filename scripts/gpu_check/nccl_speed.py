"""How fast ranks with a GPU each train a large model over NCCL, beside what `plan` says: whether their calls run beside products."""

import re

from check import Failed, TimedOut, tail
from report import table
from speed import STEPS_OF_A_RUN, cells, read_bench_train

SECONDS, PLAN_SECONDS = 75, 20
MODEL = ["--model.flavor", "8B", "--model.vocab_size", "128256", "--training.seq_len", "8192", "--training.local_batch_size", "1",
         "--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op"]
# Ranks say which of them keeps the others waiting before a run is ended.
LIMITS = ["--comm.init_timeout_seconds", "60", "--comm.train_timeout_seconds", "20"]
FLOAT8 = "--quantize.linear.float8."


def runs_of(ranks):
    """(name, keys) in order of importance."""
    float8 = ["--model.converters", "quantize.linear.float8", FLOAT8 + "auto", "false"]
    return [("FSDP, bf16", []),
            ("FSDP, fp8 with weights in FP8", [*float8, FLOAT8 + "enable_fsdp_float8_all_gather", "true"]),
            (f"TP {ranks}, bf16", ["--parallelism.tensor_parallel_degree", str(ranks)])]


def measured(c, ranks, keys, launch, env):
    """Figures of a run, why it does not fit, or what is wrong; None where time ended it."""
    has_time = c.seconds_left() > SECONDS
    try:
        out = c.run([*launch, "bench", "train", "configs/debug.yaml", "--steps", STEPS_OF_A_RUN, "--weights", "repeated",
                     "--training.dataset_path", str(c.text), "--training.device", c.device, "--job.dump_folder", str(c.folder("bench")),
                     "--comm.backend", "nccl", *LIMITS, *MODEL, *keys, *c.without_graphs(c.device, keys)], env=env, seconds=SECONDS)
        figures = read_bench_train(re.sub(r"^\[rank \d+\] ", "", out, flags=re.M))
        return figures | {"tokens_per_second": figures["tokens_per_second"] / ranks}
    except TimedOut as e:
        return {"error": str(e).splitlines()[0].split(":")[0]} if has_time else None
    except (Failed, ValueError, AttributeError) as e:
        refusal = re.search(r"the step needs [^;\n]*", str(e))
        return {"too_large": refusal.group(0)} if refusal else {"error": tail(str(e), 3)}


def planned(c, ranks, keys):
    """Tokens/s of a rank by the GPU's table; None where there is none, or no time."""
    try:
        out = c.run([c.program("ottava"), "plan", "configs/debug.yaml", "--world-size", str(ranks), "--training.device", c.device,
                     "--training.gemm_cache", "off", *MODEL, *keys], check=False, seconds=PLAN_SECONDS)
    except Failed:
        return None
    said = re.search(r"([\d,.]+) tokens/s per rank", out)
    return round(float(said.group(1).replace(",", ""))) if said else None


def speed_over_nccl(c, ranks, launch, env, keys=()):
    """(text, data, what is wrong) of ranks that `launch` starts; each run with `keys`."""
    rows, data, wrong = [], {}, []
    for name, more in runs_of(ranks):
        item = measured(c, ranks, [*more, *keys], launch, env)
        if item and "tokens_per_second" in item:
            item["planned_tokens_per_second"] = planned(c, ranks, more)
        if item and "error" in item:
            wrong.append(f"speed of {name}: {item['error']}")
        rows.append([name, *cells(item, ("tokens_per_second", "{:.0f}"), ("planned_tokens_per_second", "{:.0f}"), ("tflops", "{:.0f}"),
                                  ("utilization_percent", "{:.1f}%"), ("memory_gib", "{:.1f}"), ("plan_gib", "{:.1f}"), ("graphs", "{}"), ("attention", "{}"))])
        data[name] = item
    header = ["8B, seq 8192", "tokens/s of a rank", "planned", "TFLOP/s", "utilization", "GPU GiB in use", "GiB planned", "graphs", "attention"]
    return table(header, rows), data, wrong
