#!/usr/bin/env bash
# AdamW beside Muon on the shape of configs/debug.yaml: three learning rates each, the same data and seed. Prints the table of
# scripts/results.md.
#   scripts/muon_table.sh [STEPS [SEQUENCES OF 512 TOKENS PER STEP]]   default 300 and 16: 8192 tokens a step, hours on 2 cores
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
steps=${1:-300} batch=${2:-16}
scripts/sample_text.sh outputs/sample/sample.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "| optimizer | lr | training loss, mean of the last 20 steps |"
echo "|---|---|---|"
for name in AdamW Muon; do
  for lr in 1e-3 2e-3 4e-3; do
    build/ottava train configs/debug.yaml --optimizer.name "$name" --optimizer.lr "$lr" --job.dump_folder "$work/$name-$lr" \
      --training.seq_len 512 --training.local_batch_size "$batch" --training.global_batch_size "$batch" --training.steps "$steps" \
      --lr_scheduler.warmup_steps 30 --metrics.log_freq 1 --checkpoint.enable false >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    python3 - "$work/$name-$lr/metrics.jsonl" "$name" "$lr" <<'END'
import json
import sys

losses = [step["loss_metrics/global_avg_loss"] for step in map(json.loads, open(sys.argv[1])) if "loss_metrics/global_avg_loss" in step]
print(f"| {sys.argv[2]} | {sys.argv[3]} | {sum(losses[-20:]) / len(losses[-20:]):.4f} |")
END
  done
done
