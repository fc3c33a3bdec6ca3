#!/usr/bin/env bash
# The README's two commands, one after the other in a fresh clone of what is committed here, compiled anew without ccache:
# scripts/quickstart.sh for three steps, with the time from the clone to the first, then scripts/test.sh.
#     scripts/stages/quickstart.sh
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
clone=$(mktemp -d)
trap 'rm -rf "$clone"' EXIT
began=$SECONDS
git clone -q . "$clone"
cd "$clone"
export CCACHE_DISABLE=1
scripts/quickstart.sh -- --training.steps 3 --metrics.log_freq 1 | while IFS= read -r line; do
  printf '%s\n' "$line"
  [[ $line != *"step:  1 "* ]] || echo "$((SECONDS - began)) s from the clone to the first training step" | tee first-step
done
[ -s first-step ] || { echo "quickstart.sh: no training step was seen" >&2; exit 1; }
scripts/test.sh
cat first-step
