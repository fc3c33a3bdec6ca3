#!/usr/bin/env bash
# Writes tests/golden/debug_loss.json anew, after a change of numerics that is meant. The commit that moves it says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
cmake --build build --target training_golden_test
build/tests/training_golden_test "[.write]"
git --no-pager diff --stat tests/golden/debug_loss.json
