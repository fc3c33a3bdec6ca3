"""The stage in which compute-sanitizer watches our kernels train a step."""

import concurrent.futures
import re
import shutil
from pathlib import Path

from check import Failed, Skipped, TimedOut, tail
from models import MODELS
from report import table

OURS = "ottava"  # in the name of every kernel of ours, mangled or not
TOOLS = ("memcheck", "racecheck")
# Where a tool cannot bear the step, it watches cases of ours, in which the libraries multiply nothing.
CASES = ("rms_norm_forward agrees*", "rms_norm_backward agrees*", "rope rotates*", "swiglu_forward agrees*", "cross_entropy agrees*",
         "embedding*", "amax*", "grad_norm_squared sums*", "rms_norm_backward in FP8: codes*", "quantize: scales and their padding*",
         "swiglu_backward in FP8: codes*", "adamw agrees*", "attention agrees with*", "attention's gradients of a sequence*")
SECONDS_OF_CASES = 20  # for a pattern; more where the stage has more
TOOL_FAULT = "Internal Sanitizer Error"


def records(out):
    """Errors and hazards, one after the other: blocks of lines that begin with ========= and end with an empty one."""
    blocks, block = [], []
    for line in out.splitlines():
        text = line.lstrip("=").strip() if line.startswith("=====") else None
        if text and not re.match(r"COMPUTE-SANITIZER|\w+ SUMMARY", text):
            block.append(text)
        elif block:
            blocks.append(block)
            block = []
    return ["\n".join(b) for b in [*blocks, block] if b]


def is_of_our_kernels(record):
    """By the device's part of the record, before the host's backtrace; a call that the driver refused is none of a kernel."""
    return OURS in re.split(r"Saved host backtrace|Host Frame", record, maxsplit=1)[0] and not record.startswith("Program hit")


def read_sanitizer(tool, out, end="Training completed"):
    """("ok", "FAILED" or "not run", what it says) of a program that says `end` where it comes to it. Faults in the libraries' kernels
    are said and are not ours."""
    if TOOL_FAULT in out:
        return "not run", f"{tool} itself fails: {tail(out, 4)}"
    if refusal := re.search(r"Device not supported|device is not supported|Unable to find injection library|Failed to initialize", out):
        return "not run", f"{tool} does not work here: {refusal.group(0)}"
    summary = next((line.replace("=", "").strip() for line in out.splitlines() if re.search(r"(ERROR|RACECHECK) SUMMARY", line)), None)
    if not summary or end not in out:
        return "FAILED", tail(out, 30)
    if re.search(r"SUMMARY: 0 (errors|hazards)", summary):
        return "ok", summary
    found = records(out)
    ours = [r for r in found if is_of_our_kernels(r)]
    if ours or not found:
        return "FAILED", f"{summary}; {len(ours)} in our kernels:\n{ours[0][:2000] if ours else tail(out, 30)}"
    return "ok", f"{summary}, none of them in our kernels: {found[0].splitlines()[0]}"


def kernel_filter(c, program):
    """Options by which this compute-sanitizer watches our kernels only: of those that its --help lists the first that it takes;
    none where it takes none."""
    def said(*words):
        try:
            return c.run([program, *words], check=False, seconds=10)
        except TimedOut as e:
            return e.output

    def of_nothing(options):
        """What it says of a program without kernels."""
        return re.sub(r"\d+", "", said(*options, "/bin/true"))

    text, plain = said("--help"), of_nothing([])
    for option in ("--kernel-name", "--kernel-regex", "--filter"):
        for key in ("kns", "kernel_substring"):
            if re.search(rf"{option}[ ,=]", text) and of_nothing([option, f"{key}={OURS}"]) == plain:
                return [option, f"{key}={OURS}"]
    return []


def sanitizer(c):
    found = shutil.which("compute-sanitizer") or next((str(p) for p in (Path("/usr/local/cuda/bin/compute-sanitizer"),) if p.exists()), None)
    if not found:
        raise Skipped("compute-sanitizer was not found (CUDA toolkit)")
    if c.dry:
        raise Skipped("compute-sanitizer watches GPUs")

    def command(name):
        small = ["--training.seq_len", "64", "--training.cuda_graphs", "off"]
        return [c.program("ottava"), *c.train_command(c.folder(name), c.device, 1, MODELS["2 layers, head dim 64"] + small)]

    # Once unwatched: products of these sizes are measured then, and chosen from the cache when they are watched.
    try:
        unwatched = c.run(command("unwatched"), check=False, seconds=0.3 * c.seconds_left())
    except TimedOut as e:
        unwatched = e.output
    options = kernel_filter(c, found)

    def watch(tool):
        try:
            out = c.run([found, "--tool", tool, *options, *command(tool)], check=False)
        except TimedOut as e:
            return "not run", str(e).splitlines()[0].split(":")[0]
        verdict, says = read_sanitizer(tool, out)
        return watch_cases(tool, says) if TOOL_FAULT in out else (verdict, says)

    def watch_cases(tool, fault):
        """Of those that time allows, whatever becomes of the others; which were not watched to their end is told, too."""
        watched, wrong, late, failing = [], [], [], []
        for i, cases in enumerate(CASES):
            share = c.seconds_left() / (len(CASES) - i)
            try:
                out = c.run([found, "--tool", tool, *options, c.program("ottava_device_tests"), cases], check=False,
                            env={"OTTAVA_TEST_DEVICES": c.device}, seconds=max(SECONDS_OF_CASES, share))
            except TimedOut:
                late.append(cases)
                continue
            verdict, says = read_sanitizer(tool, out, "All tests passed")
            if verdict == "FAILED":
                wrong.append(f"{cases}: {says}")
            else:
                (watched if verdict == "ok" else failing).append(cases)
        parts = [f"{what} {', '.join(cases)}; " for what, cases in (("nothing wrong in the cases", watched), ("the time was up in", late),
                                                                    ("the tool fails in", failing)) if cases]
        said = f"{''.join(parts)}of a step {fault}"
        if wrong:
            return "FAILED", "\n\n".join([*wrong, said])
        return "ok" if watched else "not run", said

    with concurrent.futures.ThreadPoolExecutor(len(TOOLS)) as pool:
        answers = dict(zip(TOOLS, pool.map(watch, TOOLS)))
    text = f"Watched: {' '.join(options) or 'all kernels, ours and the libraries'}.\n\n" + table(
        ["tool", "result", "says"], [(tool, verdict, says.splitlines()[0]) for tool, (verdict, says) in answers.items()])
    text += "".join(f"\n\n{tool}:\n\n```\n{says}\n```" for tool, (_, says) in answers.items() if "\n" in says)
    if "Training completed" not in unwatched:
        raise Failed(f"Unwatched, the step does not come to its end either:\n{tail(unwatched)}\n\n{text}", answers)
    verdicts = [verdict for verdict, _ in answers.values()]
    if "FAILED" in verdicts:
        raise Failed(text, answers)
    if "ok" not in verdicts:
        raise Skipped(text)
    return text, answers
