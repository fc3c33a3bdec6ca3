#!/usr/bin/env bash
# From a fresh machine to a model in training: installs what is missing, builds build/ottava, prepares a sample text,
# trains configs/debug.yaml on it (about two minutes on 2 cores) and says what to do next.
#   scripts/quickstart.sh [TEXT FILE] [-- --section.key value ...]
set -euo pipefail
cd "$(dirname "$0")/.."
text=()
if [ $# -gt 0 ] && [ "$1" != -- ]; then text=("$(realpath "$1")"); shift; fi
[ "${1:-}" != -- ] || shift

scripts/install_dependencies.sh
if [ ! -f build/build.ninja ]; then
  cuda=AUTO
  if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    cuda=OFF
    echo "This machine has no GPU: building without CUDA. To have it in the program all the same:" \
      "cmake --preset release -DOTTAVA_CUDA=ON, then cmake --build build"
  fi
  cmake --preset release -DOTTAVA_TESTS=OFF -DOTTAVA_CUDA=$cuda
fi
cmake --build build --target ottava
scripts/sample_text.sh outputs/sample/sample.txt "${text[@]}"
build/ottava train configs/debug.yaml "$@"
cat <<'END'

Next:
  build/ottava generate --checkpoint outputs/debug/checkpoint --prompt "A dog is"   what it has learnt
  build/ottava train configs/debug.yaml --training.steps 400            goes on from the checkpoint
  build/ottava config configs/debug.yaml --comments                     every setting, explained
  build/ottava launch -n 2 -- train configs/debug.yaml --job.dump_folder outputs/two   the same on two ranks
  build/ottava plan configs/llama3_8b.yaml --world-size 64 --training.device cuda   memory and traffic on 64 GPUs
END
