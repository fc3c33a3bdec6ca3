#!/usr/bin/env bash
# Makes build-bundle/ottava-VERSION-linux-x86_64.tar.gz: the program with every shared library it needs except the C library,
# MPI and CUDA's. It runs from wherever it is unpacked, without root:
#
#     scripts/bundle.sh                   # GPU code for sm_80, sm_89, sm_90a and sm_100, and PTX for later ones
#     scripts/bundle.sh --cpu             # without GPU code
#
# The machine that runs it needs a C library (glibc) at least as new as the one that made it (printed), for GPUs a driver and
# cuBLASLt and NCCL of the toolkit or of pip, and for MPI a run of build_mpi.sh. OTTAVA_BUNDLE_ARCHITECTURES: other GPUs.
set -euo pipefail
cd "$(dirname "$0")/.."

cuda=ON
case "$*" in
  "") ;;
  --cpu) cuda=OFF ;;
  *) echo "bundle.sh: '$*' is unknown: --cpu or nothing was expected" >&2; exit 2 ;;
esac
build=build-bundle
architectures=${OTTAVA_BUNDLE_ARCHITECTURES:-80-real;89-real;90a-real;100}
if [ "$cuda" = ON ] && ! command -v nvcc >/dev/null; then
  [ -x /usr/local/cuda/bin/nvcc ] || { echo "bundle.sh: nvcc was not found: put it on PATH, or use --cpu" >&2; exit 1; }
  PATH=/usr/local/cuda/bin:$PATH
fi

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOTTAVA_BUNDLE=ON -DOTTAVA_CUDA=$cuda \
  -DCMAKE_CUDA_ARCHITECTURES="$architectures" >"$build.log" || { cat "$build.log" >&2; exit 1; }
grep '^-- ottava' "$build.log"
cudnn=$(sed -nE 's/^-- ottava.* cudnn attention (on|off)( \([^)]*\))?.*/\1\2/p' "$build.log")
if [ "$cuda" = ON ] && [[ "$cudnn" != on* ]]; then
  echo "bundle.sh: cuDNN's attention is $cudnn: this bundle has our own kernels alone (attention.backend flash)" >&2
fi
targets=(ottava ottava_device_tests)
[ "$cuda" = ON ] && targets+=(ottava_cublaslt_probe)
cmake --build "$build" --target "${targets[@]}"

version=$("$build/ottava" --version)
name=ottava-$version-linux-$(uname -m)
root=$build/$name
rm -rf "$root"
mkdir -p "$root"/{bin,lib,mpi/parallel/comm/mpi,scripts/reference,scripts/gpu_check,tests/golden/fp8}
programs=(ottava tests/ottava_device_tests)
[ "$cuda" = ON ] && programs+=(tests/ottava_cublaslt_probe)
for program in "${programs[@]}"; do
  strip -o "$root/bin/$(basename "$program")" "$build/$program"
done

# The C library belongs to the machine, CUDA's libraries are opened at run time and never linked.
keep_out='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libcuda|libcudart|libnccl|libcublas|libmpi)[.-]'
for program in "$root"/bin/*; do
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3} $0 ~ /not found/ {print "missing", $1; exit 1}'
done | sort -u | while read -r file path; do
  [ "$file" = missing ] && { echo "bundle.sh: $path was not found" >&2; exit 1; }
  [[ "$file" =~ $keep_out ]] || cp -L "$path" "$root/lib/$file"
done
chmod 644 "$root"/lib/*

cp -r configs LICENSE "$root/"
cp scripts/bundle/README.md scripts/bundle/build_mpi.sh "$root/"
cp parallel/comm/mpi/mpi_module.h parallel/comm/mpi/mpi_module.cpp "$root/mpi/parallel/comm/mpi/"
cp scripts/launch.sh scripts/launch_tcp.sh scripts/slurm_example.sbatch scripts/sample_text.sh \
  scripts/gpu_check.sh "$root/scripts/"
cp scripts/gpu_check/*.py "$root/scripts/gpu_check/"
cp tests/golden/fp8/policy_tables.txt "$root/tests/golden/fp8/"  # what the device tests read besides configs
cp scripts/reference/bench_pytorch.py "$root/scripts/reference/"
sed -i 's|build/ottava|bin/ottava|g' "$root"/scripts/*.sh "$root"/scripts/*.sbatch "$root"/configs/*.yaml
{
  echo "version $version"
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  [ "$cuda" = ON ] && echo "gpu $architectures" || echo "gpu none"
  echo "cudnn attention $cudnn"
} >"$root/BUILD"

# The newest symbol version that anything in the bundle asks the C library for.
glibc=$(objdump -T "$root"/bin/* "$root"/lib/* 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
echo "glibc ${glibc#GLIBC_}" >>"$root/BUILD"
tar -C "$build" --owner=0 --group=0 -czf "$build/$name.tar.gz" "$name"
bytes=$(stat -c %s "$build/$name.tar.gz")
echo "$build/$name.tar.gz: $((bytes / 1000000)).$((bytes / 100000 % 10)) MB, needs glibc ${glibc#GLIBC_}"
if [ "$bytes" -ge 60000000 ]; then echo "bundle.sh: this is more than 60 MB" >&2; exit 1; fi
