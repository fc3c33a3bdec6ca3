"""Stages that measure: every operation alone, and whole steps beside PyTorch's."""

import json
import re
import time

from check import ROOT, Failed, TimedOut, json_lines, tail
from report import table

BENCH_PYTORCH = str(ROOT / "scripts/reference/bench_pytorch.py")
TORCH_SECONDS = 60  # of the stage `steps`: kept for PyTorch however long ours takes
START_SECONDS = 4  # of a process, its libraries and its plan
TORCH_ATTENTION_SECONDS = 20

# flavor, layers, seq_len, batch. The whole 8B fits one GPU of 141 GB with BF16 moments and recomputation (EXTRA); for the
# race, which PyTorch runs with FP32 moments, a stack of as many layers as leave room for its logits.
SHAPES = {
    "8B, seq 8192": ("8B", 32, 8192, 1),
    "8B, seq 8192, 4 micro-batches": ("8B", 32, 8192, 1),
    "8B x 16 layers, seq 8192": ("8B", 16, 8192, 1),
    "1B, seq 8192": ("1B", 16, 8192, 2),
    "3B, seq 8192": ("3B", 28, 8192, 1),
    "8B x 16 layers, seq 2048": ("8B", 16, 2048, 4),
    "1B, seq 2048": ("1B", 16, 2048, 8),
    "3B, seq 2048": ("3B", 28, 2048, 4),
    "debugmodel, seq 2048": ("debugmodel", 6, 2048, 16),
}
WHOLE = ["--optimizer.state_dtype", "bfloat16", "--activation_checkpoint.mode", "selective"]
EXTRA = {"8B, seq 8192": WHOLE, "8B, seq 8192, 4 micro-batches": [*WHOLE, "--training.global_batch_size", "4"]}
# In FP8: tensorwise by default; a recipe; "auto": where a measurement finds it faster; "fast": every product accumulates fast.
PRECISIONS = ["bf16", "fp8", "fp8 fast", "rowwise", "delayed", "auto"]
# In order of importance: what time does not reach is not measured.
OURS = [("8B, seq 8192", "bf16"), ("8B, seq 8192", "fp8"), ("8B x 16 layers, seq 8192", "bf16"), ("8B x 16 layers, seq 8192", "fp8"), ("debugmodel, seq 2048", "bf16"),
        ("8B, seq 8192", "rowwise"), ("8B, seq 8192", "fp8 fast"), ("8B, seq 8192", "delayed"), ("8B, seq 8192, 4 micro-batches", "bf16"),
        ("8B, seq 8192, 4 micro-batches", "fp8"), ("8B x 16 layers, seq 8192", "auto"), ("8B x 16 layers, seq 2048", "bf16"), ("8B x 16 layers, seq 2048", "fp8"),
        ("1B, seq 8192", "bf16"), ("3B, seq 8192", "bf16"), ("1B, seq 8192", "auto"), ("debugmodel, seq 2048", "auto"),
        ("1B, seq 8192", "fp8"), ("3B, seq 8192", "fp8"), ("8B x 16 layers, seq 2048", "auto"), ("1B, seq 2048", "bf16"),
        ("3B, seq 2048", "bf16"), ("1B, seq 2048", "fp8"), ("3B, seq 2048", "fp8")]
TORCH = [("8B x 16 layers, seq 8192", "bf16"), ("1B, seq 8192", "bf16"), ("3B, seq 8192", "bf16"), ("8B x 16 layers, seq 2048", "bf16"),
         ("8B x 16 layers, seq 8192", "fp8"), ("1B, seq 2048", "bf16"), ("3B, seq 2048", "bf16"), ("1B, seq 8192", "fp8"),
         ("3B, seq 8192", "fp8"), ("8B x 16 layers, seq 2048", "fp8")]

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


def kernel_rows(report, torch):
    """Rows of the table; PyTorch's attention is rated with the FLOPs that ours counts."""
    rows = []
    for k in report["kernels"]:
        name = f"{k['name']}: {k['operands']}" if len(k["operands"]) < 80 else k["name"]
        if "seconds" not in k:
            rows.append((name, k.get("error", "not measured"), "", "", "", k["calls"]))
            continue
        planned = f"{k['planned_seconds'] * 1e6:.1f}" if "planned_seconds" in k else ""
        rate = f"{k['bytes'] / k['seconds'] / 1e9:.0f} GB/s" if k["bound"] == "copy" else f"{k['flops'] / k['seconds'] / 1e12:.2f} TFLOP/s"
        rows.append((name, f"{k['seconds'] * 1e6:.1f}", planned, rate, f"{100 * k['share_of_peak']:.0f}%", k["calls"]))
    flops = {k["name"]: k["flops"] for k in report["kernels"]}
    for backend in ("cudnn", "flash"):
        item = torch.get(backend, {"error": torch.get("error", "not measured")})
        for way in ("forward", "backward"):
            name = f"attention {way}, PyTorch with {'cuDNN' if backend == 'cudnn' else 'its flash attention'}"
            if "error" in item:
                rows.append((name, item["error"], "", "", "", ""))
                continue
            rate = flops[f"attention_{way}"] / item[f"{way}_seconds"]
            rows.append((name, f"{item[f'{way}_seconds'] * 1e6:.1f}", "", f"{rate / 1e12:.2f} TFLOP/s", f"{100 * rate / report['gemm_flops_per_second']:.0f}%", ""))
    return rows


