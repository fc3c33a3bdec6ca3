#!/usr/bin/env bash
# Is everything right on this GPU, and how fast is it? Tests on the device, training against the CPU, ranks that share the GPU,
# NCCL, graphs, compute-sanitizer, what cuBLASLt offers, every kernel by itself, whole steps beside PyTorch's. One Markdown and
# one JSON report; under nine minutes, the build not counted.
#
#     scripts/gpu_check.sh                         # in an unpacked bundle, or in the sources (builds first)
#     scripts/gpu_check.sh --dry-run               # without a GPU: every stage runs to its end on the CPU, small
#     scripts/gpu_check.sh --only parity,kernels   # some stages; --help lists them
#
# A stage that fails is reported and the others run; the exit code is 1 if one failed. The bundle needs python3 and, for the
# other side of the benchmark, its PyTorch (OTTAVA_TORCH_PYTHON names another python). CUDA's libraries that are neither in the
# toolkit nor on the loader's path are taken from that python's packages.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "gpu_check.sh: python3 was not found" >&2; exit 2; }
case " $* " in *" --help "* | *" -h "*) exec python3 scripts/gpu_check --help ;; esac
if [ -x ../../bin/ottava_device_tests ]; then  # share/ottava of a bundle
  programs=../../bin
else
  command -v nvcc >/dev/null || PATH=/usr/local/cuda/bin:$PATH
  scripts/install_dependencies.sh
  cmake --preset release >/dev/null
  targets=(ottava ottava_device_tests)
  if grep -q 'cublaslt_probe' build/build.ninja; then targets+=(ottava_cublaslt_probe); fi
  cmake --build build --target "${targets[@]}"
  programs=build
fi
exec python3 scripts/gpu_check --programs "$programs" "$@"
