"""Breaks the program in forty places, one at a time, and shows which test notices: tests that bite.

    python3 scripts/mutants list                       # the mutants drawn for HEAD
    python3 scripts/mutants run --work /tmp/mutants    # build, run, table in /tmp/mutants/mutants.md; hours on two cores, outside CI
    python3 scripts/mutants run --work DIR --commit C --only 3,17

The draw depends on the commit, --seed, --count and --includers only: every source folder gets a mutant, the rest go by lines of
code; within a folder the rule used least so far, and the place whose hash (of seed, file, rule and statement) is smallest. None is
picked by hand.
Headers that more than --includers files include are left out: mutating them would rebuild everything.

All mutants are compiled in at once (`ottava_mutant(K) ? mutated : original`, K from the environment), so that one build serves
all. One that does not compile is replaced by its folder's next. A first run of all tests shows which test reaches which place and
how long it takes; a mutant then runs the tests that reach it, those that mirror its folder first, then the shortest, until one
fails. A test that takes ten times as long and a minute more counts as failed. Kernels run on the host execution layer, for which the
CUDA toolkit's headers must be found.
"""

import argparse
import subprocess
from pathlib import Path

from build import Build
from draw import ROOT, Tree
from judge import baseline, judge


def table(mutants, results, commit, seed):
    killed = sum(bool(r["killed"]) for r in results.values())
    lines = [f"Mutants of {commit}, seed {seed}: {killed} of {len(results)} killed.", "", "| | place | rule | change | killed by |", "|---|---|---|---|---|"]
    for k, m in enumerate(mutants, 1):
        r = results.get(str(k))
        verdict = "" if r is None else r["killed"] or f"**survived** {r['tests']} tests"
        lines.append(f"| {k} | {m.path}:{m.line} | {m.rule} | {m.described().replace('|', '&#124;')} | {verdict} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "build", "run"])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--includers", type=int, default=12)
    parser.add_argument("--work", type=Path, help="folder for the mutated tree, its build and what is known so far; a second run goes on there")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="numbers of mutants to judge (again), by commas")
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=7", args.commit], capture_output=True, text=True, check=True).stdout.strip()
    tree = Tree(commit, args.seed, args.count, args.includers)
    if args.what == "list":
        print(table(tree.draw(set()), {}, commit, args.seed), end="")
        return
    if not args.work:
        parser.error("--work DIR is needed")
    build = Build(tree, args.work.resolve(), commit, args.jobs)
    mutants = build.compile()
    print(f"{len(mutants)} mutants of {commit}: built", flush=True)
    if args.what == "build":
        return
    known = baseline(build, len(mutants))
    results = judge(build, mutants, known, {int(k) for k in args.only.split(",")} if args.only else None)
    (build.work / "mutants.md").write_text(table(mutants, results, commit, args.seed))
    print((build.work / "mutants.md").read_text(), end="")


if __name__ == "__main__":
    main()
