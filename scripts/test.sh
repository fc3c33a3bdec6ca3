#!/usr/bin/env bash
# Installs, builds and runs every test. One stage after the other, with its time:
#   release     build (CUDA kernels too where nvcc is found) and all tests
#   portable    the operations and a short training run as on a machine without AVX-512
#   asan        address and undefined-behaviour sanitizers: core, fp8, the parsers of files, the kernels on the host execution layer
#   asan_steps  (only when named) the same of whole steps in FP8 and on the host execution layer
#   architectures   (only when named) every kernel compiled for sm_80, sm_89, sm_90a and sm_100
#   tsan        thread sanitizer: ranks as threads, and the kernels on the host execution layer
# scripts/test.sh [stage ...] runs some of them.
set -euo pipefail
cd "$(dirname "$0")/.."
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(release portable asan tsan)

stage_begin() { name=$1; began=$(date +%s); echo; echo "== $name: $2"; }
stage_end() { echo "== $name: $(( $(date +%s) - began )) s"; }
build() { cmake --preset "$1" -DOTTAVA_TESTS=ON >"build-$1.log" 2>&1 || { cat "build-$1.log"; exit 1; }; grep '^-- ottava' "build-$1.log"; shift; cmake --build "$@"; }
# A failure counts at once, except where mpirun's own time limits (a second for ranks to end) meet a busy machine: there it
# must repeat, and a test that needed that is named.
run_release_tests() {
  local code=0 twice
  ctest --no-tests=error --test-dir build --output-on-failure -j 2 -LE '^mpi$' || code=$?
  ctest --test-dir build --output-on-failure -j 2 -L '^mpi$' --repeat until-pass:2 2>&1 | tee build-release-mpi.log || code=$?
  twice=$(sed -nE 's/^.*Test +#[0-9]+: ([^ ]+) \.*\*\*\*(Failed|Timeout|Exception).*$/\1/p' build-release-mpi.log | sort | uniq -c | awk '$1 == 1 {print $2}')
  echo "== release: tests under mpirun that passed at the second try: ${twice:-none}"
  return "$code"
}

scripts/install_dependencies.sh
for stage in "${stages[@]}"; do
  case $stage in
    release)
      stage_begin release "build"
      build release build -- -k 1
      stage_end
      stage_begin release "tests"
      scripts/check_includes.py
      run_release_tests
      stage_end
      ;;
    portable)
      stage_begin portable "operations and five training steps without AVX-512"
      [ -d build ] || build release build
      OTTAVA_CPU_ISA=avx2 DNNL_MAX_CPU_ISA=AVX2 ctest --no-tests=error --test-dir build --output-on-failure -R '^core_ops_test$|^training_smoke_test$'
      stage_end
      ;;
    asan)
      stage_begin asan "core, fp8, the parsers and the kernels under the address and undefined-behaviour sanitizers"
      build asan build-asan --target ottava_asan_tests
      ASAN_OPTIONS=detect_leaks=1 ctest --no-tests=error --test-dir build-asan --output-on-failure -j 2 -L '^asan$'
      stage_end
      ;;
    asan_steps)
      stage_begin asan_steps "whole steps under the address and undefined-behaviour sanitizers"
      build asan build-asan --target ottava_asan_steps_tests
      ASAN_OPTIONS=detect_leaks=1 ctest --no-tests=error --test-dir build-asan --output-on-failure -j 2 -L asan_steps
      stage_end
      ;;
    tsan)
      stage_begin tsan "ranks as threads and the kernels under the thread sanitizer"
      build tsan build-tsan --target ottava_tsan_tests
      TSAN_OPTIONS=halt_on_error=1 ctest --no-tests=error --test-dir build-tsan --output-on-failure -j 2 -L tsan
      stage_end
      ;;
    architectures)
      stage_begin architectures "kernels for every GPU that a bundle supports"
      build architectures build-architectures --target ottava_core ottava_fp8
      stage_end
      ;;
    *) echo "test.sh: stage '$stage' is unknown: release, portable, asan, asan_steps, tsan or architectures" >&2; exit 2 ;;
  esac
done
