#!/usr/bin/env python3
"""What the compiler made of the kernels, without a GPU: registers, shared memory and spills of each, tensor-core and 16-byte
instructions in its machine code, and the time that bytes and FLOPs of each operation take at an H200's ceilings.

    scripts/kernel_report.py [--program build/ottava] [--arch sm_90a] [--output tests/gpu/reports/kernels_sm90a.md]

Needs a program built with CUDA and cuobjdump (CUDA toolkit, or pip's nvidia-cuda-cuobjdump with nvidia-cuda-nvdisasm; the
folder of both in PATH). Prints what deserves a look: spills, narrow accesses, registers that leave few warps.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMORY, BF16 = 4.8e12, 989e12  # an H200's data sheet: bytes/s, dense BF16 FLOP/s
CLOCKS = 4  # of a tensor core, for one m16n8k16 at that rate


def output(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def resources(program, arch):
    found = {}
    name = None
    for line in output("cuobjdump", "-arch", arch, "--dump-resource-usage", program).splitlines():
        if m := re.match(r"\s*Function (\S+):", line):
            name = m.group(1)
        elif name and "REG:" in line:
            found[name] = {k.lower(): int(v) for k, v in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line)}
    return found


def instructions(program, arch):
    """Per kernel: counts of what matters."""
    found, now = defaultdict(Counter), None
    process = subprocess.Popen(["cuobjdump", "-arch", arch, "--dump-sass", program], stdout=subprocess.PIPE, text=True, errors="replace")
    pattern = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+|@!?U?PT\s+)?([A-Z0-9_.]+)")
    for line in process.stdout:
        if "Function :" in line:
            now = found[line.split("Function :")[1].strip()]
        elif now is not None and (m := pattern.search(line)):
            op, *rest = m.group(1).split(".")
            now["all"] += 1
            if op in ("HMMA", "HGMMA", "QGMMA", "LDGSTS", "LDSM"):
                now[op] += 1
            elif op in ("LDL", "STL"):
                now["spill"] += 1
            elif op in ("LDG", "STG"):
                width = next((r for r in rest if r in ("64", "128", "256", "U8", "U16", "S8", "S16")), "32")
                now[f"{op}.{'128' if width in ('128', '256') else 'narrow'}"] += 1
            elif op.startswith("ATOM") or op == "RED":
                now["atomics"] += 1
    process.wait()
    return found


def warps(registers):
    """Of the 64 that an SM holds, how many fit beside each other as far as registers go."""
    return min(64, 65536 // (max(registers, 24) + 7 >> 3 << 3) // 32)


def short(name, mangled):
    file = re.search(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_[0-9a-f]+", mangled)
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|ottava::|cuda::|void |\(bool\)|\(int\)", "", name)
    depth, cut = 0, len(name)
    for i, ch in enumerate(name):
        depth += (ch == "<") - (ch == ">")
        if ch == "(" and depth == 0:
            cut = i
            break
    return (f"{file.group(1)}: " if file else "") + name[:cut].replace("__nv_bfloat16", "bf16").replace("bfloat16", "bf16").strip()


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def operations(program, recipe):
    """Of a step of one 8B block, in BF16 or with FP8 of a recipe."""
    size = "--model.flavor 8B --model.n_layers 1 --model.vocab_size 128256 --training.seq_len 8192 --training.local_batch_size 2".split()
    float8 = ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", recipe] if recipe else []
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        output(program, "bench", "kernels", "--count", "--json", file.name, "--training.device", "cuda", *size, *float8)
        return json.loads(Path(file.name).read_text())["kernels"]  # another file of that name


def ceilings(program):
    rows, known = [], set()
    for recipe in (None, "tensorwise", "rowwise", "blockwise"):
        for k in operations(program, recipe):
            if (k["name"], k["operands"]) in known:
                continue
            known.add((k["name"], k["operands"]))
            memory, compute = k["bytes"] / MEMORY, k["flops"] / BF16
            intensity = k["flops"] / k["bytes"]
            rows.append((k["name"] + (f", {recipe}" if recipe else ""), f"{k['bytes'] / 1e6:.0f}", f"{k['flops'] / 1e9:.0f}" if k["flops"] else "",
                         f"{intensity:.0f}" if intensity else "", f"{1e6 * max(memory, compute):.0f}", "memory" if memory >= compute else "tensor cores"))
    return table(["operation", "MB", "GFLOP", "FLOP/byte", "us at the ceiling", "bound by"], rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/ottava"))
    p.add_argument("--arch", default="sm_90a")
    p.add_argument("--output", default=str(ROOT / "tests/gpu/reports/kernels_sm90a.md"))
    args = p.parse_args()
    if not shutil.which("cuobjdump"):
        p.error("cuobjdump was not found: put the CUDA toolkit's bin, or pip's nvidia/cu13/bin, on PATH")

    used, code = resources(args.program, args.arch), instructions(args.program, args.arch)
    kernels = sorted(set(used) | set(code))
    if not kernels:
        p.error(f"{args.program} has no code for {args.arch}: build with CUDA for it")
    demangled = dict(zip(kernels, output("c++filt", text="\n".join(kernels)).splitlines()))
    rows, looks, issue = [], [], []
    for k in sorted(kernels, key=lambda k: short(demangled[k], k)):
        r, c = used.get(k, Counter()), code.get(k, Counter())
        wide, narrow = c["LDG.128"] + c["STG.128"], c["LDG.narrow"] + c["STG.narrow"]
        name = short(demangled[k], k)
        rows.append((f"`{name}`", r.get("reg", "?"), warps(r.get("reg", 0)), r.get("shared", 0), r.get("stack", 0), c["spill"], c["HMMA"], c["HGMMA"] + c["QGMMA"],
                     c["LDGSTS"], wide, narrow, c["atomics"], c["all"]))
        if c["HMMA"]:
            issue.append((f"`{name}`", c["HMMA"], c["all"], f"{100 * min(1, CLOCKS * c['HMMA'] / c['all']):.0f}%"))
        if c["spill"]:
            looks.append((name, f"{c['spill']} loads and stores of local memory"))
        if warps(r.get("reg", 0)) <= 16:
            looks.append((name, f"{r['reg']} registers leave {warps(r['reg'])} warps an SM"))
    compiler = next((line for line in output("cuobjdump", "--version").splitlines() if "release" in line), "")
    parts = [f"# Kernels as compiled for {args.arch}", "",
             f"`scripts/kernel_report.py`; {len(kernels)} kernels (instantiations counted), machine code read with {compiler.strip()}. Nothing here "
             "was measured: it is what the compiler made, and what an H200's data sheet allows.", "",
             "## Bytes, FLOPs and ceilings", "",
             "The distinct operations of a step of one 8B block (two sequences of 8192, vocabulary 128256), in BF16 and what FP8 recipes add, against "
             "4.8 TB/s and 989 TFLOP/s.", "", ceilings(args.program), "",
             "## What deserves a look", "",
             table(["kernel", "why"], [(f"`{n}`", w) for n, w in looks]) if looks else "Nothing: no spills, no kernel left with 16 warps or fewer.", "",
             "## Tensor cores and issue slots", "",
             f"A scheduler issues an instruction a clock, and an m16n8k16 keeps its tensor core busy for {CLOCKS} at the data sheet's rate (mma.sync "
             "reaches about 60% of that). So of the data sheet's FLOP/s at most this share, counting every instruction of the kernel as part of "
             "its loop. Backward as a whole computes 7 products for 5 that count.", "",
             table(["kernel", "HMMA", "instructions", "at most"], issue), "",
             "## Every kernel", "",
             "Warps: that fit on an SM by registers (64 at most). HMMA: `mma.sync`; HGMMA, QGMMA: `wgmma` BF16 and FP8. Async: `cp.async`. Wide and "
             "narrow: global loads and stores in the code of 16 bytes and of fewer. Spills: local loads and stores.", "",
             table(["kernel", "registers", "warps", "shared", "stack", "spills", "HMMA", "GMMA", "async", "wide", "narrow", "atomics", "instructions"], rows), ""]
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    Path(args.output).write_text("\n".join(parts))
    print(f"{args.output}: {len(kernels)} kernels, {len(looks)} that deserve a look")
    for name, why in looks:
        print(f"  {name}: {why}")


if __name__ == "__main__":
    sys.exit(main())
