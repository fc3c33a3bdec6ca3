#!/usr/bin/env bash
# Installs, builds and runs every test, one stage after the other. Ends with the time of each, and with the test cases that no
# stage could run and why.
#   scripts/test.sh [STAGE ...]
#   release         what runs when no stage is named: the build (CUDA kernels too where nvcc is found) and all tests
# Named only, as .ci/run does with the first two:
#   asan            address and undefined-behaviour sanitizers: core, fp8, the parsers of files, the kernels on the host execution layer
#   tsan            thread sanitizer: ranks as threads, and the kernels on the host execution layer
#   asan_steps      as asan, for whole steps in FP8 and on the host execution layer
#   architectures   every kernel compiled for sm_80, sm_89, sm_90a and sm_100
# Named only, of scripts/stages:
#   report          pages of `ottava report` in headless Chromium: checked, and pictures of them
#   quickstart      in a fresh clone, nothing from ccache: scripts/quickstart.sh, then scripts/test.sh
# and as root, on systems that they make of the distributions' packages:
#   package         the tarball and the Debian package of build/ train in a clean root
#   debian13        Debian 13 builds and passes all tests
#   ubuntu          so do Ubuntu 24.04 and 26.04
#   aarch64         cross-compiled: core, fp8, parsers and ranks as threads under qemu-user, and the tarball for aarch64
#   container       the image of scripts/Containerfile trains
#   slurm           a Slurm of one node: jobs of the Debian package of build/ save, go on and end as scripts/slurm_example.sbatch says
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(release)
for stage in "${stages[@]}"; do
  case $stage in
    release | asan | tsan | asan_steps | architectures) ;;
    *) [ -x "scripts/stages/$stage.sh" ] ||
      { echo "test.sh: stage '$stage' is unknown: release, asan, tsan, asan_steps, architectures or one of scripts/stages" >&2; exit 2; } ;;
  esac
done

cores=$(nproc)
[ "$cores" -le 4 ] || cores=4  # tests with ranks and threads of their own fill more
jobs=$((cores + 1))            # and those that start programs wait for them
times=()
OTTAVA_TEST_CASES=$(mktemp)
export OTTAVA_TEST_CASES
# Tests run beside each other: a thread that has nothing to do leaves its core to them.
export OMP_WAIT_POLICY=passive

finish() {
  local code=$?
  printf '\n== times\n'
  printf '%s\n' "${times[@]:-none}"
  awk -F'\t' '$1 == "ran" { ran[$2] } $1 == "skipped" { why[$2] = $3 }
    END { for (name in why) if (!(name in ran)) print name ": " why[name] }' "$OTTAVA_TEST_CASES" | sort >"$OTTAVA_TEST_CASES.skipped"
  printf '\n== skipped: %s\n' "$(wc -l <"$OTTAVA_TEST_CASES.skipped")"
  cat "$OTTAVA_TEST_CASES.skipped"
  rm -f "$OTTAVA_TEST_CASES" "$OTTAVA_TEST_CASES.skipped"
  [ "$code" -eq 0 ] && echo "== passed" || echo "== FAILED"
  exit "$code"
}
trap finish EXIT

begin() { name=$1; began=$SECONDS; printf '\n== %s\n' "$name"; }
end() { times+=("$name: $((SECONDS - began)) s"); printf '== %s\n' "${times[-1]}"; }
# build PRESET [TARGET ...]
build() {
  local preset=$1 folder log
  shift
  folder=build$([ "$preset" = release ] || echo "-$preset")
  log=build-$preset.log
  begin "$preset build"
  cmake --preset "$preset" -DOTTAVA_TESTS=ON >"$log" 2>&1 || { cat "$log"; return 1; }
  grep '^-- ottava' "$log"
  cmake --build "$folder" ${1:+--target "$@"}
  end
}
# tests PRESET [CTEST OPTIONS ...]
tests() {
  local preset=$1
  shift
  begin "$preset tests"
  ctest --no-tests=error --test-dir "build$([ "$preset" = release ] || echo "-$preset")" --output-on-failure -j "$jobs" "$@"
  end
}

scripts/install_dependencies.sh
for stage in "${stages[@]}"; do
  case $stage in
    release)
      scripts/check_includes.py
      build release
      tests release
      ;;
    asan)
      build asan ottava_asan_tests
      ASAN_OPTIONS=detect_leaks=1 tests asan -L '^asan$'
      ;;
    asan_steps)
      build asan ottava_asan_steps_tests
      ASAN_OPTIONS=detect_leaks=1 tests asan -L asan_steps
      ;;
    tsan)
      build tsan ottava_tsan_tests
      TSAN_OPTIONS=halt_on_error=1 tests tsan -L tsan
      ;;
    architectures)
      build architectures ottava_core ottava_fp8
      ;;
    *)
      begin "$stage"
      "scripts/stages/$stage.sh"
      end
      ;;
  esac
done
