#!/usr/bin/env bash
# Makes, in build-bundle, what runs without a compiler, and checks the first (scripts/install/check_bundle.sh):
#   ottava-VERSION-linux-ARCHITECTURE.tar.gz   the program with every shared library it needs except the C library, MPI and
#                                              CUDA's: runs from wherever it is unpacked, without root
#   ottava_VERSION_ARCHITECTURE.deb            for Debian's release on this machine, whose libraries it depends on
#
#     scripts/bundle.sh                   # GPU code for sm_80, sm_89, sm_90a and sm_100, and PTX for later ones
#     scripts/bundle.sh --cpu             # without GPU code
#     scripts/bundle.sh --fetch-cudnn     # with cuDNN's attention, headers from pinned Python packages
#     scripts/bundle.sh --cudnn-headers DIRECTORY    # the same without a network: cudnn.h and cudnn_frontend.h lie there
#
# scripts/install/README.md says what the machine that runs it needs. OTTAVA_BUNDLE_ARCHITECTURES: other GPUs.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac

cuda=ON headers="" fetch=""
case "$#:$*" in
  0:) ;;
  1:--cpu) cuda=OFF ;;
  1:--fetch-cudnn) fetch=yes ;;
  2:--cudnn-headers\ ?*) headers=$(realpath -m "$2") ;;
  *) echo "bundle.sh: '$*' is unknown: --cpu, --fetch-cudnn, --cudnn-headers DIRECTORY or nothing was expected" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
build=build-bundle
architectures=${OTTAVA_BUNDLE_ARCHITECTURES:-80-real;89-real;90a-real;100}
if [ "$cuda" = ON ] && ! command -v nvcc >/dev/null; then
  [ -x /usr/local/cuda/bin/nvcc ] || { echo "bundle.sh: nvcc was not found: put it on PATH, or use --cpu" >&2; exit 1; }
  PATH=/usr/local/cuda/bin:$PATH
fi
if [ -n "$fetch" ]; then
  scripts/install/fetch_cudnn_headers.sh "$build-cudnn"
  headers=$build-cudnn/include
fi
cudnn=()
if [ -n "$headers" ]; then
  for header in cudnn.h cudnn_frontend.h; do
    [ -e "$headers/$header" ] || { echo "bundle.sh: $headers has no $header" >&2; exit 1; }
  done
  headers=$(cd "$headers" && pwd)
  cudnn=(-DCUDNN_INCLUDE="$headers" -DCUDNN_FRONTEND_INCLUDE="$headers")
fi

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOTTAVA_BUNDLE=ON -DOTTAVA_TESTS=ON -DOTTAVA_CUDA=$cuda \
  -DCMAKE_CUDA_ARCHITECTURES="$architectures" "${cudnn[@]}" >"$build.log" || { cat "$build.log" >&2; exit 1; }
grep '^-- ottava' "$build.log"
if [ "$cuda" = ON ] && ! grep -q '^-- ottava.* cudnn attention on' "$build.log"; then
  [ -z "$headers" ] || { echo "bundle.sh: cuDNN's attention is off in spite of $headers (see above)" >&2; exit 1; }
  echo "bundle.sh: cuDNN's attention is off (see above): this bundle has our own kernels only (attention.backend flash); with --fetch-cudnn or --cudnn-headers it has cuDNN's too" >&2
fi
targets=(ottava ottava_device_tests)
[ "$cuda" = ON ] && targets+=(ottava_cublaslt_probe)
cmake --build "$build" --target "${targets[@]}"
rm -f "$build"/ottava[-_]*.{tar.gz,deb}
(cd "$build" && cpack -G "TGZ;DEB")
scripts/install/check_bundle.sh "$build"/ottava-*.tar.gz
ls -l "$build"/ottava[-_]*.{tar.gz,deb}
