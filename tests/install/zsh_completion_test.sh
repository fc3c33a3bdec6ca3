#!/usr/bin/env bash
# zsh_completion_test.sh BUILD: the completion for zsh answers as the one for bash does. Skipped (77) without zsh.
set -euo pipefail
if ! command -v zsh >/dev/null; then
  [ -z "${OTTAVA_TEST_CASES:-}" ] || printf 'skipped\tzsh_completion_test\tzsh was not found\n' >>"$OTTAVA_TEST_CASES"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -B "$(dirname "$0")/../../scripts/install/make_texts.py" "$work/texts" "$1/ottava"
cat >"$work/ask" <<'ZSH'
compdef() { :; }
_describe() { print -l -- ${(P)@[-1]}; }
compadd() { shift; print -l -- $@; }
_files() { print files; }
source $1
shift
words=("$@") CURRENT=$#
_ottava
ZSH
expect() {  # WORDS... = A LINE OF THE ANSWER
  local words=()
  while [ "$1" != = ]; do words+=("$1"); shift; done
  local answer
  answer=$(zsh -f "$work/ask" "$work/texts/_ottava" "${words[@]}")
  grep -qxe "$2" <<<"$answer" || { echo "zsh_completion_test.sh: '${words[*]}' gives: $answer; expected a line $2" >&2; exit 1; }
}
expect ottava "" = "train:train a model.*"
expect ottava tokenizer "" = "encode:convert text to token ids"
expect ottava bench kernels --on = "--only:measure only operations whose name matches this glob.*"
expect ottava train --training.lo = "--training.local_batch_size:.*"
expect ottava plan --activation_checkpoint.mode "" = selective
expect ottava train "" = files
