"""Stages that measure: every operation alone, and whole steps beside PyTorch's."""

import concurrent.futures
import json
import re
import time

from check import ROOT, Failed, NotMeasured, TimedOut, json_lines, tail
from gpu_clocks import watched_clocks
from models import RECIPES, recipes_of
from report import table
from shapes import DEBUG, PRECISIONS, benchmark_of

BENCH_PYTORCH = str(ROOT / "scripts/reference/bench_pytorch.py")
TORCH_SECONDS, TORCH_SHARE = 60, 0.4  # of the stage `steps`, kept for PyTorch however long ours takes: the lesser
SECONDS_OF_A_RUN = 60  # at least, before a run of ours is given up for the others
START_SECONDS = 4  # of a process, its libraries and its plan
STEPS_OF_A_RUN = "5"
PLANS_AT_ONCE = 4
PLANS_SECONDS, PLANS_SHARE = 10, 0.1  # of the stage `steps`, kept for all plans: the lesser
TORCH_ATTENTION_SECONDS = 20
# No kind of cuDNN's backward fits: where one does, times of attention come first.
NO_ROOM_FOR_CUDNN = r"Attention: flash \((?!forward and backward of).*with its workspace the step takes"

# --- operations ---------------------------------------------------------------------------------------------------

def torch_attention(c):
    """Times of scaled_dot_product_attention by backend, forward and backward: {"cudnn": {...}, "flash": {...}} or an error."""
    if c.has_torch() is False:
        return {"error": "no PyTorch here"}
    sizes = "1,4,2,64,32" if c.dry else "2,32,8,8192,128"
    try:
        out = c.run([c.python, BENCH_PYTORCH, "--device", c.device, "--attention", sizes], seconds=30)
    except TimedOut:
        return {"error": "not measured: no time was left"}
    except Failed as e:
        return {"error": tail(str(e), 1)}
    lines = [line["attention"] for line in json_lines(out) if "attention" in line]
    return lines[-1] if lines else {"error": f"no figures: {tail(out, 1)}"}


DEBUGMODEL = "debugmodel"
KERNEL_COLUMNS = ["operation", "MB", "GFLOP", "us", "planned us", "rate", "of the peak", "calls"]


def planned_cells(k):
    """What is predicted of a call, measured or not: bytes, FLOPs and time."""
    return (f"{k['bytes'] / 1e6:.2f}" if k["bytes"] else "", f"{k['flops'] / 1e9:.3f}" if k["flops"] else "",
            f"{k['planned_seconds'] * 1e6:.1f}" if "planned_seconds" in k else "")


def kernel_rows(report, torch):
    """Rows of KERNEL_COLUMNS; PyTorch's attention is rated with the FLOPs that ours counts."""
    rows = []
    for k in report["kernels"]:
        name = f"{k['name']}: {k['operands']}" if len(k["operands"]) < 80 else k["name"]
        mb, gflop, planned = planned_cells(k)
        if "seconds" not in k:
            rows.append((name, mb, gflop, k.get("error", "not measured"), planned, "", "", k["calls"]))
            continue
        rate = f"{k['bytes'] / k['seconds'] / 1e9:.0f} GB/s" if k["bound"] == "copy" else f"{k['flops'] / k['seconds'] / 1e12:.2f} TFLOP/s"
        rows.append((name, mb, gflop, f"{k['seconds'] * 1e6:.1f}", planned, rate, f"{100 * k['share_of_peak']:.0f}%", k["calls"]))
    flops = {k["name"]: k["flops"] for k in report["kernels"]}
    for backend in ("cudnn", "flash"):
        item = torch.get(backend, {"error": torch.get("error", "not measured")})
        for way in ("forward", "backward"):
            name = f"attention {way}, PyTorch with {'cuDNN' if backend == 'cudnn' else 'its flash attention'}"
            if "error" in item:
                rows.append((name, "", "", item["error"], "", "", "", ""))
                continue
            rate = flops[f"attention_{way}"] / item[f"{way}_seconds"]
            rows.append((name, "", f"{flops[f'attention_{way}'] / 1e9:.3f}", f"{item[f'{way}_seconds'] * 1e6:.1f}", "", f"{rate / 1e12:.2f} TFLOP/s", f"{100 * rate / report['gemm_flops_per_second']:.0f}%", ""))
    return rows


