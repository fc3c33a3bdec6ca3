#!/usr/bin/env bash
# first_job.sh OTTAVA: the first job of somebody who has never used the program, shortened: from a text to a model, by way of
# the mistakes that people make. Prints the transcript; fails at the first answer that is not as it should be.
set -euo pipefail
program=$(realpath "$1")
source=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" && ln -s "$program" "$work/bin/ottava"
PATH=$work/bin:$PATH
cd "$work"
export OMP_NUM_THREADS=1

# run EXIT_CODE COMMAND [EXPECTED TEXT...]: the text is looked for as it is in what the command prints.
run() {
  local code=$1 command=$2 got=0 out
  shift 2
  printf '\n$ %s\n' "$command"
  out=$(bash -c "$command" 2>&1) || got=$?
  printf '%s\n' "$out"
  [ "$got" = "$code" ] || { echo "first_job.sh: exit code $got, expected $code"; exit 1; }
  for text in "$@"; do
    grep -qF -- "$text" <<<"$out" || { echo "first_job.sh: the answer lacks: $text"; exit 1; }
  done
}

cat "$source"/*.md "$source"/*/*.md "$source"/*/*/*.md >text.txt

echo "== A text, a configuration made for it, a model"
run 0 "ottava init text.txt --output first --minutes 1" "Next: ottava train first/ottava.yaml" \
  "ottava data inspect text.txt --tokenizer first/tokenizer --seq-len 256"
run 0 "ottava train first/ottava.yaml --training.steps 6 --metrics.log_freq 2" "Data check: " "Data: 'text.txt': 1 file" "step:  1  loss: " "Training completed"
run 0 "ottava train first/ottava.yaml --training.steps 6" "This run is finished"
run 0 "echo 'The loader' | ottava generate --checkpoint first/run --max-tokens 5 --device cpu" "The loader"

echo "== A model of one's own: grouped queries, tied embeddings"
cat >mine.yaml <<'YAML'
model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_dim: 128, tie_embeddings: true, hf_assets_path: first/tokenizer}
training: {dataset_path: text.txt, seq_len: 64, local_batch_size: 4, steps: 10}
optimizer: {lr: 2.0e-3}
lr_scheduler: {warmup_steps: 2}
checkpoint: {enable: true, interval: 5}
metrics: {log_freq: 5, peak_tflops_bf16: 1}
job: {dump_folder: mine}
YAML
run 0 "ottava config mine.yaml" "dim: 64"
run 0 "ottava plan mine.yaml" "Memory per rank"
run 1 "ottava train mine.yaml --training.step 3 --training.seq_len abc" "did you mean --training.steps?" "expected an integer"
run 0 "ottava train mine.yaml" "rope_scaling    none" "Saved mine/checkpoint/step-5" "Saved mine/checkpoint/step-10" "Training completed"
run 0 "ottava train mine.yaml --training.steps 12 --optimizer.lr 1.0e-3" "Changed since then: optimizer.lr 0.002 -> 0.001" "Training starts at step 11"
run 0 "ottava checkpoint inspect mine/checkpoint/step-12" "step-12"

echo "== Stopped in the middle, and gone on with"
printf '\n$ ottava train mine.yaml --job.dump_folder stopped --training.steps 100000   # and Ctrl-C\n'
ottava train mine.yaml --job.dump_folder stopped --training.steps 100000 --metrics.log_freq 1 >stopped.log 2>&1 &
for _ in $(seq 600); do if grep -q "step:  3 " stopped.log; then break; fi; sleep 0.1; done
kill -INT %1 && wait %1
cat stopped.log
grep -q "the same command continues from here" stopped.log || { echo "first_job.sh: Ctrl-C did not end in a checkpoint"; exit 1; }
at=$(ls stopped/checkpoint | sed 's/step-//' | sort -n | tail -1)
run 0 "ottava train mine.yaml --job.dump_folder stopped --training.steps $((at + 2))" "Training starts at step $((at + 1))"

echo "== Text through the tokenizer"
run 0 "echo 'A plain sentence.' | ottava tokenizer encode first/tokenizer | ottava tokenizer decode first/tokenizer" "A plain sentence."

echo "== Data of other kinds, with the mistakes that are in it"
for i in $(seq 400); do echo "{\"text\": \"line $i of the sample, which is long enough to be read\", \"id\": $i}"; done >good.jsonl
{ head -200 good.jsonl; echo '{"text": "cut o'; tail -200 good.jsonl; } >bad.jsonl
sed 's/"text"/"body"/' good.jsonl >other.jsonl
quick="--training.steps 2 --checkpoint.enable false --job.dump_folder data"
run 1 "ottava train mine.yaml --training.dataset_path bad.jsonl $quick" "bad.jsonl' line 201, column"
run 0 "ottava train mine.yaml --training.dataset_path bad.jsonl --training.bad_records skip $quick" "1 bad record"
run 1 "ottava train mine.yaml --training.dataset_path other.jsonl $quick" "no key \"text\", only \"body\", \"id\"" "training.text_key"
run 0 "ottava train mine.yaml --training.dataset_path other.jsonl --training.text_key body $quick" "Training completed"
run 0 "ottava data inspect other.jsonl --text-key body --tokenizer first/tokenizer" "line 1 of the sample"
run 0 "ottava data prepare good.jsonl --tokenizer first/tokenizer --output shards" "1 shard, 400 documents"
run 0 "ottava train mine.yaml --training.dataset_path shards $quick" "Training completed"

echo "== Two sources in shares of the tokens"
mixture="[{name: docs, path: text.txt, weight: 3}, {name: lines, path: good.jsonl, weight: 1}]"
run 0 "ottava train mine.yaml --training.dataset_path '[]' --training.mixture '$mixture' $quick" "sources: docs 75.0%" "| lines 25.0%"

echo "== Ranks: shards of the weights on two, then the model itself cut in two, without conversion"
ranks="--training.threads 1 --metrics.log_freq 1 --job.dump_folder ranks"
run 0 "ottava launch -n 2 -- train mine.yaml --training.steps 4 $ranks" "2 ranks" "Training completed"
run 0 "ottava launch -n 2 -- train mine.yaml --training.steps 6 --parallelism.tensor_parallel_degree 2 $ranks" "Training starts at step 5"

echo "== A Hugging Face folder in, FP8"
run 0 "ottava train mine.yaml --model.flavor hf --model.hf_assets_path mine/checkpoint/step-12 --job.dump_folder tuned $quick" "Loaded the weights of"
cat >fp8.yaml <<'YAML'
model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_dim: 128, hf_assets_path: first/tokenizer, converters: [quantize.linear.float8]}
training: {dataset_path: text.txt, seq_len: 64, local_batch_size: 4, steps: 2}
quantize: {linear: {float8: {recipe_name: rowwise}}}
metrics: {log_freq: 1, peak_tflops_bf16: 1}
job: {dump_folder: fp8}
YAML
run 0 "ottava train fp8.yaml" "FP8" "mfu(fp8)"

echo "== What it says about itself"
run 0 "ottava bench train mine.yaml --steps 2" "tokens/s"
run 1 "ottava train" "training.dataset_path: no data is given" "model.hf_assets_path"
run 1 "ottava train missing.yaml" "missing.yaml"
run 1 "ottava generate --checkpoint nowhere --prompt x" "nowhere"
