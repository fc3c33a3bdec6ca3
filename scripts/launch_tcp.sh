#!/usr/bin/env bash
# Starts a program on several ranks of this machine where there is no MPI: ranks meet over TCP, as under torchrun.
#
#     scripts/launch_tcp.sh -n 8 bin/ottava train configs/llama3_8b_fp8.yaml
#
# -n N            ranks (default: GPUs of this machine, or 2)
# Several machines: start it on each with NODES, NODE (0 ... NODES-1) and MASTER_ADDR (an address of node 0) set; srun
# needs no such script, see README.md.
# LOG_RANK=0,3 shows the log lines of these ranks. SIGTERM, SIGUSR1 and Ctrl-C reach every rank: they save and end.
set -euo pipefail

ranks=""
if [[ "${1:-}" == -n ]]; then ranks="${2:?launch_tcp.sh: -n needs a number}"; shift 2; fi
if [[ $# -eq 0 ]]; then sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
if [[ -z "$ranks" ]]; then
  ranks=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
  [[ "$ranks" -gt 0 ]] || ranks=2
fi
nodes=${NODES:-1}
node=${NODE:-0}
if [[ "$nodes" -gt 1 && -z "${MASTER_ADDR:-}" ]]; then
  echo "launch_tcp.sh: NODES is $nodes: set MASTER_ADDR to an address of node 0" >&2
  exit 2
fi
export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
export WORLD_SIZE=$((ranks * nodes)) LOCAL_WORLD_SIZE=$ranks

# In sessions of their own: Ctrl-C on the terminal is for this script to hand on.
processes=()
for ((local = 0; local < ranks; ++local)); do
  RANK=$((node * ranks + local)) LOCAL_RANK=$local setsid "$@" <&0 &
  processes+=($!)
done
trap 'kill -USR1 "${processes[@]}" 2>/dev/null || true' TERM INT USR1

# A rank that fails tells the others, which end by themselves.
code=0
for process in "${processes[@]}"; do
  while kill -0 "$process" 2>/dev/null; do wait "$process" || true; done  # a trapped signal ends wait early
  wait "$process" || code=1
done
exit "$code"