def step_kernels(c, what, seconds):
    """Operations of a step of one 8B block with two sequences of 8192, in BF16 (None) or with FP8 of a recipe; or, in BF16, of the debug
    model (DEBUGMODEL), whose rows are short enough for kernels of their own."""
    size = (["--model.n_layers", "1", "--training.seq_len", "256", "--training.local_batch_size", "1"] if c.dry else
            ["--training.seq_len", "2048", "--training.local_batch_size", "16"] if what == DEBUGMODEL else
            ["--model.flavor", "8B", "--model.n_layers", "1", "--model.vocab_size", "128256", "--training.seq_len", "8192", "--training.local_batch_size", "2"])
    float8 = ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", what] if what in RECIPES else []
    file = c.work / "kernels.json"
    file.unlink(missing_ok=True)
    out = c.run([c.program("ottava"), "bench", "kernels", "--seconds", str(seconds), "--json", str(file), "configs/debug.yaml",
                 "--training.device", c.device, *size, *float8], check=False)
    if not file.exists():
        raise Failed(tail(out))
    try:
        return json.loads(file.read_text())
    except ValueError as e:
        raise Failed(f"kernels.json is none: {e}\n{tail(out)}") from None


def kernels(c):
    taken = recipes_of(c.compute_capability())
    recipes = [recipe for recipe in ("tensorwise", "rowwise", "blockwise", "mxfp8") if recipe in taken]

    def seconds(runs):
        """Of measuring in each of so many runs: what is left, less their start."""
        kept = 0 if c.has_torch() is False else TORCH_ATTENTION_SECONDS
        return 1.5 if c.dry else min(max((c.seconds_left() - kept) / runs - START_SECONDS, 1.5), 8)

    others = recipes if c.dry else [*recipes, DEBUGMODEL]
    report = step_kernels(c, None, seconds(1 + len(others)))
    for i, what in enumerate(others):
        known = {(k["name"], k["operands"]) for k in report["kernels"]}
        try:
            more = step_kernels(c, what, seconds(len(others) - i))["kernels"]
        except Failed as e:  # what was measured stands
            report["kernels"].append({"name": f"all, {what}", "operands": "", "bound": "gemm", "bytes": 0, "flops": 0, "calls": 0,
                                      "error": tail(str(e), 1)})
            if isinstance(e, TimedOut):
                break
            continue
        report["kernels"] += [{**k, "name": f"{k['name']}, {what}"} for k in more if (k["name"], k["operands"]) not in known]
    report["torch_attention"] = torch_attention(c)
    measured = sum("seconds" in k for k in report["kernels"])
    text = (f"{measured} of {len(report['kernels'])} operations were measured. Copy {report['copy_bytes_per_second'] / 1e9:.0f} GB/s, BF16 product {report['gemm_flops_per_second'] / 1e12:.1f} TFLOP/s"
            f" (the fastest of the algorithms that cuBLASLt proposes). FP8 recipes that are multiplied here: {', '.join(recipes) or 'none'}.\n\n"
            + table(KERNEL_COLUMNS, kernel_rows(report, report["torch_attention"])))
    if any("error" in k for k in report["kernels"] if ", cuDNN" not in k["name"]):  # a library that may be missing
        raise Failed(text, report)
    if measured == 0:
        raise NotMeasured(text, report)
    return text, report


# --- whole steps --------------------------------------------------------------------------------------------------

def read_bench_train(out):
    """Figures of `ottava bench train`."""
    number = lambda pattern: float(re.search(pattern, out).group(1))
    in_use = re.search(r"([\d.]+) GiB in use on the GPU", out)
    attention, chunk = re.search(r"^attention: (.+); loss: (\d+) tokens at a time", out, re.M).groups()
    recomputed = re.search(r"Precision: .*; (.*recomputed.*)", out).group(1)
    return {"tokens_per_second": number(r"tokens/s: ([\d.]+)"), "tflops": number(r"model FLOPs: ([\d.]+) TFLOP/s"),
            "utilization_percent": number(r"utilization: ([\d.]+)%"), "seconds_per_step": number(r"median ([\d.]+) s"),
            "plan_gib": number(r"memory: plan ([\d.]+) GiB"), "memory_gib": float(in_use.group(1)) if in_use else None,
            "graphs": re.search(r"CUDA graphs: (on|off)", out).group(1), "attention": attention, "loss_chunk_tokens": int(chunk),
            "recomputed": re.sub(r" (are|is) recomputed", "", recomputed),
            "leaves_no_room_for_cudnn": re.search(NO_ROOM_FOR_CUDNN, out) is not None}


def float8_options(precision):
    free = ["--attention.deterministic", "false"] if precision.endswith("free") else []
    if precision.startswith("bf16"):
        return free
    key = "--quantize.linear.float8."
    options = [*free, "--model.converters", "quantize.linear.float8", key + "auto", str(precision == "auto").lower()]
    if precision in ("rowwise", "delayed"):
        options += [key + "recipe_name", precision] + ([key + "amax_history_length", "2"] if precision == "delayed" else [])
    if precision == "fp8 fast":
        options += [key + "fast_accumulation", "all"]
    return options


