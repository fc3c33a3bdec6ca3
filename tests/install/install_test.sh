#!/usr/bin/env bash
# install_test.sh BUILD: what `cmake --install` and cpack make of a build: it trains from another folder, one rank and two;
# completion knows the command line and the keys; the man page has them; the TGZ needs nothing of this machine but its C library.
set -euo pipefail
build=$(realpath "$1")
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install_test.sh: $1" >&2; exit 1; }
prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log"; fail "cmake --install failed"; }

cd "$work"
launchers=(launch)
if [ -e "$prefix/lib/ottava/libottava_mpi.so" ]; then launchers+=(mpirun); fi
"$source/scripts/install/train_one_step.sh" "$prefix" "${launchers[@]}"
PATH=$prefix/bin:$PATH
ottava config configs/llama_60m.yaml >/dev/null
ottava tokenizer encode configs/tokenizers/en-2560 "a dog" >/dev/null
ottava init "$source/configs/keys.md" --tokenizer configs/tokenizers/en-2560 --output first >/dev/null
ottava plan configs/debug.yaml --world-size 2 >/dev/null
if ottava train configs/debug.yaml --training.dataset_path none.txt 2>message; then fail "a text that is not there was accepted"; fi
grep -q "none.txt' does not exist; looked at $work/none.txt and $prefix/share/ottava/configs/none.txt and $prefix/share/ottava/none.txt" message ||
  fail "the places where a text was looked for are not named: $(cat message)"
if grep -rn build/ottava "$prefix/share"; then fail "an installed text names the build folder"; fi

# Completion for bash, word by word.
source "$prefix/share/bash-completion/completions/ottava"
expect() {  # WORDS... = WHAT MUST BE AMONG THE ANSWERS
  COMP_WORDS=()
  while [ "$1" != = ]; do COMP_WORDS+=("$1"); shift; done
  shift
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _ottava || true  # compgen fails where nothing fits
  for word in "$@"; do
    case " ${COMPREPLY[*]} " in *" $word "*) ;; *) fail "completion of '${COMP_WORDS[*]}' is '${COMPREPLY[*]}', expected $word" ;; esac
  done
}
commands=$(ottava --help | sed -nE '/^subcommands:/I,$ s/^  ([a-z]+) .*/\1/p')
[ -n "$commands" ] || fail "ottava --help lists no subcommands"
expect ottava "" = $commands
expect ottava tokenizer tr = train
expect ottava bench kernels --on = --only
expect ottava train --training.lo = --training.local_batch_size
expect ottava bench train --st = --steps
expect ottava train configs/debug.yaml --quantize.linear.float8.rec = --quantize.linear.float8.recipe_name
expect ottava plan --activation_checkpoint.mode "" = none selective full
expect ottava train --checkpoint.enable "" = true false
COMP_WORDS=(ottava generate --training) COMP_CWORD=2 COMPREPLY=()
_ottava || true
[ ${#COMPREPLY[@]} = 0 ] || fail "a command without keys completes ${COMPREPLY[*]}"

gzip -dc "$prefix/share/man/man1/ottava.1.gz" >ottava.1
for text in '\-\-world\-size' '.SS ottava tokenizer train' 'training.local_batch_size' 'ottava \\- trains'; do
  grep -qe "${text//\\-/\\\\-}" ottava.1 || fail "the man page lacks $text"
done
if command -v groff >/dev/null; then
  complaints=$(groff -man -Tutf8 -wall ottava.1 2>&1 >/dev/null)
  [ -z "$complaints" ] || fail "the man page is not clean: $complaints"
fi

cpack --config "$build/CPackConfig.cmake" -B "$work/packages" -G "TGZ;DEB" >cpack.log 2>&1 || { cat cpack.log; fail "cpack failed"; }
TMPDIR=$work "$source/scripts/install/check_bundle.sh" "$work"/packages/ottava-*-linux-"$(uname -m)".tar.gz
deb=$(echo "$work"/packages/ottava_*_"$(dpkg --print-architecture)".deb)
about=$(dpkg-deb --info "$deb")
for text in "Depends: .*libc6" "Depends: .*libdnnl" "Recommends: openmpi-bin"; do
  grep -q "$text" <<<"$about" || fail "the Debian package lacks $text: $about"
done
contents=$(dpkg-deb --contents "$deb")
for file in ./usr/bin/ottava ./usr/share/man/man1/ottava.1.gz ./usr/share/zsh/vendor-completions/_ottava ./usr/share/ottava/configs/debug.yaml; do
  grep -q " $file\$" <<<"$contents" || fail "the Debian package lacks $file"
done
if grep "libdnnl" <<<"$contents"; then fail "the Debian package has libraries of Debian"; fi
