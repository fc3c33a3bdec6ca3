#!/usr/bin/env bash
# Builds HEAD on Debian 13 (oneDNN 3.7, Catch2 3.7, GCC 14) and runs all its tests there as an ordinary user, in a root of
# that system (build-roots/debian13). Needs root.
#     scripts/stages/debian13.sh [ctest options]
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
source scripts/stages/debian_root.sh
need_root
scripts/install_dependencies.sh mmdebstrap
debian_root debian13 trixie --variant=minbase --include="$(scripts/install_dependencies.sh --list | paste -sd,)"
build_and_test debian13 "$@"
