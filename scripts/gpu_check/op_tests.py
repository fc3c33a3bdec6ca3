"""The stage that runs the tests of operations and steps on the device, so that each case gets a verdict: an error that a GPU
does not forget fails every later case of its process, so there are several; one that a case ends is followed by another, and what
failed behind a failed case runs again alone."""

import concurrent.futures
import dataclasses
import itertools
import os
import re
import time

from check import Failed, TimedOut, tail
from report import table

GROUPS, AT_ONCE = 8, 4
SECONDS_OF_A_CASE = 25  # then it hangs
TOGETHER, ALONE = 0.75, 0.85  # of the stage's time, from its beginning: until when groups, and cases that share no GPU, are run
TOLD, SHOWN = 150, 30  # cases in the report's table, and those whose output is in it
number = itertools.count()


@dataclasses.dataclass
class Verdict:
    case: str
    result: str  # "passed", "skipped", "FAILED", "" where there is none
    says: str = ""
    is_behind: bool = False  # behind a failed one in its process


def list_cases(c, *pattern):
    program = c.program("ottava_device_tests")
    out = c.run([program, "--list-test-names-only", *pattern], check=False, seconds=20)
    if "nrecogni" in out:  # Catch2 3
        out = c.run([program, "--list-tests", "--verbosity", "quiet", *pattern], check=False, seconds=20)
    return [line.strip() for line in out.splitlines() if line.strip()]


def read_account(text):
    """{case: Verdict} of the lines that tests/support/main.cpp writes as each case ends."""
    out = {}
    for what, case, *reason in (line.split("\t") for line in text.splitlines() if "\t" in line):
        if what == "ran":
            out.setdefault(case, Verdict(case, "passed"))
        elif what == "skipped":
            out[case] = Verdict(case, "skipped", " ".join(reason))
        elif what == "failed":
            out[case] = Verdict(case, "FAILED")
    return out


def escaped(case):
    """As Catch2 takes it as a name: a comma separates patterns, also between quotation marks."""
    return re.sub(r'([\\,\["])', r"\\\1", case)


def run_cases(c, cases, until, threads):
    """(verdicts, how many of the cases are settled) of one process, which goes no further than the case that ends it. None are
    settled when time is up."""
    mine = c.work / f"cases-{next(number)}"
    names, account = mine.with_suffix(".names"), mine.with_suffix(".account")
    names.write_text("\n".join(escaped(case) for case in cases) + "\n")
    env = {"OTTAVA_TEST_DEVICES": c.device, "OTTAVA_TEST_CASES": str(account), "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    try:
        code, out = c.execute([c.program("ottava_device_tests"), "--durations", "no", "-f", str(names)], env=env, until=until,
                              watched=(account, SECONDS_OF_A_CASE))
        ended = f"exit code {code}"
    except TimedOut as e:
        code, out, ended = None, e.output, str(e).splitlines()[0].split(":")[0]
    known = read_account(account.read_text(errors="replace")) if account.exists() else {}
    verdicts = [known.get(case) or Verdict(case, "") for case in cases]
    has_failed = False
    for v in verdicts:
        v.is_behind = has_failed
        if v.result == "FAILED":
            v.says, has_failed = f"{ended}\n{tail(out, 25)}", True
    reached = next((i for i, v in enumerate(verdicts) if not v.result), len(cases))
    if reached == len(cases):
        return verdicts, reached
    here = verdicts[reached]
    here.says = f"{ended}\n{tail(out, 25)}"
    if code == 0:
        here.says = f"it was not run, or says nothing of itself\n{tail(out, 5)}"
    elif code is None and not ended.startswith("nothing new"):
        return verdicts, len(cases)  # time is up
    elif code is not None and reached > 0 and verdicts[reached - 1].result == "FAILED":
        return verdicts, reached  # which has ended the process
    here.result = "FAILED"
    return verdicts, reached + 1


def run_group(c, cases, until, threads):
    out = []
    while cases:
        verdicts, settled = run_cases(c, cases, until, threads)
        out += verdicts[:settled]
        cases = cases[settled:]
    return out


def alone(c, v, until, threads):
    """The verdict of a case in a process of its own, where it had failed behind another."""
    again = run_cases(c, [v.case], until, threads)[0][0]
    if again.result == "passed":
        again.says = "alone; behind a failed case it had failed too"
    return again if again.result else v


def split(cases, count):
    """Neighbours stay together."""
    ends = [len(cases) * i // count for i in range(count + 1)]
    return [cases[begin:end] for begin, end in zip(ends, ends[1:]) if end > begin]


def verdicts_of(c):
    began, left = time.monotonic(), c.seconds_left()
    until = began + left - 1
    unshared, not_here = list_cases(c, "[alone]"), set(list_cases(c, "*NCCL*"))
    cases = [case for case in list_cases(c) if case not in not_here and case not in unshared]
    if not cases:
        raise Failed(f"no cases are listed: {c.run([c.program('ottava_device_tests'), '--list-tests'], check=False, seconds=10)[-2000:]}")
    at_once = 1 if c.dry else AT_ONCE
    threads = max(1, (os.cpu_count() or 1) // at_once)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        groups = list(pool.map(lambda group: run_group(c, group, began + TOGETHER * left, threads), split(cases, GROUPS)))
        out = {v.case: v for group in groups for v in group}
        solo = {v.case: v for v in run_group(c, unshared, began + ALONE * left, threads * at_once)}
        again = [v for v in out.values() if v.is_behind and v.result == "FAILED"]
        out |= {v.case: v for v in pool.map(lambda v: alone(c, v, until, threads), again)}
    again = [v for v in solo.values() if v.is_behind and v.result == "FAILED"]
    return list((out | solo | {v.case: alone(c, v, until, threads * at_once) for v in again}).values())


def op_tests(c):
    verdicts = verdicts_of(c)
    count = {result: sum(v.result == result for v in verdicts) for result in ("passed", "skipped", "FAILED", "")}
    summary = (f"{len(verdicts)} cases on device {c.device}: {count['passed']} passed, {count['skipped']} skipped, {count['FAILED']} failed, "
               f"{count['']} without a verdict")
    data = {"summary": summary, "cases": [dataclasses.asdict(v) for v in verdicts]}
    bad = [v for v in verdicts if v.result in ("FAILED", "")]
    told = [v for v in verdicts if v in bad or v.result == "skipped" or v.says]
    text = summary
    if told:
        text += "\n\n" + table(["case", "", ""], [(v.case, v.result or "no verdict", v.says.split("\n")[0]) for v in told[:TOLD]])
        text += f"\n\n... and {len(told) - TOLD} more (JSON)" if len(told) > TOLD else ""
    text += "".join(f"\n\n{v.case}:\n\n```\n{v.says}\n```" for v in [v for v in bad if "\n" in v.says][:SHOWN])
    if bad:
        raise Failed(text, data)
    return text, data
