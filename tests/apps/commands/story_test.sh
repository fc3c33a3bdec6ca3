#!/usr/bin/env bash
# story_test.sh OTTAVA: scripts/story.sh, shortened, on a dictionary of made-up words.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
python3 -B scripts/story/small_dictionary.py "$work/it's, a dictionary.txt"
# Folders of the user's are not replaced.
mkdir -p "$work/mine/base"
if OTTAVA=$program scripts/story.sh "$work/it's, a dictionary.txt" --folder "$work/mine" --short 2>"$work/problem"; then
  echo "a folder that no story made was replaced"; exit 1
fi
grep -q "mine/base was there before" "$work/problem"
[ -e "$work/mine/base" ]
# The text and the folder are those that lie where the user stands.
repository=$PWD
(cd "$work" && OTTAVA=$program "$repository/scripts/story.sh" "it's, a dictionary.txt" --folder story --short) | tee "$work/out"
[ -e "$work/story/tuned.json" ] || { echo "the story was not written into its folder"; exit 1; }
grep -q "standard errors" "$work/out"
# A text that is no dictionary is refused before anything is trained for long.
if python3 -B scripts/story/questions.py README.md "$work/none" 2>"$work/problem"; then echo "README.md passes for a dictionary"; exit 1; fi
grep -q "it is no dictionary in the form of GCIDE" "$work/problem"
