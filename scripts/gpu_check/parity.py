"""Training on the device against the CPU: losses, the recipes that a GPU lacks, and the memory that a run takes."""

import concurrent.futures
import dataclasses
import os
import re
import time

from check import Failed, TimedOut, distance, tail
from models import EARLY, EARLY_STEPS, LATE, MODELS, RECIPES, recipes_of, steps_of
from report import table


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    precision: str
    kind: str  # of EARLY and LATE
    extra: tuple
    recipe: str = ""
    if_time_allows: bool = False

    def name(self):
        return f"{self.model} {self.precision}"

    def bounds(self):
        return f"{EARLY[self.kind]:.0e}, {LATE[self.kind]:.0e}"


def float8_case(model, recipe, if_time_allows):
    keys = ("--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", recipe,
            "--quantize.linear.float8.auto", "false")
    return Case(model, recipe, "fp8", (*MODELS[model], *keys), recipe, if_time_allows)


def cases():
    out = [Case(model, dtype, kind, (*MODELS[model], "--training.mixed_precision_param", dtype))
           for dtype, kind in (("bfloat16", "bf16"), ("float32", "f32")) for model in MODELS]
    for model, if_time_allows in (("2 layers, head dim 64", False), ("2 layers, head dim 128", True)):
        out += [float8_case(model, recipe, if_time_allows) for recipe in RECIPES]
    return out


class CpuCurves:
    """The CPU's side, four threads a run, in the background from the first stage on."""

    def __init__(self, c, seconds):
        self.c, cores = c, os.cpu_count() or 1
        self.pool = concurrent.futures.ThreadPoolExecutor(max(1, cores // 4 - 1))
        threads, until = {"OMP_NUM_THREADS": str(min(4, cores))}, time.monotonic() + seconds
        self.futures = {case: self.pool.submit(c.train, f"cpu {case.name()}", "cpu", steps_of(c), case.extra, env=threads, until=until)
                        for case in cases()}

    def losses(self, case):
        return self.futures[case].result().curve()

    def close(self):
        """Those that have not begun never do; call it when no other program is to go on."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.c.end_running()
        self.pool.shutdown()


def read_memory(output):
    """The line of Trainer::report_gpu_memory, in MiB; None without one."""
    line = re.search(r"GPU memory: plan ([\d.]+) MiB, and (-?[\d.]+) MiB .*\((?:of|more than) the (\d+) MiB kept for them\)", output)
    return dict(zip(("plan", "besides", "limit"), map(float, line.groups()))) if line else None


def judge_memory(memory):
    """Whether a run took what was planned and, besides, no more than the stated constant."""
    if memory is None:
        return "FAILED: no line 'GPU memory: plan ...' in the log"
    return "as planned" if 0 <= memory["besides"] <= memory["limit"] else "FAILED: beyond the plan and the constant"


def judge_error(case, error, capability):
    """"refused as expected" only for a recipe that a GPU of this capability lacks, by the sentence that says so."""
    expected = capability is not None and case.recipe and case.recipe not in recipes_of(capability)
    if expected and f"this GPU does not multiply recipe {case.recipe} " in str(error):
        return "refused, as expected of this GPU"
    if isinstance(error, TimedOut) and case.if_time_allows:
        return "not measured: no time was left"
    reason = str(error).splitlines()[0] if isinstance(error, TimedOut) else tail(str(error), 1)
    return f"FAILED: {reason}"


def judge_losses(case, device, cpu, capability):
    far, early = distance(device, cpu), distance(device[:EARLY_STEPS], cpu[:EARLY_STEPS])
    if capability is not None and case.recipe and case.recipe not in recipes_of(capability):
        return far, early, "FAILED: this GPU lacks the recipe and ran it"
    if not early <= EARLY[case.kind]:
        return far, early, f"FAILED: too far in the first {EARLY_STEPS} steps, {early:.2e} > {EARLY[case.kind]:.0e}"
    return far, early, "agrees" if far <= LATE[case.kind] else f"FAILED: too far, {far:.2e} > {LATE[case.kind]:.0e}"


def compare(c, case, capability):
    """(row of the table, data)."""
    row, data = [case.model, case.precision, "", "", "", "", case.bounds()], {"model": case.model, "precision": case.precision}
    try:
        device = c.train(f"device {case.name()}", c.device, steps_of(c), case.extra)
        cpu = c.curves.losses(case)
        far, early, verdict = judge_losses(case, device.curve(), cpu, capability)
        row[2:6] = f"{cpu[-1]:.4f}", f"{device.curve()[-1]:.4f}", f"{early:.1e}", f"{far:.1e}"
        data |= {"cpu": cpu, "device": device.curve(), "largest_difference": far, "largest_early_difference": early, "memory": read_memory(device.output)}
    except (Failed, concurrent.futures.CancelledError) as e:
        verdict = judge_error(case, e, capability)
        data["error"] = str(e)
    return row + [verdict], data | {"verdict": verdict}


def parity(c):
    capability, all_cases = c.compute_capability(), cases()
    if c.curves is None:
        c.curves = CpuCurves(c, c.seconds_left())
    # The first ones alone on the device: what they say of its memory is then their own. The others side by side.
    alone = all_cases[:len(MODELS)]
    answers = [compare(c, case, capability) for case in alone]
    with concurrent.futures.ThreadPoolExecutor(1 if c.dry else 3) as pool:
        answers += pool.map(lambda case: compare(c, case, capability), all_cases[len(alone):])
    text = table(["model", "precision", "CPU loss", "device loss", f"largest distance in {EARLY_STEPS} steps", "in all", "bounds", ""],
                 [row for row, _ in answers])
    data = {"losses": [item for _, item in answers], "memory": []}
    wrong = [f"{row[0]}, {row[1]}: {row[-1]}" for row, _ in answers if row[-1].startswith("FAILED")]
    if not c.dry:
        rows = []
        for item in data["losses"][:len(alone)]:
            memory, verdict = item.get("memory"), judge_memory(item.get("memory"))
            rows.append((item["model"], *((memory[k] for k in ("plan", "besides", "limit")) if memory else ("", "", "")), verdict))
            data["memory"].append({"model": item["model"], **(memory or {}), "verdict": verdict})
            if verdict.startswith("FAILED"):
                wrong.append(f"memory of {item['model']}: {verdict}")
        text += "\n\nThe GPU's memory in MiB, after three steps:\n\n" + table(["model", "plan", "besides", "at most besides", ""], rows)
    if wrong:
        raise Failed(text + "\n\n" + "\n".join(wrong), data)
    return text, data
