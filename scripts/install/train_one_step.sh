#!/usr/bin/env bash
# train_one_step.sh PREFIX [LAUNCHER...]: trains one step with what is installed in PREFIX, in an empty folder and with nothing
# else on PATH but the system's programs; with each launcher (launch, mpirun) another one on two ranks.
# OTTAVA_EMULATOR, such as "qemu-aarch64-static -L FOLDER", runs programs of another architecture.
set -euo pipefail
prefix=$1
shift
read -ra emulator <<<"${OTTAVA_EMULATOR:-}"
ottava=("${emulator[@]}" "$prefix/bin/ottava")
[ ${#emulator[@]} -gt 0 ] || ottava=(ottava)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for i in $(seq 2000); do echo "The dog number $i sees the dog number $((i + 1))."; done >text.txt
train() {  # NAME PROGRAM WORD..., to which the command is added
  local out=$1
  shift
  env -i HOME="$work" PATH="$prefix/bin:/usr/bin:/bin" OMP_NUM_THREADS=1 "$@" train configs/debug.yaml \
    --training.dataset_path text.txt --training.steps 1 --training.seq_len 64 --job.dump_folder "$out" >"$out.log" 2>&1 ||
    { cat "$out.log" >&2; echo "train_one_step.sh: '$* train' failed" >&2; exit 1; }
  [ -d "$out/checkpoint/step-1" ] ||
    { cat "$out.log" >&2; echo "train_one_step.sh: '$* train' wrote no checkpoint" >&2; exit 1; }
}
train one "${ottava[@]}"
env -i HOME="$work" PATH="$prefix/bin:/usr/bin:/bin" "${ottava[@]}" generate --checkpoint one/checkpoint/step-1 \
  --prompt "The dog" --max-tokens 3 >/dev/null
for launcher in "$@"; do
  case $launcher in
    mpirun) train mpirun mpirun -n 2 --oversubscribe --allow-run-as-root --bind-to none "${ottava[@]}" ;;
    launch)
      if [ ${#emulator[@]} -eq 0 ]; then
        train launch "${ottava[@]}" launch -n 2 --
      else  # the kernel knows no program of another architecture, and so the launcher cannot start it
        ranks=(WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 12000)))
        train launch "${ranks[@]}" RANK=1 LOCAL_RANK=1 "${ottava[@]}" & other=$!
        train launch "${ranks[@]}" RANK=0 LOCAL_RANK=0 "${ottava[@]}"
        wait $other
      fi
      ;;
    *) echo "train_one_step.sh: launcher '$launcher' is unknown: launch or mpirun" >&2; exit 2 ;;
  esac
done