def keys_of(shape, precision, dry=False):
    """The experiment; what runs it and where is not in it."""
    if dry:
        return ["--model.n_layers", "2", "--training.seq_len", "128", "--training.local_batch_size", "1", *float8_options(precision)]
    keys = ["--model.flavor", shape.flavor, "--model.n_layers", str(shape.layers)]
    if shape.flavor != "debugmodel":
        keys += ["--model.vocab_size", "128256"]
    return [*keys, "--training.seq_len", str(shape.seq_len), "--training.local_batch_size", str(shape.batch), *shape.options,
            *float8_options(precision)]


def train_ours(c, shape, precision, until):
    steps = "30" if shape.flavor == "debugmodel" and not c.dry else STEPS_OF_A_RUN
    with watched_clocks(c) as clocks:
        out = c.run([c.program("ottava"), "bench", "train", "configs/debug.yaml", "--steps", steps, "--weights", "repeated",
                     "--training.dataset_path", str(c.text), "--training.device", c.device, "--job.dump_folder", str(c.folder("bench")),
                     *keys_of(shape, precision, c.dry), *c.without_graphs(c.device)], until=until)
    return read_bench_train(out) | clocks


def planned_speed(c, shape, precision):
    """Tokens/s that `plan` says of this GPU by its table, not by the products that the runs before it have measured and kept; None
    where it has no table for it, or no time."""
    try:
        out = c.run([c.program("ottava"), "plan", "configs/debug.yaml", "--training.device", c.device, "--training.gemm_cache", "off",
                     *keys_of(shape, precision, c.dry)], check=False)
    except Failed:
        return None
    said = re.search(r"([\d,.]+) tokens/s per rank", out)
    return round(float(said.group(1).replace(",", ""))) if said else None


def add_plans(c, benchmark, ours):
    """What `plan` says of each run, side by side on the CPU. After the last run: meanwhile the GPU has nothing to do."""
    run = [key for key, item in ours.items() if "tokens_per_second" in item]
    with concurrent.futures.ThreadPoolExecutor(PLANS_AT_ONCE) as pool:
        for key, planned in zip(run, pool.map(lambda key: planned_speed(c, benchmark.shapes[key[0]], key[1]), run)):
            ours[key]["planned_tokens_per_second"] = planned


def measure_one(c, shape, precision, until):
    """Figures of a run, an error, or why it does not fit; None where time ends it."""
    if not shape.fits(c.gpu_gib()):
        return {"too_large": f"{shape.gib:.1f} GiB are planned, {c.gpu_gib():.1f} are there"}
    left = until - time.monotonic()
    end = min(until, time.monotonic() + max(SECONDS_OF_A_RUN, left / 3))
    try:
        return train_ours(c, shape, precision, end)
    except TimedOut as e:
        return None if end == until else {"error": str(e).splitlines()[0].split(":")[0]}
    except (Failed, ValueError, AttributeError) as e:
        refusal = re.search(r"the step needs [^;\n]*", str(e))
        is_full = re.search(r"cannot allocate|out of memory|ALLOC\w*_FAILED", str(e)) is not None
        return {"too_large": refusal.group(0)} if refusal else {"error": tail(str(e), 1), "is_full": is_full}


def measure_ours(c, benchmark, wanted, until, so_far=lambda rows: None):
    """{(shape, precision): figures, an error, or why it does not fit}. What time ends is absent: not measured. A shape that leaves too
    little memory becomes the lighter one for all precisions that follow; goals leave out those before it, which recompute less. Memory
    that runs out although the plan fits stays an error, beside the lighter one's figures."""
    out = {}
    for name, precision in wanted:
        item = measure_one(c, benchmark.shapes[name], precision, until)
        lighter = benchmark.shapes[name].lighter
        if lighter and item and ("too_large" in item or item.get("leaves_no_room_for_cudnn") or item.get("is_full")):
            benchmark.shapes[name] = lighter
            beyond = {"beyond_the_plan": item["error"]} if "error" in item else {}
            item = (measure_one(c, lighter, precision, until) or item) | beyond
        if item is None:
            break
        out[name, precision] = item
        so_far(out)
    return out


def torch_run(c, shape, precision):
    """A run as bench_pytorch.py reads it: flavor:layers:seq_len:batch:precision."""
    return f"debugmodel:2:64:1:{precision}" if c.dry else f"{shape.flavor}:{shape.layers}:{shape.seq_len}:{shape.batch}:{precision}"


