#!/usr/bin/env python3
"""Checks the rules of the house that a compiler does not see.

  1. Include direction: core <- fp8 <- parallel <- models <- apps; a folder includes itself and what is left of it. So do the rooms of parallel
     and apps, in the order of ROOMS_OF.
  2. Vendor headers stay in their rooms: CUDA in core/cuda, *.cu and *.cuh; NCCL in parallel/comm/nccl; MPI in parallel/comm/mpi; oneDNN in core/cpu.
  3. Heavy headers (yaml-cpp, toml++, nlohmann, CLI11, spdlog, PCRE2) are included by at most two .cpp files and by no header.
  4. What core/precompiled.h would hide: a file that names something of a standard header includes that header, itself or through
     headers of the project.
  5. What a header declares is used outside tests. Found by name: a function of a common name, or one that only unused code calls, is not found.
  6. No <ranges>: clang 14, which builds the fuzz targets, compiles no view of libstdc++ 12's. Algorithms of std::ranges are <algorithm>'s, but for
     those that return a view: std's own are there for these.
Prints each violation as file:line and exits with 1.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER = ["core", "fp8", "parallel", "models", "apps"]
ROOMS_OF = {
    "parallel": ["calls", "comm", "failure", "ranks", "launcher", "pipeline", "sharding", "checkpoint"],
    "apps": ["config", "devices", "step", "data", "checkpoints", "decide", "predict", "report", "evaluate", "generate", "train", "bench", "report_page",
             "commands"],
}
ROOMS = [
    (re.compile(r"^(cuda|cublas|cudnn|curand|nv_|mma\.h|driver_types)"), ("core/cuda/", ".cu", ".cuh", "tests/support/cuda_host/", "tests/core/float8/"), "CUDA"),
    (re.compile(r"^nccl\.h"), ("parallel/comm/nccl/", "tests/support/"), "NCCL"),
    (re.compile(r"^mpi\.h"), ("parallel/comm/mpi/",), "MPI"),
    (re.compile(r"^(oneapi/dnnl|dnnl)"), ("core/cpu/",), "oneDNN"),
]
HEAVY = {"yaml-cpp": "yaml-cpp/", "toml++": "toml++/", "nlohmann": "nlohmann/", "CLI11": "CLI/", "spdlog": "spdlog/", "PCRE2": "pcre2"}
STANDARD = {
    "algorithm": "sort stable_sort find_if any_of all_of none_of copy_n fill_n clamp transform lower_bound upper_bound max_element min_element",
    "array": "array", "atomic": "atomic atomic_flag", "charconv": "from_chars to_chars", "chrono": "chrono", "cmath": "sqrt isnan isfinite isinf ldexp frexp",
    "cstring": "memcpy memset memcmp memmove strlen", "filesystem": "filesystem", "functional": "function", "limits": "numeric_limits",
    "map": "map multimap", "memory": "unique_ptr shared_ptr make_unique make_shared", "mutex": "mutex lock_guard unique_lock call_once",
    "numeric": "accumulate iota inner_product reduce", "optional": "optional nullopt", "set": "set multiset", "span": "span", "string": "string to_string stoi stod",
    "string_view": "string_view", "thread": "thread this_thread", "unordered_map": "unordered_map", "vector": "vector",
}
HEADER_OF = {name: header for header, names in STANDARD.items() for name in names.split()}
ALSO = {"string_view": {"string"}}  # <string> brings it
STD_NAME = re.compile(r"\bstd::(" + "|".join(sorted(HEADER_OF, key=len, reverse=True)) + r")\b")
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
CODE_ONLY = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#[^\n]*', re.S | re.M)
NO_TYPE = set("return else case throw co_return new delete not and or sizeof goto if while for switch catch alignof decltype noexcept requires operator "
              "volatile __attribute__ __align__ static_assert".split())
DECLARED = re.compile(r"\b(?:class|struct|enum class) (\w+)[^;{(]*\{|\busing (\w+) =|\bconstexpr\b[^;(={]*\b(k[A-Z]\w*)\s*[={]|\b(\w+)\s*\(")
FOR_TESTS = {
    "from_bits": "bf16's other way to make one; the host execution layer's stand-ins read memory with it",
    "record_into": "a step that was taken is compared with the one that is planned, call by call",
}
RETURNS_VIEW = re.compile(r"\bstd::ranges::(unique|remove|remove_if|partition|stable_partition|rotate|search|search_n|find_end|equal_range)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def sources():
    out = subprocess.run(["git", "-C", ROOT, "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh", "*.inc"], capture_output=True, text=True)
    names = out.stdout.split() if out.returncode == 0 else [str(p.relative_to(ROOT)) for f in ORDER + ["tests"] for p in (ROOT / f).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh", ".inc"}]
    return [name for name in names if (ROOT / name).exists()]


def included_by(name, texts, seen):
    """Headers that `name` includes, itself and through headers of the project."""
    if name in seen or name not in texts:
        return set()
    seen.add(name)
    found = set()
    for line in texts[name].splitlines():
        if match := INCLUDE.match(line):
            path = match.group(1)
            beside = str(Path(name).parent / path)
            found |= {path} | included_by(path if path in texts else beside, texts, seen)
    return found


def missing_standard_headers(names):
    texts = {name: (ROOT / name).read_text(errors="replace") for name in names}
    for name in names:
        used = {}
        for number, line in enumerate(texts[name].splitlines(), 1):
            for match in STD_NAME.finditer(COMMENT_OR_TEXT.sub("", line)):
                used.setdefault(HEADER_OF[match.group(1)], (number, match.group(0)))
        included = included_by(name, texts, set()) if used else set()
        for header, (number, what) in sorted(used.items()):
            if not included & ({header} | ALSO.get(header, set())):
                yield f"{name}:{number}: {what} without <{header}>"


def is_declared(text, at):
    """Whether the name at `at`, which a parenthesis follows, is declared there: a type comes before it."""
    before = re.sub(r"(?:\w+(?:<[^<>]*>)?::)*$", "", text[max(0, at - 300):at])
    word = re.search(r"(\w+)\s+$", before)
    return word.group(1) not in NO_TYPE if word else bool(re.search(r"(?<![\s*&>])[*&]+\s+$|\w>+[*&]*\s+$|\]\]\s+$", before))


def called_by_tests_only(names):
    """What headers declare and nothing but tests, if anything, names again."""
    texts = {name: CODE_ONLY.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), (ROOT / name).read_text(errors="replace")) for name in names}
    declared, at = {}, defaultdict(set)
    for name in (n for n in names if n.split("/")[0] in ORDER and n.endswith((".h", ".cuh"))):
        for match in DECLARED.finditer(texts[name]):
            if match.group(4) is None or match.group(4) not in NO_TYPE and is_declared(texts[name], match.start(4)):
                declared.setdefault(match.group(match.lastindex), (name, texts[name].count("\n", 0, match.start(match.lastindex)) + 1))
                at[name].add(match.start(match.lastindex))
    used = set(FOR_TESTS)
    for name in (n for n in names if n.split("/")[0] in ORDER):
        for match in re.finditer(r"\b[A-Za-z_]\w*", texts[name]):
            word, after = match.group(0), texts[name][match.end():match.end() + 200]
            if word not in declared or word in used or match.start() in at[name]:
                continue
            member = re.match(r"::~?\w+\s*\(", after)  # a definition of a member is no use of its class
            if not (re.match(r"\s*\(", after) or member) or not is_declared(texts[name], match.start()):
                used.add(word)
    for word, (name, line) in sorted(declared.items(), key=lambda d: d[1]):
        if word not in used:
            yield f"{name}:{line}: {word} is used by tests at most"


def main():
    if not sources():
        print("no sources were found")
        return 1
    problems, heavy = list(missing_standard_headers(sources())) + list(called_by_tests_only(sources())), defaultdict(set)
    for name in sources():
        folder = name.split("/")[0]
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
            at = f"{name}:{number}"
            if view := RETURNS_VIEW.search(COMMENT_OR_TEXT.sub("", line)):
                problems.append(f"{at}: {view.group()}, which returns a view, and clang 14 does not compile views")
            match = INCLUDE.match(line)
            if not match:
                continue
            path = match.group(1)
            target = path.split("/")[0]
            if folder in ORDER and target in ORDER and "/" in path and ORDER.index(target) > ORDER.index(folder):
                problems.append(f"{at}: {folder} may not include {path}")
            here, there = ((p.split("/") + ["", ""])[1] for p in (name, path))
            order = ROOMS_OF.get(folder, []) if folder == target else []
            if here in order and (there not in order or order.index(there) > order.index(here)):
                problems.append(f"{at}: {folder}/{here} may not include {path}")
            for pattern, rooms, vendor in ROOMS:
                if pattern.match(path) and not any(name.startswith(r) or name.endswith(r) for r in rooms):
                    problems.append(f"{at}: {vendor} header {path} outside its room ({', '.join(rooms)})")
            if path == "ranges" and folder in ORDER:
                problems.append(f"{at}: <ranges>, whose views clang 14 does not compile")
            for library, prefix in HEAVY.items():
                if path.startswith(prefix) and folder in ORDER:
                    heavy[library].add(name)
                    if name.endswith(".h"):
                        problems.append(f"{at}: {library} in a header")
    for library, files in sorted(heavy.items()):
        if len(files) > 2:
            problems.append(f"{library} is included by {len(files)} files, at most 2 may: {', '.join(sorted(files))}")
    print("\n".join(problems) if problems else "includes: in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
