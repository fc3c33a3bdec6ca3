#!/usr/bin/env python3
"""Checks the rules of the house that a compiler does not see.

  1. Include direction: core <- fp8 <- parallel <- models <- apps; a folder includes itself and what is left of it.
  2. Vendor headers stay in their rooms: CUDA in core/cuda, *.cu and *.cuh; NCCL in parallel/nccl; MPI in parallel/mpi; oneDNN in core/cpu.
  3. Heavy headers (yaml-cpp, toml++, nlohmann, CLI11, spdlog, PCRE2) are included by at most two .cpp files and by no header.
Prints each violation as file:line and exits with 1.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER = ["core", "fp8", "parallel", "models", "apps"]
ROOMS = [
    (re.compile(r"^(cuda|cublas|cudnn|curand|nv_|mma\.h|driver_types)"), ("core/cuda/", ".cu", ".cuh", "tests/support/cuda_host/", "tests/fp8/"), "CUDA"),
    (re.compile(r"^nccl\.h"), ("parallel/nccl/", "tests/support/"), "NCCL"),
    (re.compile(r"^mpi\.h"), ("parallel/mpi/",), "MPI"),
    (re.compile(r"^(oneapi/dnnl|dnnl)"), ("core/cpu/",), "oneDNN"),
]
HEAVY = {"yaml-cpp": "yaml-cpp/", "toml++": "toml++/", "nlohmann": "nlohmann/", "CLI11": "CLI/", "spdlog": "spdlog/", "PCRE2": "pcre2"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def sources():
    out = subprocess.run(["git", "-C", ROOT, "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh", "*.inc"], capture_output=True, text=True)
    names = out.stdout.split() if out.returncode == 0 else [str(p.relative_to(ROOT)) for f in ORDER + ["tests"] for p in (ROOT / f).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh", ".inc"}]
    return [name for name in names if (ROOT / name).exists()]


def main():
    problems, heavy = [], defaultdict(set)
    for name in sources():
        folder = name.split("/")[0]
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            path = match.group(1)
            at = f"{name}:{number}"
            target = path.split("/")[0]
            if folder in ORDER and target in ORDER and "/" in path and ORDER.index(target) > ORDER.index(folder):
                problems.append(f"{at}: {folder} may not include {path}")
            for pattern, rooms, vendor in ROOMS:
                if pattern.match(path) and not any(name.startswith(r) or name.endswith(r) for r in rooms):
                    problems.append(f"{at}: {vendor} header {path} outside its room ({', '.join(rooms)})")
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
