"""The stages of scripts/gpu_check.sh, one after the other, and their report. Needs nothing but Python's own library."""

import argparse
import signal
import sys
import time
from pathlib import Path

import goals
import report
from check import ROOT, Check, NotMeasured, Skipped, tail
from contract import contract
from device_tests import environment, nccl
from first_training import first_training
from op_tests import op_tests
from parity import CpuCurves, parity
from program_output import OutputLog
from same_bits import attention, graphs, shared_gpu
from sanitizer import sanitizer
from speed import kernels, steps

# Seconds: together less than TOTAL. A stage may go on until all up to it would have ended, the last one to the end: what one leaves
# over is the next one's.
STAGES = [(environment, 10), (op_tests, 90), (first_training, 30), (parity, 70), (shared_gpu, 38), (nccl, 22), (graphs, 20), (attention, 25),
          (sanitizer, 60), (contract, 10), (kernels, 55), (steps, 105)]
TOTAL = 538
assert sum(seconds for _, seconds in STAGES) < TOTAL
FILLS_ITS_TIME = {"sanitizer"}  # however much that is: where steps follow, what is left over is theirs
TRAININGS = {"parity", "shared_gpu", "nccl", "attention", "steps"}  # for which it matters whether graphs work


def arguments():
    names = [stage.__name__ for stage, _ in STAGES]
    p = argparse.ArgumentParser(prog="scripts/gpu_check.sh", description=__doc__, epilog="stages: " + ", ".join(names))
    p.add_argument("--programs", default="build", help="folder of the programs (gpu_check.sh knows it)")
    p.add_argument("--dry-run", action="store_true", help="on the CPU, small: shows that every stage works, measures nothing")
    p.add_argument("--caller", help="folder that a relative --output is in (gpu_check.sh knows it)")
    p.add_argument("--only", help="stages, separated by commas")
    p.add_argument("--without", help="stages that are left out, separated by commas")
    p.add_argument("--seconds", type=float, default=TOTAL, help="for everything together")
    p.add_argument("--read-options", action="store_true", help="only say what is wrong with the options (gpu_check.sh knows it)")
    p.add_argument("--output", help="folder of the report (default: tests/gpu/reports of the sources or the bundle)")
    args = p.parse_args()
    args.reports = Path(args.caller or ".") / args.output if args.output else ROOT / "tests/gpu/reports"
    named = [word for text in (args.only, args.without) if text for word in text.split(",")]
    if unknown := [word for word in named if word not in names]:
        p.error(f"unknown stages {', '.join(unknown)}: {', '.join(names)}")
    args.wanted = stages_of(args.only, args.without)
    if not args.wanted:
        p.error("no stage is left")
    return args


def stages_of(only, without):
    """Names, in order; whatever is measured, on what, and before a training the first one."""
    wanted = [s.__name__ for s, _ in STAGES if (not only or s.__name__ in only.split(",")) and (not without or s.__name__ not in without.split(","))]
    more = {environment} if wanted and "environment" not in (without or "").split(",") else set()
    more |= {first_training} if TRAININGS & set(wanted) else set()
    return [s.__name__ for s, _ in STAGES if s.__name__ in wanted or s in more]


def run_stage(c, stage, seconds):
    """`seconds`: from now until it has to end."""
    start = time.monotonic()
    c.stage_deadline = min(c.deadline, start + seconds)
    try:
        text, data = stage(c)
        status = "ok"
    except Skipped as e:
        status, text, data = "not run", str(e), None
    except NotMeasured as e:
        status, text, data = "not measured", str(e), e.data
    except Exception as e:  # whatever it was, the others run
        status, text, data = "FAILED", str(e) or repr(e), getattr(e, "data", None)
    took = round(time.monotonic() - start, 1)
    print(f"{stage.__name__:<14} {status:<12} {took:>6.1f} s", flush=True)
    if status == "FAILED":
        print(tail(text, 15), flush=True)
    return {"stage": stage.__name__, "status": status, "seconds": took, "budget": round(max(seconds, 0)), "report": text, "data": data}


