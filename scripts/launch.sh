#!/usr/bin/env bash
# Starts a program on several ranks of this machine (or of the hosts that mpirun is told about):
#
#     scripts/launch.sh -n 4 build/ottava train configs/debug.yaml
#     LOG_RANK=0,3 scripts/launch.sh -n 4 --hostfile hosts build/ottava train configs/llama3_8b.yaml
#
# -n N            ranks (default: GPUs of this machine, or 2)
# other options   before the program go to mpirun as they are
#
# LOG_RANK=0,3    whose log lines are shown (default 0); warnings and errors of all ranks always are
# SIGTERM, SIGUSR1 and Ctrl-C to this script: the ranks save after the step they are in and end well; Ctrl-C again ends
# them at once. A rank that fails leaves the others 120 s (OpenMPI's default is 1 s).
set -euo pipefail

ranks=""
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    -n | -np) ranks="$2"; shift 2 ;;
    --hostfile | --host | -H | --mca | -x | --map-by | --bind-to | --wdir)
      if [[ "$1" == --mca ]]; then options+=("$1" "$2" "$3"); shift 3; else options+=("$1" "$2"); shift 2; fi ;;
    -*) options+=("$1"); shift ;;
    *) break ;;
  esac
done
if [[ $# -eq 0 ]]; then
  sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
command -v mpirun >/dev/null || { echo "launch.sh: mpirun was not found (Debian: openmpi-bin)" >&2; exit 2; }
if [[ -z "$ranks" ]]; then
  ranks=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
  [[ "$ranks" -gt 0 ]] || ranks=2
fi

# Ranks share out the cores themselves (parallel/ranks/launch.h), hyperthreads and OpenMP threads considered. The signal
# timeout is for ranks that are saving; a failed rank's peers stop by themselves and need none of it.
command=(mpirun -n "$ranks" --oversubscribe --bind-to none
  --mca odls_base_sigkill_timeout "${OTTAVA_SIGKILL_TIMEOUT:-120}"
  -x LOG_RANK="${LOG_RANK:-0}")
[[ -n "${OMP_NUM_THREADS:-}" ]] && command+=(-x OMP_NUM_THREADS)
[[ "$(id -u)" -eq 0 ]] && command+=(--allow-run-as-root)
export OTTAVA_ACCOUNTS
OTTAVA_ACCOUNTS=$(mktemp "${TMPDIR:-/tmp}/ottava-accounts.XXXXXX")
trap 'rm -f "$OTTAVA_ACCOUNTS"' EXIT
command+=(-x OTTAVA_ACCOUNTS)

# In a session of its own: Ctrl-C on the terminal is for this script to answer.
setsid "${command[@]}" "${options[@]}" "$@" <&0 &
mpirun=$!

# mpirun hands SIGUSR1 on and waits for its ranks. SIGTERM it does not: measured with OpenMPI 4.1.4, it sleeps through the
# signal timeout before the ranks hear of it, then once more, and exits with an error.
asked=0
stop() {
  asked=$((asked + 1))
  kill -USR1 "$mpirun" 2>/dev/null
  if [[ "$1" == INT && "$asked" -gt 1 ]]; then pkill -KILL -P "$mpirun"; fi
}
trap 'stop TERM' TERM
trap 'stop INT' INT
trap 'stop USR1' USR1

finish() {
  if [[ "$1" -ne 0 && -s "$OTTAVA_ACCOUNTS" ]]; then
    echo "launch.sh: the ranks ended with an error; their accounts:" >&2
    sort -V "$OTTAVA_ACCOUNTS" >&2
  fi
  exit "$1"
}

# After a failure OpenMPI 4 sleeps through the whole signal timeout, also when no rank is left, and then nothing is gained by
# waiting. It is asleep when it has no living child and its main thread is in nanosleep (its event loop waits in poll);
# where the kernel does not tell, ten seconds without a child have to do.
started=false
alone=0
while [[ $(ps -o stat= -p "$mpirun" 2>/dev/null || true) =~ ^[^Z] ]]; do
  if ps -o stat= --ppid "$mpirun" 2>/dev/null | grep -qv '^Z'; then started=true; alone=0; else alone=$((alone + 1)); fi
  state=$(ps -o wchan:32= -p "$mpirun" 2>/dev/null || true)
  if $started && { [[ "$alone" -ge 3 && "$state" == *nanosleep* ]] || [[ "$alone" -ge 50 ]]; }; then
    kill -KILL "$mpirun"
    wait "$mpirun" 2>/dev/null || true
    finish 1
  fi
  sleep 0.2 &
  wait $! 2>/dev/null || true
done
code=0
wait "$mpirun" || code=$?
finish "$code"
