#!/usr/bin/env bash
# From a fresh machine to a model in training: installs what is missing, builds build/ottava, prepares a sample text,
# trains configs/debug.yaml on it (about two minutes on 2 cores) and says what to do next. A text of your own takes the
# place of the sample, in a run of its own: outputs/quickstart/NAME of NAME.txt.
#   scripts/quickstart.sh [TEXT_FILE] [-- --section.key value ...]
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;;
  --) ;;
  -*) echo "quickstart.sh: '$1' is no text; options of the training come after --: scripts/quickstart.sh [TEXT_FILE] -- $*" >&2; exit 2 ;;
esac
text=''
if [ $# -gt 0 ] && [ "$1" != -- ]; then
  text=$(realpath "$1")
  [ -r "$text" ] || { echo "quickstart.sh: $text cannot be read" >&2; exit 1; }
  shift
fi
cd "$(dirname "$0")/.."
[ "${1:-}" != -- ] || shift
folder='' previous=''
for word in "$@"; do
  [ "$previous" != --job.dump_folder ] || folder=$word
  [[ $word != --job.dump_folder=* ]] || folder=${word#*=}
  previous=$word
done
own=()
if [ -n "$text" ]; then
  name=$(basename "$text") own=(--training.dataset_path "$text")
  # Commas would separate paths.
  [[ $text != *,* ]] || own[1]="['${text//\'/\'\'}']"
  stem=${name%.*}
  [ -n "$folder" ] || { folder=outputs/quickstart/${stem:-$name} && own+=(--job.dump_folder "$folder"); }
fi
folder=${folder:-outputs/debug}

scripts/install_dependencies.sh
if [ ! -f build/build.ninja ]; then
  cuda=AUTO
  if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    cuda=OFF
    echo "This machine has no GPU, so the build leaves out CUDA. To include it anyway:" \
      "cmake --preset release -DOTTAVA_CUDA=ON, then cmake --build build"
  fi
  cmake --preset release -DOTTAVA_TESTS=OFF -DOTTAVA_CUDA=$cuda
fi
cmake --build build --target ottava
[ -n "$text" ] || scripts/sample_text.sh outputs/sample/sample.txt
build/ottava train configs/debug.yaml "${own[@]}" "$@"
run="build/ottava train configs/debug.yaml$([ $# -eq 0 ] && [ ${#own[@]} -eq 0 ] || printf ' %q' "${own[@]}" "$@")"
cat <<END

Next:
  build/ottava generate --checkpoint $(printf %q "$folder")/checkpoint --prompt "A dog is"   # generates text
  $run --training.steps 400            # resumes from the checkpoint
  build/ottava config configs/debug.yaml --comments                     # explains every key
  build/ottava launch -n 2 -- ${run#build/ottava } --job.dump_folder $(printf %q "$folder")_two   # trains on two ranks
  build/ottava plan configs/llama3_8b.yaml --world-size 64 --training.device cuda   # predicts memory and traffic on 64 GPUs
END
