#!/usr/bin/env bash
# Writes tests/golden/debug_loss.json anew, after a change of numerics that is meant: a curve for every instruction set
# that this machine has. Curves of sets that it lacks are dropped, since the change moved them too. The commit that moves
# the file says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
cmake -DOTTAVA_TESTS=ON build >/dev/null  # the quickstart left them out
cmake --build build --target training_golden_test
rm -f tests/golden/debug_loss.json
export OTTAVA_WRITE_GOLDEN=1
build/tests/training_golden_test "[.write]"  # with what this machine takes without being told
for isa in AVX512_CORE_AMX AVX512_CORE_BF16 AVX512_CORE AVX2; do
  OTTAVA_CPU_ISA=$([ "$isa" = AVX2 ] && echo avx2 || true) DNNL_MAX_CPU_ISA=$isa build/tests/training_golden_test "[.write]" || [ $? -eq 77 ]  # 77: skipped, the machine lacks it or took it already
done
git --no-pager diff --stat tests/golden/debug_loss.json
