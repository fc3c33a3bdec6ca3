#!/usr/bin/env bash
# The whole life of a small model, on a laptop in a quarter of an hour: a tokenizer, pretraining on two sources, questions that
# it cannot answer, fine-tuning on conversations, the same questions, and a chat. It passes when the fine-tuned model's accuracy
# on questions whose words and wording it has not met exceeds the base model's by three standard errors.
#   scripts/story.sh [TEXT] [--folder FOLDER] [--short]
# TEXT is a dictionary in the form of GCIDE, by default that one (scripts/sample_text.sh). FOLDER is by default outputs/story
# of the repository. --short: a tiny model, for the test.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
text= folder= short=
while [ $# -gt 0 ]; do
  case $1 in
    --folder) folder=$(realpath -m "$2"); shift 2 ;;
    --short) short=yes; shift ;;
    -*) echo "story.sh: unknown option $1" >&2; exit 2 ;;
    *)
      [ -r "$1" ] || { echo "story.sh: $1 cannot be read" >&2; exit 1; }
      text=$(realpath "$1")
      shift
      ;;
  esac
done
cd "$(dirname "$0")/.."
folder=${folder:-outputs/story} ottava=${OTTAVA:-build/ottava}
[ -x "$ottava" ] || { echo "story.sh: $ottava does not exist: build it first (scripts/quickstart.sh)" >&2; exit 1; }
if [ -z "$text" ]; then
  text=outputs/sample/sample.txt
  scripts/sample_text.sh "$text"
fi
vocabulary=2304 conversations=4000 questions=400
pretraining=(--training.steps 120 --training.seq_len 512 --training.local_batch_size 8)
tuning=(--training.epochs 2 --training.seq_len 256 --training.local_batch_size 16)
if [ -n "$short" ]; then
  vocabulary=700 conversations=1600 questions=200
  tiny=(--model.dim 64 --model.n_layers 2 --model.n_heads 2 --model.n_kv_heads 2 --model.ffn_dim 128)
  pretraining=(--training.steps 60 --training.seq_len 128 --training.local_batch_size 8 "${tiny[@]}")
  tuning=(--training.epochs 4 --training.seq_len 128 --training.local_batch_size 4 "${tiny[@]}")
fi
made=("$folder/tokenizer" "$folder/base" "$folder/tuned" "$folder/questions")
for path in "${made[@]}"; do
  [ -e "$folder/.story" ] || [ ! -e "$path" ] ||
    { echo "story.sh: $path was there before, and $folder has no .story: choose another --folder, or remove it" >&2; exit 1; }
done
rm -rf "${made[@]}"
mkdir -p "$folder"
touch "$folder/.story"
say() { printf '\n== %s\n' "$*"; }

say "A tokenizer, with the special tokens that conversations need"
"$ottava" tokenizer train "$text" --output "$folder/tokenizer" --vocab-size $vocabulary --max-bytes 8000000 --special-tokens \
  '<|begin_of_text|>' '<|end_of_text|>' '<|start_header_id|>' '<|end_header_id|>' '<|eot_id|>'

say "Pretraining on the dictionary and, as every tenth token, on this project's documentation"
common=(--model.flavor debugmodel --model.hf_assets_path "$folder/tokenizer" --checkpoint.enable true --checkpoint.interval 1000
  --checkpoint.last_save_model_only true --activation_checkpoint.mode none --metrics.log_freq 20)
"$ottava" train "${common[@]}" --job.dump_folder "$folder/base" "${pretraining[@]}" --optimizer.lr 2e-3 --lr_scheduler.warmup_steps 12 \
  --training.mixture "[{name: dictionary, path: '${text//\'/\'\'}', weight: 0.9}, {name: documentation, path: ['*.md', '*/*.md', '*/*/*.md'], weight: 0.1}]"

say "Conversations and questions of the dictionary's entries"
python3 scripts/story/questions.py "$text" "$folder/questions" --conversations $conversations --questions $questions

say "What the base model knows"
evaluate() { "$ottava" eval "$1" --tasks "$folder/questions/asked.jsonl" "$folder/questions/plain.jsonl" --seq-len 256 --json "$2"; }
evaluate "$folder/base/checkpoint" "$folder/base.json"

say "Fine-tuning on conversations"
"$ottava" train "${common[@]}" --job.dump_folder "$folder/tuned" "${tuning[@]}" --optimizer.lr 1e-3 --lr_scheduler.warmup_steps 10 \
  --training.dataset_path "$folder/questions/chats.jsonl" --training.format messages --chat.template llama3 \
  --checkpoint.initial_load_path "$(ls -d "$folder"/base/checkpoint/step-*)"

say "What the fine-tuned model knows"
evaluate "$folder/tuned/checkpoint" "$folder/tuned.json"

say "A chat"
for question in "What part of speech is the word softly?" "And the word happiness: what part of speech is it?"; do
  echo "> $question"
  echo "$question" >&3
done 3> "$folder/chat.txt"
"$ottava" generate --chat --checkpoint "$folder/tuned/checkpoint" --temperature 0 --max-tokens 16 --context 256 < "$folder/chat.txt"

say "Has it learnt?"
python3 - "$folder/base.json" "$folder/tuned.json" <<'END'
import json, sys
base, tuned = ({task["name"]: task for task in json.load(open(path))} for path in sys.argv[1:])
# The base model may answer in whichever form suits it better.
best = max(base.values(), key=lambda task: task["acc"])
own = tuned["asked"]
error = (best["acc_stderr"] ** 2 + own["acc_stderr"] ** 2) ** 0.5
print(f"base {100 * best['acc']:.1f}%, fine-tuned {100 * own['acc']:.1f}%: {(own['acc'] - best['acc']) / error:.1f} standard errors")
sys.exit(0 if own["acc"] - best["acc"] > 3 * error else "story.sh: the fine-tuned model is not better by three standard errors")
END
cat <<END

Go on:
  $ottava generate --chat --checkpoint $folder/tuned/checkpoint        talk to it
  $ottava report $folder/base $folder/tuned --output $folder/story.html     how it learnt
END
