"""The stage that asks what cuBLASLt offers on this GPU."""

import re

from check import Failed, Skipped, TimedOut, json_lines, tail
from report import table

COLUMNS = ["types", "scales", "result", "beta", "fast_accumulation", "m", "n", "k"]
LAYOUTS = ["TN", "NN", "TT", "NT"]
FAULTS = 8  # as many times it goes on behind a question that ended it


def ask(c):
    """(answers, faults): a fault is the question that ended the program, and what it said; the next run goes on behind it."""
    answers, faults, first = [], [], 0  # a run without an answer is one, too
    while len(faults) < FAULTS:
        try:
            code, out = c.execute([c.program("ottava_cublaslt_probe"), *(["--dry-run"] if c.dry else ["--from", str(first)])])
            ended = f"exit code {code}"
        except TimedOut as e:
            code, out, ended = None, e.output, str(e).splitlines()[0].split(":")[0]
        answers += json_lines(out)
        if code == 0 and answers:
            break
        asked = re.findall(r"^asking (\d+) (.*)$", out, re.M)
        number, question = asked[-1] if asked else (None, "the first")
        faults.append({"question": question, "ended": ended, "said": tail(out, 5)})
        if number is None or not code:  # it does not start, or time is up
            break
        first = int(number) + 1
    return answers, faults


def contract(c):
    if c.dry and not any((c.programs / p / "ottava_cublaslt_probe").exists() for p in ("", "tests")):
        raise Skipped("this build has no CUDA")
    answers, faults = ask(c)
    groups = {}
    for a in answers:
        if not all(k in a for k in [*COLUMNS, "layout", "algorithms"]):
            continue
        ran = a.get("ran", "")
        refused = ran and ran != "success"
        groups.setdefault(tuple(a[k] for k in COLUMNS), {})[a["layout"]] = f"{a['algorithms']}, but {ran}" if refused else a["algorithms"]
    rows = [(*key, *(by.get(x, "") if by.get(x, "") is not None else "?" for x in LAYOUTS)) for key, by in groups.items()]
    text = ("Algorithms offered for m x k times k x n, 32 MiB of workspace; with scales of rows or blocks the first ran once. Training's "
            f"scales of blocks are 128x128, 1x128: its A is the weight.\n\n{table(COLUMNS + LAYOUTS, rows)}")
    if faults:
        text = "\n".join(f"Ended ({f['ended']}) by the question: {f['question']}\n\n```\n{f['said']}\n```\n" for f in faults) + "\n" + text
        raise Failed(text, {"answers": answers, "faults": faults})
    return text, answers