def measure_torch(c, benchmark, wanted, until):
    """Like measure_ours; one process for all, so that PyTorch is loaded once. Each run's line comes as soon as it is done."""
    runs = {torch_run(c, benchmark.shapes[shape], precision): (shape, precision) for shape, precision in wanted}
    command = [c.python, BENCH_PYTORCH, "--device", c.device, "--steps", "3", *(["--compile", "off"] if c.dry else [])]
    for run in runs:
        command += ["--run", run]
    try:
        output = c.run(command, check=False, until=until)
    except TimedOut as e:
        output = e.output
    return {runs[line["run"]]: line for line in json_lines(output) if line.get("run") in runs}


def cells(item, *forms):
    """(key, format) each; what is wrong stands in the first one."""
    if item is None or "error" in item or "too_large" in item:
        said = "not measured" if item is None else item.get("error") or f"does not fit this GPU: {item['too_large']}"
        return [said] + [""] * (len(forms) - 1)
    return [form.format(item[key]) if item.get(key) is not None else "" for key, form in forms]


def step_rows(benchmark, ours, torch):
    rows = []
    for shape in benchmark.shapes:
        for precision in PRECISIONS:
            key = shape, precision
            if key not in benchmark.ours and key not in benchmark.torch:
                continue
            theirs_key = shape, precision.removesuffix(" free")
            mine, theirs = ours.get(key), torch.get(theirs_key)
            both = mine and theirs and "tokens_per_second" in mine and "tokens_per_second" in theirs
            rows.append((*key, *cells(mine, ("tokens_per_second", "{:.0f}"), ("planned_tokens_per_second", "{:.0f}"), ("tflops", "{:.0f}"),
                                      ("utilization_percent", "{:.1f}%"), ("memory_gib", "{:.1f}"), ("plan_gib", "{:.1f}"), ("graphs", "{}"),
                                      ("attention", "{}"), ("loss_chunk_tokens", "{}"), ("recomputed", "{}"), ("sm_mhz", "{:.0f}"), ("watts", "{:.0f}")),
                         *(cells(theirs, ("tokens_per_second", "{:.0f}"), ("tflops", "{:.0f}"), ("memory_gib", "{:.1f}"))
                           if theirs_key in benchmark.torch else ("", "", "")),
                         f"{mine['tokens_per_second'] / theirs['tokens_per_second']:.2f}" if both else ""))
    return rows


def steps_report(c, benchmark, ours, torch):
    header = ["step", "precision", "tokens/s", "planned", "TFLOP/s", "utilization", "GPU GiB in use", "GiB planned", "graphs", "attention", "loss chunk",
              "recomputed", "SM MHz", "W", "PyTorch tokens/s", "TFLOP/s", "GiB", "ottava / PyTorch"]
    text = ("TFLOP/s are the model's, 6 (N - N of the embedding) + 12 L H D T per token, on both sides; utilization weighs what is computed "
            "with the peak of its precision; clocks and power are medians of ours while the GPU was busy.\n\n" + table(header, step_rows(benchmark, ours, torch)))
    if c.dry:
        text = "Tiny models, each side its own.\n\n" + text
    data = {side: [{"shape": shape, "precision": precision, **item} for (shape, precision), item in items.items()]
            for side, items in (("ottava", ours), ("torch", torch))}
    return text, data | {"shapes": list(benchmark.shapes), "raced": benchmark.raced(), "auto": benchmark.auto(), "debug": DEBUG, "gpu_gib": c.gpu_gib()}


def steps(c):
    benchmark = benchmark_of(c.gpu_gib())
    wanted = benchmark.ours[:3] if c.dry else benchmark.ours
    torch_wanted = benchmark.torch[:1] if c.dry else benchmark.torch
    installed = c.has_torch() is not False  # where nothing says it, the attempt does
    left = c.seconds_left()
    end = time.monotonic() + left - min(PLANS_SECONDS, PLANS_SHARE * left)  # of what the GPU is needed for
    ours = measure_ours(c, benchmark, wanted, end - (min(TORCH_SECONDS, TORCH_SHARE * left) if installed else 0),
                        lambda rows: c.so_far(*steps_report(c, benchmark, rows, {})))
    torch = measure_torch(c, benchmark, torch_wanted, end) if installed else {key: {"error": "no PyTorch here"} for key in benchmark.torch}
    c.so_far(*steps_report(c, benchmark, ours, torch))
    add_plans(c, benchmark, ours)
    text, data = steps_report(c, benchmark, ours, torch)
    beyond = [f"{shape}, {precision}, with less recomputed: {item['beyond_the_plan']}"
              for (shape, precision), item in ours.items() if "beyond_the_plan" in item]
    if beyond or any("error" in item for item in ours.values()):
        raise Failed("\n\n".join([text, *beyond]), data)
    return text, data
