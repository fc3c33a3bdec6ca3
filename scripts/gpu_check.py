#!/usr/bin/env python3
"""The stages of scripts/gpu_check.sh and its report. Needs nothing but Python's own library."""

import argparse
import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = 50
# How far a loss may be from the CPU's at any of the 50 steps, relative. FP32 and BF16 differ by the order of sums alone;
# FP8 also where a value sits on a rounding boundary.
BOUNDS = {"f32": 1e-3, "bf16": 5e-3, "fp8": 1e-2}
MODELS = {
    "debugmodel": [],
    "2 layers, head dim 64": ["--model.n_layers", "2", "--model.dim", "256", "--model.n_heads", "4", "--model.n_kv_heads", "2"],
    "2 layers, head dim 128": ["--model.n_layers", "2", "--model.dim", "512", "--model.n_heads", "4", "--model.n_kv_heads", "2"],
}
RECIPES = ["tensorwise", "tensorwise_with_gw_hp", "delayed", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]
# flavor, layers, seq_len, batch: 8B as many layers as fit beside FP32 masters and moments (16 bytes a parameter and more).
STEP_SHAPES = [("8B", 16, 8192, 1), ("1B", 16, 8192, 2), ("3B", 28, 8192, 1), ("8B", 16, 2048, 4), ("1B", 16, 2048, 8),
               ("3B", 28, 2048, 4)]


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


class Check:
    def __init__(self, args):
        self.dry = args.dry_run
        self.device = "cpu" if self.dry else "cuda"
        self.programs = ROOT / args.programs
        self.deadline = time.monotonic() + args.seconds
        self.stage_deadline = self.deadline
        self.work = Path(tempfile.mkdtemp(prefix="ottava-gpu-check-"))
        self.text = self.work / "text.txt"
        self.write_text()

    def write_text(self):
        """Made-up English with rules to learn: the same bytes everywhere."""
        rng = random.Random(1)
        words = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(1, 3))) for _ in range(300)]
        follows = {w: rng.sample(words, 6) for w in words}
        lines, word = [], words[0]
        for _ in range(6000):
            line = []
            for _ in range(rng.randint(6, 14)):
                word = rng.choice(follows[word])
                line.append(word)
            lines.append(" ".join(line).capitalize() + ".")
        self.text.write_text("\n".join(lines))

    def program(self, name):
        for path in (self.programs / name, self.programs / "tests" / name):
            if path.exists():
                return str(path)
        raise Failed(f"{name} was not found in {self.programs}")

    def run(self, command, env=None, seconds=None, check=True):
        """Output of a command, which ends with its whole group when the stage's time is up."""
        left = min(self.stage_deadline, self.deadline) - time.monotonic()
        limit = min(left, seconds or left)
        if limit <= 1:
            raise Failed("no time was left")
        p = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            out, _ = p.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            out, _ = p.communicate()
            raise Failed(f"not done after {limit:.0f} s: {' '.join(map(str, command))}\n{tail(out)}")
        if check and p.returncode != 0:
            raise Failed(f"exit code {p.returncode}: {' '.join(map(str, command))}\n{tail(out)}")
        return out

    def train_command(self, folder, device, steps, extra):
        return [self.program("ottava"), "train", "configs/debug.yaml", "--job.dump_folder", str(folder),
                "--training.dataset_path", str(self.text), "--training.seq_len", "256", "--training.local_batch_size", "2",
                "--training.global_batch_size", "2", "--training.steps", str(steps), "--training.device", device,
                "--attention.backend", "flash", "--metrics.log_freq", "1", "--metrics.enable_json_lines", "true", "--checkpoint.enable", "false", *extra]

    def train(self, name, device, steps, extra, launcher=(), env=None):
        """Losses by step."""
        folder = self.work / re.sub(r"\W+", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        self.run([*launcher, *self.train_command(folder, device, steps, list(extra))], env=env)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss_metrics/global_avg_loss"] for line in lines]
        if len(losses) != steps:
            raise Failed(f"{name}: {len(losses)} of {steps} steps were logged")
        return losses

    def steps(self):
        return 4 if self.dry else STEPS

    def has_key(self, key):
        return f"`{key}`" in self.run([self.program("ottava"), "config", "--fates"])


def tail(text, lines=12):
    return "\n".join(text.strip().splitlines()[-lines:])


def distance(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def table(header, rows):
    out = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(out + ["| " + " | ".join(str(c).replace("|", "/") for c in row) + " |" for row in rows])


# --- stages: each returns (Markdown, data) or raises Failed or Skipped --------------------------------------------

def environment(c):
    data = {"ottava": c.run([c.program("ottava"), "--version"]).strip(), "cpus": os.cpu_count()}
    build = ROOT / "BUILD"
    if build.exists():
        data["bundle"] = build.read_text().split("\n")[:-1]
    if shutil.which("nvidia-smi"):
        query = "name,driver_version,memory.total,power.limit,clocks.max.sm"
        data["gpu"] = c.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], check=False).strip()
    elif not c.dry:
        raise Failed("nvidia-smi was not found: is there a driver?")
    return "\n".join(f"- {k}: {v}" for k, v in data.items()), data


