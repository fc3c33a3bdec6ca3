#!/usr/bin/env bash
# Cross-compiles for aarch64 (build-aarch64), each file by itself, and runs under qemu-user: tests of core and fp8, the parsers'
# short fuzz runs, collectives over threads and TCP, a training step on one rank and on two. Then makes the bundle for aarch64.
#     scripts/stages/aarch64.sh [ctest options]
# Needs root, and Debian's packages for arm64 in a folder (build-roots/arm64), which this makes.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
source scripts/stages/debian_root.sh
need_root
scripts/install_dependencies.sh mmdebstrap qemu-user-static g++-aarch64-linux-gnu
libraries=$(scripts/install_dependencies.sh --list | grep -E '^(lib.*-dev|nlohmann-json3-dev|zlib1g-dev|libjs-dygraphs|catch2)$' | grep -v openmpi | paste -sd,)
debian_root arm64 "$(. /etc/os-release && echo "$VERSION_CODENAME")" --architectures=arm64 --variant=extract \
  --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="libc6-dev,libstdc++6,libgomp1,$libraries"

build=build-aarch64
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$PWD/scripts/cmake/aarch64.cmake" \
  -DOTTAVA_SYSROOT="$roots/arm64" -DOTTAVA_CUDA=OFF -DOTTAVA_TESTS=ON -DOTTAVA_UNITY=OFF >"$build.log" || { cat "$build.log"; exit 1; }
grep '^-- ottava' "$build.log"
cmake --build "$build" --target ottava ottava_emulated_tests
ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$(nproc)" -L '^emulated$' "$@"

# The program itself, and its bundle.
(cd "$build" && cpack -G TGZ >cpack.log || { cat cpack.log; exit 1; })
OTTAVA_EMULATOR="qemu-aarch64-static -L $roots/arm64" scripts/install/check_bundle.sh "$build"/ottava-*-linux-aarch64.tar.gz
