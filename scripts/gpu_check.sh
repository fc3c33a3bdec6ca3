#!/usr/bin/env bash
# Is everything right on this GPU, and how fast is it? Tests on the device, training against the CPU, ranks that share the GPU,
# NCCL, graphs, compute-sanitizer, what cuBLASLt offers, every kernel by itself, whole steps beside PyTorch's. One Markdown and
# one JSON report, there after every stage, and a file of all that programs said; under nine minutes, the build not counted.
#
#     scripts/gpu_check.sh                         # in an unpacked bundle, or in the sources (builds first)
#     scripts/gpu_check.sh --dry-run               # without a GPU: every stage runs to its end on the CPU, small
#     scripts/gpu_check.sh --only parity,kernels   # some stages; --without steps: all but these; --help lists them
#     scripts/gpu_check.sh --only nccl             # with several GPUs: ranks over NCCL, a GPU each; all other stages check one
#
# A machine without a network needs the bundle: the sources want Debian's packages first. On one with a network
#     scripts/bundle.sh --fetch-cudnn
# and there
#     tar xf ottava-VERSION-linux-x86_64.tar.gz && ottava-VERSION-linux-x86_64/share/ottava/scripts/gpu_check.sh --output DIR
#
# A stage that fails is reported and the others run; the exit code is 1 if one failed. The bundle needs python3 and, for the
# other side of the benchmark, its PyTorch (OTTAVA_TORCH_PYTHON names another python). CUDA's libraries that are neither in the
# toolkit nor on the loader's path are taken from that python's packages.
set -euo pipefail
caller=$PWD  # what is given relatively is relative to it
case ${OTTAVA_TORCH_PYTHON:-} in /*) ;; */*) export OTTAVA_TORCH_PYTHON=$caller/$OTTAVA_TORCH_PYTHON ;; esac
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "gpu_check.sh: python3 was not found" >&2; exit 2; }
case " $* " in *" --help "* | *" -h "*) exec python3 scripts/gpu_check --help ;; esac

build() {
  command -v nvcc >/dev/null || PATH=/usr/local/cuda/bin:$PATH
  scripts/install_dependencies.sh && cmake --preset release -DOTTAVA_TESTS=ON >/dev/null || return 1
  targets=(ottava ottava_device_tests)
  if grep -q 'cublaslt_probe' build/build.ninja; then targets+=(ottava_cublaslt_probe); fi
  cmake --build build --target "${targets[@]}"
}

if [ -x ../../bin/ottava_device_tests ]; then  # share/ottava of a bundle
  programs=../../bin
else
  programs=build
  python3 scripts/gpu_check --read-options "$@" >/dev/null  # what is wrong with them is said before the build, which takes minutes
  if ! build; then
    echo "gpu_check.sh: the sources were not built (see above). Without a network take a bundle: scripts/bundle.sh --fetch-cudnn" \
      "on a machine that has one, then share/ottava/scripts/gpu_check.sh --output DIR of what it made, unpacked" >&2
    if [ ! -x build/ottava ] || [ ! -x build/tests/ottava_device_tests ]; then exit 2; fi
    export OTTAVA_GPU_CHECK_NOTE="the build failed; these programs are of an earlier one"
    echo "gpu_check.sh: $OTTAVA_GPU_CHECK_NOTE" >&2
  fi
fi
exec python3 scripts/gpu_check --programs "$programs" --caller "$caller" "$@"
