"""Which test reaches a mutant, and which notices it."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor


def failure(out):
    """The line that failed, or how it ended, in a few words."""
    if out == "Timeout":
        return "timeout"
    if match := re.search(r"([\w.]+\.(?:cpp|h)):(\d+): FAILED", out):
        return f"{match.group(1)}:{match.group(2)}"
    return re.search(r"exit code (-?\d+)$", out).group(0)


def baseline(build, count):
    """name -> {seconds, reached}, from one run of every test without a mutant; kept in baseline.json."""
    kept = build.work / "baseline.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    tests = build.tests()

    def one(test):
        reached = build.work / "reached" / test
        reached.parent.mkdir(exist_ok=True)
        reached.write_bytes(bytes(4096))
        passed, seconds, out = build.run(tests[test], 1800, OTTAVA_MUTANT_REACHED=str(reached))
        bytes_ = reached.read_bytes()
        known[test] = {"passed": passed, "seconds": seconds, "reached": [k for k in range(1, count + 1) if bytes_[k]]}
        kept.write_text(json.dumps(known))
        print(f"{'passed' if passed else 'FAILED'} {seconds:6.1f} s  {test}" + ("" if passed else f": {failure(out)}"), flush=True)

    with ThreadPoolExecutor(build.jobs) as pool:
        list(pool.map(one, [t for t in tests if t not in known]))
    return known


def judge(build, mutants, known, only):
    tests = build.tests()
    results_file = build.work / "results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}

    def one(k):
        m = mutants[k - 1]
        reaching = [t for t, b in known.items() if b["passed"] and k in b["reached"]]
        mirrors = lambda t: len(os.path.commonprefix([tests[t].folder.split("/"), m.folder.split("/")]))
        reaching.sort(key=lambda t: (-mirrors(t), known[t]["seconds"], t))
        verdict = {"killed": None, "tests": len(reaching)}
        for test in reaching:
            passed, _, out = build.run(tests[test], 10 * known[test]["seconds"] + 60, OTTAVA_MUTANT=str(k))
            if not passed:
                verdict["killed"] = f"{test} ({failure(out)})"
                break
        results[str(k)] = verdict
        results_file.write_text(json.dumps(results))
        print(f"{k:3} {'killed by ' + verdict['killed'] if verdict['killed'] else 'SURVIVED ' + str(len(reaching)) + ' tests'}: {m.path}:{m.line} {m.rule}: {m.described()}", flush=True)

    with ThreadPoolExecutor(build.jobs) as pool:
        list(pool.map(one, [k for k in range(1, len(mutants) + 1) if (not only or k in only) and (only or str(k) not in results)]))
    return results
