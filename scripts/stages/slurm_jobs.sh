#!/usr/bin/env bash
# What scripts/stages/slurm.sh does in its root, as an ordinary user: submits jobs and looks at what they leave.
set -euo pipefail
fails() { echo "slurm.sh: $*" >&2; squeue >&2; tail -n 30 ./*.log >&2; exit 1; }
# await SECONDS COMMAND...: until it succeeds.
await() {
  local left=$1
  shift
  until "$@" >/dev/null 2>&1; do
    [ $((left -= 1)) -gt 0 ] || fails "waited in vain for: $*"
    sleep 1
  done
}
field() { scontrol show job "$1" | grep -o "$2=[^ ]*" | cut -d= -f2; }
# log JOB, has JOB TEXT: the log of a job, by its number
log() { echo ./*-"$1".log; }
has() { grep -q "$2" "$(log "$1")"; }
ended() {  # no state: the controller was too busy to answer
  local state
  state=$(field "$1" JobState)
  [[ -n $state && $state != @(PENDING|RUNNING|COMPLETING) ]]
}

srun_line='exec srun .*'
variant() { sed "s|^$srun_line|$2|" slurm_example.sbatch >"$1.sbatch"; }
cp slurm_example.sbatch pmix.sbatch
variant tcp 'export MASTER_ADDR=$(scontrol show hostnames \| head -1)\nexec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 build/ottava train "$config" "$@"'
variant launch 'exec build/ottava launch -n 2 -- train "$config" "$@"'
variant mpirun 'exec mpirun -n 2 --oversubscribe build/ottava train "$config" "$@"'
signal_of() { case $1 in pmix | tcp) echo USR1@60 ;; *) echo B:USR1@60 ;; esac }
# submit VARIANT MINUTES: prints the job's number.
submit() {
  OMP_NUM_THREADS=1 sbatch --parsable --job-name="$1" --nodes=1 --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 --time="$2" \
    --signal="$(signal_of "$1")" "$1.sbatch" configs/debug.yaml --training.dataset_path text.txt --training.seq_len 64 \
    --training.local_batch_size 1 --training.steps 1000000 --checkpoint.interval 1000000 --job.dump_folder "$1"
}
saved_step() { sed -n 's/.* Stopped after step \([0-9]*\);.*/\1/p' "$(log "$1")" | tail -n 1; }

is_idle() { [ -n "$(sinfo --noheader --states=idle)" ]; }
await 60 is_idle
echo "== slurm: $(srun --version)"
variants=(pmix tcp launch mpirun)
declare -A first second
for v in "${variants[@]}"; do first[$v]=$(submit "$v" 2); done
for v in "${variants[@]}"; do
  job=${first[$v]}
  await 240 ended "$job"
  [ "$(field "$job" JobState) $(field "$job" ExitCode)" = 'COMPLETED 0:0' ] || fails "$v ended as $(field "$job" JobState), $(field "$job" ExitCode)"
  has "$job" 'received User defined signal 1' || fails "$v heard nothing of its time limit"
  [ -d "$v/checkpoint/step-$(saved_step "$job")" ] || fails "$v has not saved"
  second[$v]=$(submit "$v" 30)
done
for v in "${variants[@]}"; do
  await 120 has "${second[$v]}" "Training starts at step $(($(saved_step "${first[$v]}") + 1))"
done
echo "== slurm: ${variants[*]} save before the time limit, and the next job goes on"

job=${second[pmix]}
await 120 has "$job" 'step: .*50 '
scontrol requeue "$job"
await 60 has "$job" 'Stopped after step'
await 60 scontrol update jobid="$job" starttime=now
await 180 has "$job" "Training starts at step $(($(saved_step "$job") + 1))"
echo "== slurm: a requeued job saves, goes on, and keeps its log"

for v in tcp launch mpirun; do scancel "${second[$v]}"; done
for v in tcp launch; do
  await 60 has "${second[$v]}" 'received Terminated'
  await 60 has "${second[$v]}" 'Stopped after step'
done
echo "== slurm: scancel lets tcp and launch save"

pkill --signal KILL --oldest --full '^[^ ]*/ottava train .*--job.dump_folder pmix' || fails "no rank to kill"
await 60 ended "$job"
[ "$(field "$job" JobState)" = FAILED ] || fails "a job one of whose ranks was killed ended as $(field "$job" JobState)"
echo "== slurm: a job ends when one of its ranks is killed"
