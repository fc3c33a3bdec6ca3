#!/usr/bin/env bash
# scripts/quickstart.sh with a text: the sample stays what it is, the run has a folder of its own, and what it says to do
# next is about that run. Building, installing and training are stood in for by scripts that note how they were called.
set -euo pipefail
scripts=$(cd "$(dirname "$0")/../../scripts" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p scripts bin build outputs/sample
cp "$scripts/quickstart.sh" "$scripts/sample_text.sh" scripts/
touch build/build.ninja
printf '#!/bin/sh\n' | tee scripts/install_dependencies.sh bin/cmake >/dev/null
printf '#!/bin/sh\necho "$@" >> called\n' > build/ottava
chmod +x scripts/*.sh bin/cmake build/ottava
echo sample > outputs/sample/sample.txt
echo 'my own words' > 'my text.txt'
fails() { echo "quickstart_test: $*" >&2; exit 1; }
quickstart() {
  rm -f called
  PATH=$work/bin:$PATH scripts/quickstart.sh "$@" > said
  [ "$(cat outputs/sample/sample.txt)" = sample ] || fails "the sample was replaced"
}
said() { grep -qF -- "$1" said || fails "expected '$1', got: $(cat said)"; }

quickstart
[ "$(cat called)" = 'train configs/debug.yaml' ] || fails "$(cat called)"
said 'generate --checkpoint outputs/debug/checkpoint'
said 'build/ottava train configs/debug.yaml --training.steps 400'

quickstart 'my text.txt'
[ "$(cat called)" = "train configs/debug.yaml --training.dataset_path $work/my text.txt --job.dump_folder outputs/quickstart/my text" ] ||
  fails "$(cat called)"
said 'generate --checkpoint outputs/quickstart/my\ text/checkpoint'
said "train configs/debug.yaml --training.dataset_path $work/my\\ text.txt --job.dump_folder outputs/quickstart/my\\ text --training.steps 400"

# Names that differ only behind their first dot are other texts.
for name in book.1.txt book.2.txt .hidden; do
  echo 'my own words' > "$name"
  quickstart "$name"
  [[ $(cat called) = *" --job.dump_folder outputs/quickstart/${name%.txt}" ]] || fails "$name: $(cat called)"
done

quickstart 'my text.txt' -- --job.dump_folder outputs/mine --training.steps 3
said 'generate --checkpoint outputs/mine/checkpoint'
said 'train configs/debug.yaml --training.dataset_path'
said '--job.dump_folder outputs/mine --training.steps 3 --job.dump_folder outputs/mine_two'

quickstart 'my text.txt' -- --job.dump_folder=outputs/mine
said 'generate --checkpoint outputs/mine/checkpoint'

# A text lies where the user stands.
mkdir elsewhere
echo 'my own words' > 'elsewhere/my text.txt'
rm called
(cd elsewhere && PATH=$work/bin:$PATH ../scripts/quickstart.sh 'my text.txt') > said
[[ $(cat called) = *"--training.dataset_path $work/elsewhere/my text.txt "* ]] || fails "from elsewhere: $(cat called)"

# Its commas separate no paths.
echo 'my own words' > "it's, a text.txt"
quickstart "it's, a text.txt"
[[ $(cat called) = *"--training.dataset_path ['$work/it''s, a text.txt'] "* ]] || fails "$(cat called)"

# Options come after --, and asking for help builds nothing.
rm called
if scripts/quickstart.sh --training.steps 3 2> said; then fails "an option was taken for a text"; fi
said "'--training.steps' is no text; options of the training come after --: scripts/quickstart.sh [TEXT_FILE] -- --training.steps 3"
scripts/quickstart.sh --help > said
said 'scripts/quickstart.sh [TEXT_FILE] [-- --section.key value ...]'
[ ! -e called ] || fails "$(cat called)"