def step_kernels(c, recipe, seconds):
    """Operations of a step of one 8B block with two sequences of 8192, in BF16 or with FP8 of a recipe."""
    size = (["--model.n_layers", "1", "--training.seq_len", "256", "--training.local_batch_size", "1"] if c.dry else
            ["--model.flavor", "8B", "--model.n_layers", "1", "--model.vocab_size", "128256", "--training.seq_len", "8192", "--training.local_batch_size", "2"])
    float8 = ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", recipe] if recipe else []
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
    recipes = ["tensorwise", "rowwise", "blockwise", "mxfp8"]

    def seconds(runs):
        """Of measuring in each of so many runs: what is left, less their start."""
        kept = 0 if c.has_torch() is False else TORCH_ATTENTION_SECONDS
        return 1.5 if c.dry else min(max((c.seconds_left() - kept) / runs - START_SECONDS, 1.5), 8)

    report = step_kernels(c, None, seconds(1 + len(recipes)))
    for i, recipe in enumerate(recipes):
        known = {(k["name"], k["operands"]) for k in report["kernels"]}
        try:
            more = step_kernels(c, recipe, seconds(len(recipes) - i))["kernels"]
        except Failed as e:  # what was measured stands
            if "does not multiply recipe" not in str(e):
                report["kernels"].append({"name": f"all, {recipe}", "operands": "", "bound": "gemm", "bytes": 0, "flops": 0, "calls": 0,
                                          "error": tail(str(e), 1)})
            if isinstance(e, TimedOut):
                break
            continue
        report["kernels"] += [{**k, "name": f"{k['name']}, {recipe}"} for k in more if (k["name"], k["operands"]) not in known]
    report["torch_attention"] = torch_attention(c)
    text = (f"Copy {report['copy_bytes_per_second'] / 1e9:.0f} GB/s, BF16 product {report['gemm_flops_per_second'] / 1e12:.1f} TFLOP/s"
            " (the fastest of the algorithms that cuBLASLt proposes).\n\n"
            + table(["operation", "us", "planned us", "rate", "of the peak", "calls"], kernel_rows(report, report["torch_attention"])))
    if any("error" in k for k in report["kernels"] if ", cuDNN" not in k["name"]):  # a library that may be missing
        raise Failed(text, report)
    return text, report


# --- whole steps --------------------------------------------------------------------------------------------------

def read_bench_train(out):
    """Figures of `ottava bench train`."""
    number = lambda pattern: float(re.search(pattern, out).group(1))
    in_use = re.search(r"([\d.]+) GiB in use on the GPU", out)
    return {"tokens_per_second": number(r"tokens/s: ([\d.]+)"), "tflops": number(r"model FLOPs: ([\d.]+) TFLOP/s"),
            "utilization_percent": number(r"utilization: ([\d.]+)%"), "seconds_per_step": number(r"median ([\d.]+) s"),
            "plan_gib": number(r"memory: plan ([\d.]+) GiB"), "memory_gib": float(in_use.group(1)) if in_use else None,
            "graphs": re.search(r"CUDA graphs: (on|off)", out).group(1)}


def float8_options(precision):
    if precision == "bf16":
        return []
    key = "--quantize.linear.float8."
    options = ["--model.converters", "quantize.linear.float8", key + "auto", str(precision == "auto").lower()]
    if precision in ("rowwise", "delayed"):
        options += [key + "recipe_name", precision] + ([key + "amax_history_length", "2"] if precision == "delayed" else [])
    if precision == "fp8 fast":
        options += [key + "fast_accumulation", "all"]
    return options


