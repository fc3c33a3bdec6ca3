"""The stages of scripts/gpu_check.sh, one after the other, and their report. Needs nothing but Python's own library."""

import argparse
import sys
import time

import goals
import report
from check import ROOT, Check, Failed, Skipped, tail
from device_tests import contract, environment, nccl, op_tests, sanitizer
from parity import CpuCurves, parity
from same_bits import attention, graphs, shared_gpu
from speed import OURS, SHAPES, kernels, steps

# Seconds at most: together less than TOTAL. What a stage leaves over is the last one's.
STAGES = [(environment, 10), (op_tests, 90), (parity, 75), (shared_gpu, 38), (nccl, 25), (graphs, 20), (attention, 25), (sanitizer, 30),
          (contract, 10), (kernels, 50), (steps, 160)]
TOTAL = 538
assert sum(seconds for _, seconds in STAGES) < TOTAL


def arguments():
    names = [stage.__name__ for stage, _ in STAGES]
    p = argparse.ArgumentParser(prog="scripts/gpu_check.sh", description=__doc__, epilog="stages: " + ", ".join(names))
    p.add_argument("--programs", default="build", help="folder of the programs (gpu_check.sh knows it)")
    p.add_argument("--dry-run", action="store_true", help="on the CPU, small: shows that every stage works, measures nothing")
    p.add_argument("--only", help="stages, separated by commas")
    p.add_argument("--seconds", type=float, default=TOTAL, help="for everything together")
    p.add_argument("--output", default="tests/gpu/reports", help="folder of the report")
    args = p.parse_args()
    args.wanted = args.only.split(",") if args.only else names
    if unknown := [w for w in args.wanted if w not in names]:
        p.error(f"unknown stages {', '.join(unknown)}: {', '.join(names)}")
    return args


def run_stage(c, stage, budget):
    start = time.monotonic()
    c.stage_deadline = c.deadline if stage is steps else start + budget
    try:
        text, data = stage(c)
        status = "ok"
    except Skipped as e:
        status, text, data = "not run", str(e), None
    except Exception as e:  # whatever it was, the others run
        status, text, data = "FAILED", str(e) or repr(e), getattr(e, "data", None)
    seconds = round(time.monotonic() - start, 1)
    print(f"{stage.__name__:<12} {status:<8} {seconds:>6.1f} s", flush=True)
    if status == "FAILED":
        print(tail(text, 15), flush=True)
    return {"stage": stage.__name__, "status": status, "seconds": seconds, "budget": round(budget), "report": text, "data": data}


def judged(results):
    """The goals of the stages that ran."""
    data = {r["stage"]: r["data"] for r in results}
    out = [goals.memory_goal(data["parity"])] if "parity" in data else []
    if data.get("kernels"):
        out += goals.kernel_goals(data["kernels"])
    if data.get("steps"):
        out += goals.step_goals(list(SHAPES), [shape for shape, precision in OURS if precision == "auto"], data["steps"])
    return out


def budgets_of(wanted, seconds):
    """Seconds of each wanted stage: its own, or more where the wanted ones leave time over."""
    own = {stage.__name__: budget for stage, budget in STAGES if stage.__name__ in wanted}
    scale = max(1, seconds / sum(own.values()))
    return {name: budget * scale for name, budget in own.items()}


def main():
    args = arguments()
    c = Check(args.dry_run, args.programs, args.seconds)
    began, results, budgets = time.monotonic(), [], budgets_of(args.wanted, args.seconds)
    try:
        if "parity" in args.wanted:
            c.curves = CpuCurves(c, sum(budgets.get(name, 0) for name in ("environment", "op_tests", "parity")))
        for stage, _ in STAGES:
            if stage.__name__ in args.wanted:
                results.append(run_stage(c, stage, budgets[stage.__name__]))
            if stage is parity and c.curves:
                c.curves.close()  # the CPU is quiet while the device is measured
    finally:
        c.close()
    total = time.monotonic() - began
    aims = [] if c.dry else judged(results)
    command = "scripts/gpu_check.sh " + " ".join(a for a in sys.argv[1:] if a not in ("--programs", args.programs))
    path = report.write(ROOT / args.output, command.strip(), results, aims, c.dry, total)
    for g in aims:
        print(f"{g['verdict']:<12} {g['goal']}: {g['measured']}")
    print(f"{path}.md and .json: {sum(r['status'] == 'ok' for r in results)} of {len(results)} stages ok, {total:.0f} s")
    return 1 if any(r["status"] == "FAILED" for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
