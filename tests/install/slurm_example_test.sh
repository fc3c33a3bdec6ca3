#!/usr/bin/env bash
# scripts/slurm_example.sbatch: srun, which a script stands in for that notes how it was called, hears how many CPUs a task has;
# and a job that Slurm requeues keeps its log.
set -euo pipefail
script=$(cd "$(dirname "$0")/../../scripts" && pwd)/slurm_example.sbatch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir bin
printf '#!/bin/sh\necho "$LOG_RANK:" "$@"\n' > bin/srun
chmod +x bin/srun
fails() { echo "slurm_example_test: $*" >&2; exit 1; }
calls() {  # EXPECTED ARGUMENTS...: with the variables before it
  local expected=$1 called
  called=$(PATH=$work/bin:$PATH bash "$script" "${@:2}")
  [ "$called" = "$expected" ] || fails "expected '$expected', got '$called'"
}

unset LOG_RANK
SLURM_CPUS_PER_TASK=12 calls '0: --mpi=pmix --cpus-per-task=12 --kill-on-bad-exit=1 build/ottava train configs/llama3_8b_fp8.yaml'
LOG_RANK=0,3 SLURM_CPUS_PER_TASK=7 calls '0,3: --mpi=pmix --cpus-per-task=7 --kill-on-bad-exit=1 build/ottava train my.yaml --training.steps 3' \
  my.yaml --training.steps 3
(unset SLURM_CPUS_PER_TASK && calls '0: --mpi=pmix --cpus-per-task=1 --kill-on-bad-exit=1 build/ottava train my.yaml' my.yaml)

options=$(grep '^#SBATCH' "$script")
[[ $options = *--requeue* ]] || fails "the example is not requeued"
[[ $options = *--open-mode=append* ]] || fails "the log of a job that is requeued would be overwritten"