def judged(results):
    """The goals of the stages that ran, as far as their data go."""
    data = {r["stage"]: r["data"] for r in results}
    makers = {"parity": lambda d: [goals.memory_goal(d)], "kernels": goals.kernel_goals, "steps": goals.step_goals}
    out = []
    for stage, make in makers.items():
        try:
            if stage == "parity" and stage in data or data.get(stage):
                out += make(data[stage])
        except Exception as e:  # the rest of the report stands
            out.append(goals.goal(f"the goals of the stage {stage}", repr(e)))
    return out


def budgets_of(wanted, seconds):
    """Seconds of each wanted stage: its own, or more where the wanted ones leave time over."""
    own = {stage.__name__: budget for stage, budget in STAGES if stage.__name__ in wanted}
    scale = max(1, seconds / sum(own.values()))
    return {name: budget * scale for name, budget in own.items()}


def ends_of(budgets):
    """Seconds from the beginning at which each has to end."""
    out, end = {}, 0
    for name, budget in budgets.items():
        end += budget
        out[name] = end
    return out


class Run:
    """The stages of one call, and the report that is there after each of them."""

    def __init__(self, args):
        self.args, self.began, self.results = args, time.monotonic(), []
        self.partial = None  # of the stage under way
        self.path = args.reports / report.name_of(args.dry_run)
        # A dry run's output is no finding.
        self.c = Check(args.dry_run, args.programs, args.seconds, None if args.dry_run else OutputLog(self.path.with_suffix(".log.gz")))

    def write(self, under_way=""):
        results = self.results
        if self.partial:
            results, under_way = [*results, self.partial], self.partial["stage"]
        words = [a for a in sys.argv[1:] if a not in ("--programs", self.args.programs, "--caller", self.args.caller)]
        aims = [] if self.args.dry_run else judged(results)
        try:
            report.write(self.path, " ".join(["scripts/gpu_check.sh", *words]), results, aims, self.args.dry_run,
                         time.monotonic() - self.began, under_way)
        except OSError as e:  # a full disk; what is printed is left
            print(f"the report was not written: {e}", flush=True)
        return aims

    def noting(self, name, seconds):
        began = time.monotonic()

        def so_far(text, data):
            took = round(time.monotonic() - began, 1)
            self.partial = {"stage": name, "status": "under way", "seconds": took, "budget": round(max(seconds, 0)), "report": text, "data": data}
            self.write()
        return so_far

    def stages(self):
        c, budgets = self.c, budgets_of(self.args.wanted, self.args.seconds)
        ends = ends_of(budgets)
        self.write(self.args.wanted[0])
        if "parity" in self.args.wanted:
            c.curves = CpuCurves(c, ends["parity"])
        for stage, _ in STAGES:
            name = stage.__name__
            # Graphs that do not work are red where nobody asked for them, too.
            if name in self.args.wanted or (stage is graphs and c.graphs_fault):
                end = self.args.seconds if stage is steps else ends.get(name, 0)
                left = self.began + end - time.monotonic()
                if name in FILLS_ITS_TIME and "steps" in self.args.wanted:
                    left = min(left, budgets[name])
                c.so_far = self.noting(name, left)
                self.results.append(run_stage(c, stage, left))
                self.partial = None
                done = {r["stage"] for r in self.results}
                self.write(next((w for w in self.args.wanted if w not in done), ""))
            if stage is parity and c.curves:
                c.curves.close()  # the CPU is quiet while the device is measured
                c.curves = None


def main():
    args = arguments()
    if args.read_options:
        return 0
    run = Run(args)

    def stop(*_):
        run.c.end()
        sys.exit(143)  # through the end of this

    signal.signal(signal.SIGTERM, stop)
    try:
        run.stages()
    finally:
        aims = run.write()
        run.c.close()
    for g in aims:
        print(f"{g['verdict']:<12} {g['goal']}: {g['measured']}")
    total = time.monotonic() - run.began
    print(f"{run.path}.md and .json: {sum(r['status'] == 'ok' for r in run.results)} of {len(run.results)} stages ok, {total:.0f} s")
    return 1 if any(r["status"] == "FAILED" for r in run.results) else 0


if __name__ == "__main__":
    sys.exit(main())
