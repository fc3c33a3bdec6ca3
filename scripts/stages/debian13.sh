#!/usr/bin/env bash
# Builds HEAD on Debian 13 (oneDNN 3.7, Catch2 3.7, GCC 14) and runs all its tests there as an ordinary user, in a root of
# that system (build-roots/debian13). Needs root.
#     scripts/stages/debian13.sh [ctest options]
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/stages/debian_root.sh
need_root
scripts/install_dependencies.sh mmdebstrap
debian_root debian13 trixie --variant=minbase --include="$(scripts/install_dependencies.sh --list | paste -sd,)"
user_in debian13 builder
home=$roots/debian13/home/builder
rm -rf "$home/ottava"
mkdir "$home/ottava"
git archive HEAD | tar -x -C "$home/ottava"
chown -R --reference="$home" "$home/ottava"
in_root debian13 builder bash -ec '
  cd ottava
  cmake --preset release -DOTTAVA_TESTS=ON | grep "^-- ottava"
  cmake --build build
  ctest --test-dir build --no-tests=error --output-on-failure -j "$(nproc)" "$@"' build "$@"