def train_ours(c, shape, precision, until):
    flavor, layers, seq_len, batch = SHAPES[shape]
    extra = ["--model.flavor", flavor, "--model.n_layers", str(layers)]
    if flavor != "debugmodel":
        extra += ["--model.vocab_size", "128256"]
    if c.dry:
        extra, seq_len, batch = ["--model.n_layers", "2"], 128, 1
    else:
        extra += EXTRA.get(shape, [])
    extra += float8_options(precision)
    steps = "30" if flavor == "debugmodel" and not c.dry else "3"
    out = c.run([c.program("ottava"), "bench", "train", "configs/debug.yaml", "--steps", steps, "--weights", "repeated",
                 "--training.dataset_path", str(c.text), "--training.device", c.device, "--training.seq_len", str(seq_len),
                 "--training.local_batch_size", str(batch), "--job.dump_folder", str(c.folder("bench")), *extra,
                 *c.without_graphs(c.device)], until=until)
    return read_bench_train(out)


def measure_ours(c, wanted, until):
    """{(shape, precision): figures or an error}. What time ends is absent: not measured."""
    out = {}
    for shape, precision in wanted:
        try:
            out[shape, precision] = train_ours(c, shape, precision, until)
        except TimedOut:
            break
        except (Failed, ValueError, AttributeError) as e:
            out[shape, precision] = {"error": tail(str(e), 1)}
    return out


def torch_run(c, shape, precision):
    """A run as bench_pytorch.py reads it: flavor:layers:seq_len:batch:precision."""
    flavor, layers, seq_len, batch = ("debugmodel", 2, 64, 1) if c.dry else SHAPES[shape]
    return f"{flavor}:{layers}:{seq_len}:{batch}:{precision}"


def measure_torch(c, wanted):
    """Like measure_ours; one process for all, so that PyTorch is loaded once. Each run's line comes as soon as it is done."""
    runs = {torch_run(c, *key): key for key in wanted}
    command = [c.python, BENCH_PYTORCH, "--device", c.device, "--steps", "3", *(["--compile", "off"] if c.dry else [])]
    for run in runs:
        command += ["--run", run]
    try:
        output = c.run(command, check=False)
    except TimedOut as e:
        output = e.output
    return {runs[line["run"]]: line for line in json_lines(output) if line.get("run") in runs}


def cells(item, *forms):
    """(key, format) each; what is wrong stands in the first one."""
    if item is None or "error" in item:
        return ["not measured" if item is None else item["error"]] + [""] * (len(forms) - 1)
    return [form.format(item[key]) if item.get(key) is not None else "" for key, form in forms]


def step_rows(ours, torch):
    rows = []
    for shape in SHAPES:
        for precision in PRECISIONS:
            key = shape, precision
            if key not in OURS and key not in TORCH:
                continue
            mine, theirs = ours.get(key), torch.get(key)
            both = mine and theirs and "tokens_per_second" in mine and "tokens_per_second" in theirs
            rows.append((*key, *cells(mine, ("tokens_per_second", "{:.0f}"), ("tflops", "{:.0f}"), ("utilization_percent", "{:.1f}%"),
                                      ("memory_gib", "{:.1f}"), ("plan_gib", "{:.1f}"), ("graphs", "{}")),
                         *(cells(theirs, ("tokens_per_second", "{:.0f}"), ("tflops", "{:.0f}"), ("memory_gib", "{:.1f}"))
                           if key in TORCH else ("", "", "")),
                         f"{mine['tokens_per_second'] / theirs['tokens_per_second']:.2f}" if both else ""))
    return rows


def steps(c):
    wanted = OURS[:3] if c.dry else OURS
    torch_wanted = TORCH[:1] if c.dry else TORCH
    installed = c.has_torch() is not False  # where nothing says it, the attempt does
    until = time.monotonic() + c.seconds_left() - (TORCH_SECONDS if installed else 0)
    ours = measure_ours(c, wanted, until)
    torch = measure_torch(c, torch_wanted) if installed else {key: {"error": "no PyTorch here"} for key in TORCH}
    header = ["step", "precision", "tokens/s", "TFLOP/s", "utilization", "GPU GiB in use", "GiB planned", "graphs", "PyTorch tokens/s",
              "TFLOP/s", "GiB", "ottava / PyTorch"]
    text = ("TFLOP/s are the model's, 6 (N - N of the embedding) + 12 L H D T per token, on both sides; utilization weighs what is computed "
            "with the peak of its precision.\n\n" + table(header, step_rows(ours, torch)))
    if c.dry:
        text = "Tiny models, each side its own.\n\n" + text
    data = {side: [{"shape": shape, "precision": precision, **item} for (shape, precision), item in items.items()]
            for side, items in (("ottava", ours), ("torch", torch))}
    if any("error" in item for item in ours.values()):
        raise Failed(text, data)
    return text, data