def op_tests(c):
    out = c.run([c.program("ottava_device_tests"), "--durations", "no"], env={"OTTAVA_TEST_DEVICES": c.device}, check=False)
    summary = next((line.strip() for line in reversed(out.splitlines()) if "assertions" in line), tail(out, 3))
    if "All tests passed" not in out:
        failed = re.findall(r"^(.+?):\d+: FAILED", out, re.M)
        raise Failed(f"{summary}\n{tail(out, 40)}\nfailures in: {sorted(set(failed))}")
    return f"{summary} (device {c.device})", {"summary": summary}


def parity(c):
    rows, data, wrong = [], [], []
    cases = [(m, d, "f32" if d == "float32" else "bf16", ["--training.mixed_precision_param", d]) for m in MODELS for d in ("bfloat16", "float32")]
    cases += [("2 layers, head dim 64", r, "fp8", ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", r,
               "--quantize.linear.float8.auto", "false"])
              for r in RECIPES]
    # The CPU's curves side by side, four threads each, while the device makes its own.
    workers = max(1, (os.cpu_count() or 1) // 4)
    threads = {"OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1))}
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    curves = [pool.submit(c.train, f"cpu {model} {what}", "cpu", c.steps(), MODELS[model] + extra, env=threads)
              for model, what, _, extra in cases]
    for (model, what, kind, extra), curve in zip(cases, curves):
        extra = MODELS[model] + extra
        try:
            gpu = c.train(f"device {model} {what}", c.device, c.steps(), extra)
            cpu = curve.result()
            far = distance(gpu, cpu)
            verdict = "agrees" if far <= BOUNDS[kind] else "TOO FAR"
            if far > BOUNDS[kind]:
                wrong.append(f"{model}, {what}: {far:.2e} > {BOUNDS[kind]:.0e}")
            rows.append((model, what, f"{cpu[-1]:.4f}", f"{gpu[-1]:.4f}", f"{far:.1e}", f"{BOUNDS[kind]:.0e}", verdict))
            data.append({"model": model, "precision": what, "cpu": cpu, "device": gpu, "largest_difference": far})
        except Failed as e:
            reason = str(e).splitlines()[0] if str(e).startswith("n") else tail(str(e), 1)  # no time: what it printed last says less
            # A recipe that this GPU lacks, or this build, is refused by name: that is an answer.
            refused = kind == "fp8" and re.search(r"\[(fp8|model|float8|policy|quantize|scaled_matmul|cublaslt)", reason)
            rows.append((model, what, "", "", "", "", f"{'refused' if refused else 'FAILED'}: {reason}"))
            data.append({"model": model, "precision": what, "error": str(e)})
            if not refused:
                wrong.append(f"{model}, {what}: {reason}")
    text = table(["model", "precision", "CPU loss", "device loss", "largest distance", "bound", ""], rows)
    if wrong:
        raise Failed(text + "\n\n" + "\n".join(wrong))
    return text, data


def shared_gpu(c):
    model = MODELS["2 layers, head dim 64"]
    steps = 4 if c.dry else 10
    alone = c.train("alone", c.device, steps, model + ["--training.global_batch_size", "4"])
    rows, data = [], {}
    ways = [("tcp", [str(ROOT / "scripts/launch_tcp.sh"), "-n", "2"])]
    has_module = any((folder / "lib/libottava_mpi.so").exists() for folder in (c.programs, c.programs.parent))
    if shutil.which("mpirun") and has_module:
        ways.append(("mpi", [str(ROOT / "scripts/launch.sh"), "-n", "2"]))
    for backend, launcher in ways:
        both = c.train(f"shared {backend}", c.device, steps, model + ["--comm.backend", backend, "--training.global_batch_size", "4"], launcher)
        far = distance(both, alone)
        data[backend] = far
        rows.append((f"2 ranks on one device, {backend}", f"{both[-1]:.4f}", f"{alone[-1]:.4f}", f"{far:.1e}"))
        if far > BOUNDS["bf16"]:
            raise Failed(table(["", "loss", "one rank", "largest distance"], rows))
    if len(ways) == 1:
        rows.append(("2 ranks on one device, mpi", "no mpirun here, or build_mpi.sh was not run", "", ""))
    return table(["", "loss", "one rank", "largest distance"], rows), data


def nccl(c):
    if c.dry:
        raise Skipped("NCCL moves GPU tensors only")
    model, env = MODELS["2 layers, head dim 64"], {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29741"}
    alone = c.train("alone for nccl", c.device, 10, model)
    losses = c.train("nccl", c.device, 10, model + ["--comm.backend", "nccl"], env=env)
    far = distance(losses, alone)
    if far > BOUNDS["bf16"]:
        raise Failed(f"one rank over NCCL is {far:.1e} away from one without")
    return f"one rank over NCCL: largest distance {far:.1e} to one without", {"largest_difference": far}


def graphs(c):
    if not c.has_key("training.cuda_graphs"):
        raise Skipped("this build has no key training.cuda_graphs")
    if c.dry:
        raise Skipped("graphs are CUDA's")
    model = MODELS["2 layers, head dim 64"]
    losses = {mode: c.train(f"graphs {mode}", c.device, 10, model + ["--training.cuda_graphs", mode]) for mode in ("off", "on")}
    if losses["off"] != losses["on"]:
        raise Failed(f"eager and graph differ: {losses}")
    return "ten steps, eager and as graphs: the same bits", losses


def attention(c):
    """cuDNN's attention against ours; their times stand side by side in the stage kernels."""
    if not c.has_key("attention.backend"):
        raise Skipped("this build has no key attention.backend")
    if c.dry:
        raise Skipped("cuDNN is CUDA's")
    rows, data, wrong = [], {}, []
    for model in ("2 layers, head dim 64", "2 layers, head dim 128"):
        flash = c.train(f"flash {model}", c.device, 20, MODELS[model])
        try:
            cudnn = c.train(f"cudnn {model}", c.device, 20, MODELS[model] + ["--attention.backend", "cudnn"])
        except Failed as e:
            if "built without cuDNN" in str(e) or "cuDNN library" in str(e):
                raise Skipped(tail(str(e), 1))
            raise
        far = distance(cudnn, flash)
        again = c.train(f"cudnn again {model}", c.device, 20, MODELS[model] + ["--attention.backend", "cudnn"])
        rows.append((model, f"{flash[-1]:.4f}", f"{cudnn[-1]:.4f}", f"{far:.1e}", "the same bits" if again == cudnn else f"{distance(again, cudnn):.1e}"))
        data[model] = {"flash": flash, "cudnn": cudnn, "largest_difference": far}
        if far > BOUNDS["bf16"]:
            wrong.append(f"{model}: {far:.2e} > {BOUNDS['bf16']:.0e}")
    text = table(["model", "flash loss", "cuDNN loss", "largest distance", "cuDNN again"], rows)
    if wrong:
        raise Failed(text + "\n\n" + "\n".join(wrong))
    return text, data


def sanitizer(c):
    found = shutil.which("compute-sanitizer") or next((str(p) for p in (Path("/usr/local/cuda/bin/compute-sanitizer"),) if p.exists()), None)
    if not found:
        raise Skipped("compute-sanitizer was not found (CUDA toolkit)")
    if c.dry:
        raise Skipped("compute-sanitizer watches GPUs")
    rows = []
    for tool in ("memcheck", "racecheck"):
        command = c.train_command(c.work / tool, c.device, 1, MODELS["2 layers, head dim 64"] + ["--training.seq_len", "64"])
        out = c.run([found, "--tool", tool, "--error-exitcode", "7", *command], seconds=40, check=False)
        summary = next((line for line in out.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line), tail(out, 2))
        rows.append((tool, summary.replace("=", "").strip()))
        if not re.search(r"SUMMARY: 0 (errors|hazards)", summary):
            raise Failed(f"{tool}: {tail(out, 30)}")
    return table(["tool", "says"], rows), dict(rows)


def contract(c):
    if c.dry and not any((c.programs / p / "ottava_cublaslt_probe").exists() for p in ("", "tests")):
        raise Skipped("this build has no CUDA")
    out = c.run([c.program("ottava_cublaslt_probe"), *(["--dry-run"] if c.dry else [])])
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    columns = ["types", "scales", "result", "beta", "fast_accumulation", "m"]
    groups = {}
    for a in answers:
        groups.setdefault(tuple(a[k] for k in columns), {})[a["layout"]] = a["algorithms"]
    layouts = ["TN", "NN", "TT", "NT"]
    rows = [(*key, *(by.get(x, "") if by.get(x, "") is not None else "?" for x in layouts)) for key, by in groups.items()]
    return f"Algorithms offered for 4096 x 4096 x m, 32 MiB of workspace.\n\n{table(columns + layouts, rows)}", answers


def kernels(c):
    shapes, seconds = ("small", "0.01") if c.dry else ("8B", "0.1")
    out = c.run([c.program("ottava"), "bench", "kernels", "--device", c.device, "--shapes", shapes, "--seconds", seconds, "--json"], check=False)
    report = json.loads(out[out.index("{"):])
    rows = []
    for k in report["kernels"]:
        if "error" in k:
            rows.append((k["name"], k["error"], "", "", ""))
            continue
        goal = {"attention forward": 0.40, "attention backward": 0.30}.get(k["name"], 0.85 if k["bound"] == "copy" else None)
        share = k["share_of_peak"]
        rows.append((k["name"], f"{k['seconds'] * 1e6:.1f}", f"{k['bytes'] / k['seconds'] / 1e9:.0f}" if k["bound"] == "copy" else f"{k['flops'] / k['seconds'] / 1e12:.2f} T",
                     f"{100 * share:.0f}%", "" if goal is None or c.dry else ("reached" if share >= goal else f"below {100 * goal:.0f}%")))
    text = (f"Copy {report['copy_bytes_per_second'] / 1e9:.0f} GB/s, BF16 product {report['gemm_flops_per_second'] / 1e12:.1f} TFLOP/s.\n\n"
            + table(["operation", "us", "GB/s or TFLOP/s", "of the peak", "goal"], rows))
    if any("error" in k for k in report["kernels"] if not k["name"].endswith("cuDNN")):  # a library that may be missing
        raise Failed(text)
    return text, report


def bench_ours(c, flavor, layers, seq_len, batch, fp8):
    extra = ["--model.flavor", flavor, "--model.n_layers", str(layers), "--model.vocab_size", "128256"]
    if c.dry:
        extra = ["--model.n_layers", "2"]
        seq_len, batch = 128, 1
    if fp8:
        extra += ["--model.converters", "quantize.linear.float8"]
    out = c.run([c.program("ottava"), "bench", "train", "configs/debug.yaml", "--steps", "3", "--training.dataset_path", str(c.text),
                 "--training.device", c.device, "--training.seq_len", str(seq_len), "--training.local_batch_size", str(batch), *extra])
    number = lambda pattern: float(re.search(pattern, out).group(1))
    return {"tokens_per_second": number(r"tokens/s: ([\d.]+)"), "utilization_percent": number(r"utilization: ([\d.]+)%"),
            "seconds_per_step": number(r"median ([\d.]+) s"), "plan_gib": number(r"plan ([\d.]+) GiB")}


def bench_torch(c, flavor, layers, seq_len, batch, fp8):
    python = os.environ.get("OTTAVA_TORCH_PYTHON", "python3")
    command = [python, str(ROOT / "scripts/reference/bench_pytorch.py"), "--device", c.device, "--precision", "fp8" if fp8 else "bf16", "--steps", "3"]
    if c.dry:
        command += "--dim 64 --layers 2 --heads 4 --kv-heads 2 --ffn-dim 192 --vocab 512 --seq-len 64 --no-compile".split()
    else:
        command += ["--flavor", flavor, "--layers", str(layers), "--seq-len", str(seq_len), "--batch", str(batch)]
    return json.loads(c.run(command, seconds=75).strip().splitlines()[-1])


def steps(c):
    has_torch = c.run([os.environ.get("OTTAVA_TORCH_PYTHON", "python3"), "-c", "import torch"], check=False).strip() == ""
    rows, data, failed = [], [], 0
    for flavor, layers, seq_len, batch in STEP_SHAPES[:1] if c.dry else STEP_SHAPES:
        for fp8 in (False, True):
            name = f"{flavor}, {layers} layers, seq {seq_len} x {batch}, {'fp8' if fp8 else 'bf16'}"
            if c.dry:
                name = f"tiny (each side its own), {'fp8' if fp8 else 'bf16'}"
            item = {"name": name}
            for side, bench in (("ottava", bench_ours), ("torch", bench_torch)):
                if side == "torch" and not has_torch:
                    item[side] = {"error": "no PyTorch here"}
                    continue
                try:
                    item[side] = bench(c, flavor, layers, seq_len, batch, fp8)
                except (Failed, ValueError, AttributeError) as e:
                    item[side] = {"error": tail(str(e), 1)}
                    failed += side == "ottava" and not fp8
            ours, theirs = item["ottava"], item["torch"]
            cell = lambda d, k, f="{:.0f}": f.format(d[k]) if k in d and d[k] is not None else d.get("error", "")
            ratio = f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}" if "tokens_per_second" in ours and "tokens_per_second" in theirs else ""
            rows.append((name, cell(ours, "tokens_per_second"), cell(ours, "utilization_percent", "{:.1f}%"), cell(ours, "plan_gib", "{:.1f}"),
                         cell(theirs, "tokens_per_second"), cell(theirs, "tflops", "{:.0f}"), cell(theirs, "memory_gib", "{:.1f}"), ratio))
            data.append(item)
    text = table(["step", "ottava tokens/s", "utilization", "GiB", "PyTorch tokens/s", "TFLOP/s", "GiB", "ottava / PyTorch"], rows)
    if failed:
        raise Failed(text)
    return text, data


STAGES = [  # function, seconds at most
    (environment, 10), (op_tests, 100), (parity, 130), (shared_gpu, 30), (nccl, 20), (graphs, 20), (attention, 30), (sanitizer, 60), (contract, 15),
    (kernels, 40), (steps, 240)]


def main():
    p = argparse.ArgumentParser(description=__doc__, epilog="stages: " + ", ".join(f.__name__ for f, _ in STAGES))
    p.add_argument("--programs", default="build")
    p.add_argument("--dry-run", action="store_true", help="on the CPU, small: shows that every stage works, measures nothing")
    p.add_argument("--only", help="stages, separated by commas")
    p.add_argument("--seconds", type=float, default=530, help="for everything together")
    p.add_argument("--output", default="tests/gpu/reports", help="folder of the report")
    args = p.parse_args()
    names = [f.__name__ for f, _ in STAGES]
    wanted = args.only.split(",") if args.only else names
    if unknown := [w for w in wanted if w not in names]:
        p.error(f"unknown stages {', '.join(unknown)}: {', '.join(names)}")

    check = Check(args)
    began, results = time.monotonic(), []
    for stage, seconds in STAGES:
        if stage.__name__ not in wanted:
            continue
        start = time.monotonic()
        check.stage_deadline = start + seconds * max(1, args.seconds / 530)
        try:
            text, data = stage(check)
            status = "ok"
        except Skipped as e:
            status, text, data = "not run", str(e), None
        except Exception as e:
            status, text, data = "FAILED", str(e) or repr(e), None
        results.append({"stage": stage.__name__, "status": status, "seconds": round(time.monotonic() - start, 1), "report": text, "data": data})
        print(f"{stage.__name__:<12} {status:<8} {results[-1]['seconds']:>6.1f} s", flush=True)
        if status == "FAILED":
            print(tail(text, 15), flush=True)
    shutil.rmtree(check.work, ignore_errors=True)

    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    name = "dry_run" if check.dry else time.strftime("gpu_check_%Y%m%d_%H%M", time.gmtime())
    total = time.monotonic() - began
    head = [f"# gpu_check{' (dry run)' if check.dry else ''}: {when}", ""]
    if check.dry:
        head += ["**Nothing here ran on a GPU.** The CPU stood in for the device, with small shapes, to show that every stage of the "
                 "script works; no figure below is a measurement of anything.", ""]
    head += [f"`scripts/gpu_check.sh {' '.join(a for a in sys.argv[1:] if a not in ('--programs', args.programs))}`, {total:.0f} s.", "",
             table(["stage", "result", "s"], [(r["stage"], r["status"], r["seconds"]) for r in results]), ""]
    body = [f"## {r['stage']}: {r['status']}\n\n{r['report']}\n" for r in results]
    folder = ROOT / args.output
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text("\n".join(head + body))
    (folder / f"{name}.json").write_text(json.dumps({"when": when, "dry_run": check.dry, "seconds": total, "stages": results}, indent=1) + "\n")
    print(f"{folder / name}.md and .json: {sum(r['status'] == 'ok' for r in results)} of {len(results)} stages ok, {total:.0f} s")
    return 1 if any(r["status"] == "FAILED" for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
