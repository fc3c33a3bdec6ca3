#!/usr/bin/env bash
# Looks for inputs that break a parser: installs clang and its runtime where they are missing, builds every fuzz target with
# libFuzzer and the address and undefined-behaviour sanitizers, runs each for some time, and says what was found.
#   scripts/fuzz.sh [SECONDS [TARGET ...]]      60 seconds each; all targets of tests/fuzz
# build-fuzz/found/TARGET keeps inputs that reach new code, from which the next run goes on, and what broke the parser:
# crash-*, timeout-*, oom-*. Any of these is a failure (exit code 1).
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: '$seconds' is no number of seconds" >&2; exit 2; }
shift || true

scripts/install_dependencies.sh clang libomp-dev
cmake --preset fuzz >build-fuzz.log 2>&1 || { cat build-fuzz.log; exit 1; }
cmake --build build-fuzz --target ottava_fuzz_targets

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for program in build-fuzz/tests/*_fuzz; do targets+=("$(basename "$program" _fuzz)"); done
fi
summary=() code=0
for target in "${targets[@]}"; do
  found=build-fuzz/found/$target log=build-fuzz/found/$target.log
  mkdir -p "$found/inputs"
  echo "== $target: $seconds s"
  began=$(date +%s)
  build-fuzz/tests/"${target}_fuzz" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$found/" "$found/inputs" "tests/fuzz/corpus/$target" >"$log" 2>&1 || code=1
  took=$(($(date +%s) - began))
  inputs=$(sed -nE 's/^stat::number_of_executed_units: *//p' "$log")
  cover=$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$log" | tail -1)
  broken=$(find "$found" -maxdepth 1 -type f | sort | tr '\n' ' ')
  [ -z "$broken" ] || { code=1; grep -E '^(SUMMARY|==[0-9]+==ERROR)|runtime error' "$log" || tail -5 "$log"; }
  summary+=("$target: $took s, ${inputs:-?} inputs, $cover places of the code reached: ${broken:-nothing found}")
done
printf '== found\n'
printf '%s\n' "${summary[@]}"
exit "$code"
