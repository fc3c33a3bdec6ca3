#!/usr/bin/env python3
"""Figures of the source tree: what it weighs, and where, for a comparison before and after.

    python3 -m venv /tmp/figures && /tmp/figures/bin/pip install lizard==1.24.3       # a PyPI package, outside the tree
    /tmp/figures/bin/python scripts/house_figures.py [--commit C ...]                 # one column per commit; HEAD without

Counts the C++ and CUDA sources of apps, core, parallel, fp8 and models without tests; CUDA files are read as C++. Functions, their
lines, cyclomatic complexity, parameters and tokens are lizard's. Areas are named by the stems of their files, so that they are
found wherever these lie.
"""

import argparse
import io
import re
import statistics
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path, PurePath

try:
    import lizard
except ImportError:
    sys.exit("house_figures: needs lizard; the beginning of this file says how to get it")

ROOT = Path(__file__).resolve().parent.parent
AREAS = ("apps", "core", "fp8", "models", "parallel")
SOURCES = (".cpp", ".h", ".cu", ".cuh", ".inc")
# name -> patterns of paths; a pattern without a folder is one of the file's name.
PLACES = {
    "FP8 outside fp8/": "parallel/*float8* models/*float8* models/linear.*",
    "fp8/ops": "fp8/ops/*",
    "FP8 quantizing on the CPU": "amax_cpu.cpp amax_on_cpu.cpp amax_threads.cpp code_cpu.cpp decode_cpu.cpp encode_cpu.cpp encode_vec.h "
                                 "coders_vec.h fp8_vec.h codec_vec.h transpose_vec.h quantize_on_cpu.* quantize_threads.* "
                                 "dequantize_on_cpu.cpp dequantize_threads.cpp quantize_kernels.h codec_kernels.h row_quantizer.*",
    "core/float8": "core/float8/*",
    "traffic by formula": "traffic.* llama_traffic.*",
    "transport of ranks as threads": "rendezvous.* thread_communicator.*",
    "decide, rehearse, caches": "apps/*decide.* rehearsal.* gemm_cache.* decisions.* attention_choice.* sm_budget.* float8_speedup.*",
    "bench kernels, cases, workbench": "bench_kernels_command.* kernel_cases.* float8_kernel_cases.* workbench.*",
    "Unicode, lines of JSON": "unicode.* unicode_tables.inc json_line.* scripts/reference/make_unicode_tables.py",
    "foreign keys and their test": "foreign_sections.* foreign_keys.* torchtitan_keys_test.cpp",
    "tests": "tests/*",
}
# A file branches on granularity where it names one of its values or asks one of these; where core/float8 has a table of
# granularities, the bool fields and functions of its header too. The table itself does not count.
ASKED = {"has_tensor_scales", "can_be_produced", "can_gather", "scales_turn", "is_mx", "scales_are_common", "has_one_scale", "reads_outer", "is_uniform_"}
TABLE = re.compile(r"core/float8/(granularity|traits)\w*\.(h|cpp)$")


def tree_of(commit):
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {m.name: tar.extractfile(m).read().decode(errors="replace") for m in tar.getmembers() if m.isfile()}


def is_in(path, patterns):
    return any(fnmatch(path, p) if "/" in p else fnmatch(PurePath(path).name, p) for p in patterns.split())


def figures(commit):
    tree = tree_of(commit)
    sources = {n: t for n, t in tree.items() if n.split("/")[0] in AREAS and n.endswith(SOURCES)}
    lines = {n: t.count("\n") for n, t in tree.items()}
    analyzer = lizard.FileAnalyzer(lizard.get_extensions([]))
    functions = [f for n, t in sources.items() for f in analyzer.analyze_source_code(n if n.endswith((".cpp", ".h")) else n + ".cpp", t).function_list]
    long = sorted((f for f in functions if f.length > 60), key=lambda f: -f.length)
    found = {
        "lines": sum(lines[n] for n in sources),
        "functions": len(functions),
        "functions of more than 60 lines": len(long),
        "cyclomatic complexity above 15": sum(f.cyclomatic_complexity > 15 for f in functions),
        "more than 6 parameters (most)": f"{sum(len(f.parameters) > 6 for f in functions)} ({max(len(f.parameters) for f in functions)})",
        "median file": f"{statistics.median(lines[n] for n in sources):.0f}",
        "tokens in functions": sum(f.token_count for f in functions),
    }
    asked = ASKED | {name for n, t in sources.items() if TABLE.search(n) and n.endswith(".h") for name in re.findall(r"\bbool (\w+)", t)}
    branch = re.compile(r"\bGranularity::[a-z]\w*|\b(?:" + "|".join(sorted(asked)) + r")\b")
    branching = sorted(n for n, t in sources.items() if branch.search(t) and not TABLE.search(n))
    found["files that branch on granularity"] = len(branching)
    found["  outside fp8 and core/float8"] = sum(not n.startswith(("fp8/", "core/float8/")) for n in branching)
    found["test cases"] = sum(len(re.findall(r"^\s*(?:TEST_CASE|TEMPLATE_TEST_CASE\w*|SCENARIO)\b", t, re.M)) for n, t in tree.items() if n.startswith("tests/"))
    code = {n: c for n, c in lines.items() if n.endswith((*SOURCES, ".py"))}
    for area in AREAS:
        found[f"lines of {area}"] = sum(lines[n] for n in sources if n.startswith(area + "/"))
    for name, patterns in PLACES.items():
        found[f"lines of {name}"] = sum(c for n, c in code.items() if is_in(n, patterns))
    found["lines of foreign keys and their test"] += sum(m.group(0).count("\n") + 1 for n, t in sources.items() if "foreign_" not in PurePath(n).name
                                                         for m in re.finditer(r"^\s*\w+\.foreign\([^;]*;", t, re.M))
    return found, long, branching


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", action="append", help="may be given more than once")
    parser.add_argument("--names", action="store_true", help="also the long functions and the files that branch on granularity, of the last commit")
    args = parser.parse_args()
    commits = args.commit or ["HEAD"]
    columns = [figures(c) for c in commits]
    print("| | " + " | ".join(commits) + " |\n|---|" + "---|" * len(commits))
    for row in columns[0][0]:
        print(f"| {row.strip()} | " + " | ".join(str(c[0][row]) for c in columns) + " |")
    if args.names:
        _, long, branching = columns[-1]
        print("\n".join(["", "More than 60 lines:"] + [f"  {f.length:4} {f.name} {f.filename.replace('.cu.cpp', '.cu').replace('.cuh.cpp', '.cuh')}" for f in long]))
        print("\n".join(["", "Branch on granularity:"] + [f"  {n}" for n in branching]))


if __name__ == "__main__":
    main()
