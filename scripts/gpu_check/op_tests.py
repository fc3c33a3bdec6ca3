"""The stage that runs the tests of operations and steps on the device, so that each case gets a verdict: an error that a GPU
does not forget fails every later case of its process, so there are several, and what such an error left is run again alone."""

import concurrent.futures
import dataclasses
import itertools
import os
import re
import time

from check import Failed, TimedOut, tail
from report import table

GROUPS, AT_ONCE = 8, 4
SECONDS_OF_A_CASE = 25  # alone
TOGETHER, ALONE = 0.5, 0.7  # of the stage's time, from its beginning: until when groups, and cases that share no GPU, are run
TOLD, SHOWN = 150, 30  # cases in the report's table, and those whose output is in it
number = itertools.count()


@dataclasses.dataclass
class Verdict:
    case: str
    result: str  # "passed", "skipped", "FAILED", "" where there is none
    says: str = ""


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
    """Verdicts of the cases, in one process. Without one are those that it did not reach, or not the end of in time; the case
    that ended it has failed."""
    mine = c.work / f"cases-{next(number)}"
    names, account = mine.with_suffix(".names"), mine.with_suffix(".account")
    names.write_text("\n".join(escaped(case) for case in cases) + "\n")
    env = {"OTTAVA_TEST_DEVICES": c.device, "OTTAVA_TEST_CASES": str(account), "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    try:
        code, out = c.execute([c.program("ottava_device_tests"), "--durations", "no", "-f", str(names)], env=env, until=until)
        ended = f"exit code {code}"
    except TimedOut as e:
        code, out, ended = None, e.output, str(e).splitlines()[0].split(":")[0]
    known = read_account(account.read_text(errors="replace")) if account.exists() else {}
    verdicts = [known.get(case) or Verdict(case, "") for case in cases]
    open_ones = [v for v in verdicts if not v.result]
    for v in verdicts:
        if v.result == "FAILED":
            v.says = f"{ended}\n{tail(out, 25)}"
    if code == 0:
        for v in open_ones:
            v.result, v.says = "FAILED", f"it was not run, or says nothing of itself\n{tail(out, 5)}"
    elif open_ones:
        open_ones[0].says = f"{ended}\n{tail(out, 25)}"
        if code is not None and not any(v.result == "FAILED" for v in verdicts):  # else that one may have ended the process
            open_ones[0].result = "FAILED"
    return verdicts


def needs_another_run(verdicts):
    """Of a group with a failure the failed case and all that failed or were not reached behind it."""
    first = next((i for i, v in enumerate(verdicts) if v.result in ("FAILED", "")), len(verdicts))
    return [v for v in verdicts[first:] if v.result in ("FAILED", "")]


def alone(c, v, is_first, until, threads):
    """The verdict of a case in a process of its own, which may differ from that in company."""
    seconds = min(until - time.monotonic(), SECONDS_OF_A_CASE)
    if seconds <= 1:
        return v
    again = run_cases(c, [v.case], time.monotonic() + seconds, threads)[0]
    if not again.result:
        return Verdict(v.case, "FAILED", again.says) if seconds == SECONDS_OF_A_CASE else v
    if again.result == "passed" and v.result == "FAILED":
        if is_first:  # nothing had failed before it
            return Verdict(v.case, "FAILED", f"passes alone; in company:\n{v.says}")
        again.says = "alone; behind a failed case it had failed too"
    return again


def split(cases, count):
    """Neighbours stay together."""
    return [cases[len(cases) * i // count:len(cases) * (i + 1) // count] for i in range(count) if len(cases) * (i + 1) // count > len(cases) * i // count]


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
        groups = list(pool.map(lambda group: run_cases(c, group, began + TOGETHER * left, threads), split(cases, GROUPS)))
    shared = len(groups)
    groups += [run_cases(c, unshared, began + ALONE * left, threads * at_once)] if unshared else []
    again = [(i, v, is_first) for i, group in enumerate(groups) for is_first, v in
             zip(itertools.chain([True], itertools.repeat(False)), needs_another_run(group))]
    out = {v.case: v for group in groups for v in group}
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(alone, c, v, is_first, until, threads) for i, v, is_first in again if i < shared]
        out |= {v.case: v for v in (job.result() for job in jobs)}
    for i, v, is_first in again:
        if i >= shared:
            out[v.case] = alone(c, v, is_first, until, threads * at_once)
    return list(out.values())


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
