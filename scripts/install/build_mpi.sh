#!/usr/bin/env bash
# Makes lib/ottava/libottava_mpi.so of an unpacked bundle for the MPI of this machine, with its mpicxx and nothing else. Needed
# once per MPI, and only for ranks that mpirun starts: NCCL needs none of it (ottava launch, torchrun, srun with MASTER_ADDR).
#     share/ottava/mpi/build_mpi.sh [mpicxx]
set -euo pipefail
cd "$(dirname "$0")"
compiler=${1:-${MPICXX:-mpicxx}}
command -v "$compiler" >/dev/null || { echo "build_mpi.sh: $compiler was not found: load your MPI module, or name it: build_mpi.sh /path/to/mpicxx" >&2; exit 1; }
library=../../../lib/ottava/libottava_mpi.so
"$compiler" -std=c++11 -O2 -fPIC -shared -I. parallel/comm/mpi/mpi_module.cpp -o "$library.part"
mv "$library.part" "$library"
echo "$(realpath "$library") is made; start ranks with: mpirun -n 8 ottava train CONFIG"
