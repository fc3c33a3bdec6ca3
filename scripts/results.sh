#!/usr/bin/env bash
# Makes outputs/results.md: the figures of this machine. Takes about half an hour; leave the machine alone meanwhile.
#   scripts/results.sh [TEXT]       a text to train on; else the sample text of the quickstart
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;;
  -*) echo "results.sh: '$1' is no text; expected a file, or nothing" >&2; exit 2 ;;
esac
text=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
scripts/install_dependencies.sh
[ -f build/build.ninja ] || cmake --preset release
cmake -DOTTAVA_TESTS=ON build >/dev/null  # the quickstart left them out; fp8_bandwidth is among them
cmake --build build --target ottava fp8_bandwidth >/dev/null
[ -n "$text" ] || { text=outputs/sample/sample.txt && scripts/sample_text.sh "$text"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/results.md

run() { printf '\n```\n$ %s\n' "${*//$work/scratch}" >>"$out"; "$@" 2>&1 | grep -vi ' - info - ' >>"$out"; printf '```\n' >>"$out"; }
common=(--training.dataset_path "$text" --job.dump_folder "$work/run" --checkpoint.enable false)

{
  echo "# Results"
  echo
  echo "Made by \`scripts/results.sh\` on $(date -u +%Y-%m-%d): $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) cores."
  echo "Utilization is FLOPs as computed / time / GEMM peak: the best rate of products seen in the run, or kept from an earlier one; the rate of f32"
  echo "multiply-adds in the caches stands beside it. Figures of shared machines vary by tens of percent: compare ratios within one run."
  echo "Predicted ceiling of the debug model at 2048 tokens (head dimension 16): its attention is bound by exponentials, not by products"
  echo "(core/ops/attention/attention_cpu.cpp), so that the whole step can reach 94% of the GEMM rate where products are f32 multiply-adds, 85%"
  echo "where Zen 4 multiplies bf16, and 75% of AMX's."
} >"$out"

# The two largest sets of instructions that this machine has; another architecture ignores the name.
sets=()
for set in AVX512_CORE_AMX:amx_bf16 AVX512_CORE_BF16:avx512_bf16 AVX512_CORE:avx512dq AVX2:avx2; do
  if grep -qw "${set#*:}" /proc/cpuinfo; then sets+=("${set%:*}"); fi
done
[ ${#sets[@]} -gt 0 ] || sets=(DEFAULT)
sets=("${sets[@]:0:2}")
# hold_to SET: oneDNN's kernels, and ours, which know no sets between AVX2 and AVX-512.
hold_to() {
  export DNNL_MAX_CPU_ISA=$1
  if [ "$1" = AVX2 ]; then export OTTAVA_CPU_ISA=avx2; else unset OTTAVA_CPU_ISA; fi
}

for isa in "${sets[@]}"; do
  hold_to "$isa"
  printf '\n## One process, %s\n' "$isa" >>"$out"
  run build/ottava bench train configs/debug.yaml --steps 3 --training.local_batch_size 8 "${common[@]}"
  run build/ottava bench train configs/llama_60m.yaml --steps 3 --training.local_batch_size 4 --training.global_batch_size 4 "${common[@]}"
done

# FP8 beside BF16, one run after the other, with BF16 at either end: how far its two figures lie apart says how far to trust a
# ratio.
median() { build/ottava bench train "$@" "${common[@]}" 2>&1 | sed -n 's/^step: median \([0-9.]*\) s.*/\1/p'; }
declare -A model=([debug]="configs/debug.yaml --steps 3 --training.local_batch_size 8"
                  [60m]="configs/llama_60m.yaml --steps 3 --training.local_batch_size 4 --training.global_batch_size 4")
beside_bf16() {  # beside_bf16 MODEL RECIPE...: lines of the table
  local name=$1 before after recipe
  shift
  local -A seconds
  before=$(median ${model[$name]})
  for recipe in "$@"; do
    seconds[$recipe]=$(median ${model[$name]} --model.converters quantize.linear.float8 --quantize.linear.float8.recipe_name "$recipe")
  done
  after=$(median ${model[$name]})
  for recipe in "$@"; do
    awk -v n="$name" -v i="$DNNL_MAX_CPU_ISA" -v r="$recipe" -v t="${seconds[$recipe]}" -v a="$before" -v b="$after" \
      'BEGIN {printf "| %s | %s | %s | %.2f s | %.2f, %.2f s | %.2f |\n", n, i, r, t, a, b, 2 * t / (a + b)}' >>"$out"
  done
}
printf '\n## FP8, which a CPU emulates exactly, beside BF16: median step times, and their ratio to the mean of two runs of BF16\n\n%s\n\n' \
  "Where the two figures of BF16 lie far apart the machine changed meanwhile, and the ratio says little." >>"$out"
printf '| model | instructions | recipe | step | BF16 before, after | ratio |\n|---|---|---|---|---|---|\n' >>"$out"
recipes=(tensorwise tensorwise_with_gw_hp delayed rowwise rowwise_with_gw_hp blockwise mxfp8)
hold_to "${sets[0]}"
beside_bf16 debug "${recipes[@]}"
beside_bf16 60m "${recipes[@]}"
for isa in "${sets[@]:1}"; do
  hold_to "$isa"
  beside_bf16 debug tensorwise
  beside_bf16 60m tensorwise
done
hold_to "${sets[0]}"

printf '\n## Two ranks of one core each against one rank on two cores, same global batch\n' >>"$out"
run build/ottava bench train configs/llama_60m.yaml --steps 3 --training.local_batch_size 4 --training.global_batch_size 4 "${common[@]}"
run build/ottava launch -n 2 --only-rank 0 -- bench train configs/llama_60m.yaml --steps 3 --training.local_batch_size 2 --training.global_batch_size 4 "${common[@]}"
unset DNNL_MAX_CPU_ISA OTTAVA_CPU_ISA

printf '\n## Planned step times, calibrated on one step of one rank (scripts/plan_accuracy.py)\n\n' >>"$out"
scripts/plan_accuracy.py --text "$text" >>"$out"

printf '\n## Long sequences: the plan of 8B on 8 H200, and published runs on H100 (scripts/long_sequences.py)\n\n' >>"$out"
scripts/long_sequences.py >>"$out"

printf '\n## 405B on 512 H100, planned, beside what TorchTitan published (scripts/plan_405b.py; times by the table, which allows for an error of 25%%)\n\n' >>"$out"
scripts/plan_405b.py >>"$out"

printf '\n## The fastest layouts of 512 H100: what `plan --search` takes of a processor, shared by its threads\n\n' >>"$out"
printf '| model | layouts | estimated | recorded in full | processor time |\n|---|---|---|---|---|\n' >>"$out"
for model in 8b 70b 405b; do
  found=$({ TIMEFORMAT=%U; time build/ottava plan configs/llama3_$model.yaml --gpus 512 --device h100_sxm --search \
    --training.global_batch_size 512 >"$work/search"; } 2>&1)
  sed -n "s/^\([0-9]*\) layouts of 512 ranks, \([0-9]*\) estimated, \([0-9]*\) recorded.*/| $model | \1 | \2 | \3 | $found s |/p" "$work/search" >>"$out"
done

printf '\n## What a mixture costs: finding where a sequence is, beside reading it, of text and of token shards\n' >>"$out"
build/ottava data prepare "$text" --tokenizer configs/tokenizers/en-2256 --output "$work/shards" >/dev/null
for data in "$text" "$work/shards"; do
  run build/ottava bench data --steps 400 --model.flavor debugmodel --model.hf_assets_path configs/tokenizers/en-2256 --training.seq_len 2048 \
    --job.dump_folder "$work/data" --training.mixture "[{name: most, path: $data, weight: 0.9}, {name: rest, path: $data, weight: 0.1}]"
done

printf '\n## What tracing costs (scripts/trace_cost.py)\n\n' >>"$out"
scripts/trace_cost.py --text "$text" >>"$out"

printf '\n## Steps with a save in flight, beside steps without, in turns (bench train --saves)\n\n' >>"$out"
for name in debug debug 60m 60m; do
  build/ottava bench train ${model[$name]} --saves 9 "${common[@]}" 2>/dev/null | sed -n "s/^asynchronous save [^:]*:/- $name:/p" >>"$out"
done

printf '\n## Start-up: wall time of one step of the debug model at batch 1, and of the step itself\n' >>"$out"
for i in 1 2; do  # the second finds a warm cache
  begin=$(date +%s.%N)
  build/ottava train configs/debug.yaml --training.local_batch_size 1 --training.steps 1 "${common[@]}" >"$work/log"
  end=$(date +%s.%N)
done
step=$(tail -1 "$work/run/metrics.jsonl" | sed 's/.*"time_metrics\/end_to_end(s)":\([0-9.e-]*\).*/\1/')
printf '\nwall %.2f s, step %.2f s\n' "$(echo "$end - $begin" | bc -l 2>/dev/null || python3 -c "print($end - $begin)")" "$step" >>"$out"

printf '\n## Tokenizer\n' >>"$out"
for size in 2256 2560; do run build/ottava tokenizer inspect configs/tokenizers/en-$size --text "$text"; done

printf '\n## Bandwidth of quantizing: GB/s, time, and the part of a plain copy measured beside it\n' >>"$out"
run build/tests/fp8_bandwidth

if [ -f scripts/pytorch_race.md ]; then  # needs torch: scripts/pytorch_race.py
  printf '\n## Beside PyTorch\n\n' >>"$out"
  tail -n +3 scripts/pytorch_race.md >>"$out"
fi

printf '\n## The whole life of a model\n' >>"$out"
run scripts/story.sh "$text"

printf '\n## FP8 recipes: loss\n\n' >>"$out"
tail -n +3 scripts/fp8_convergence.md >>"$out"
sed -n '/^## AdamW beside Muon/,$p' scripts/results.md >>"$out"  # hours: scripts/muon_table.sh
mkdir -p outputs
mv "$out" outputs/results.md
echo "wrote outputs/results.md; scripts/results.md has sections of other days and machines besides"
