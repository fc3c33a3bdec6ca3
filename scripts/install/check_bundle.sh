#!/usr/bin/env bash
# check_bundle.sh TARBALL: unpacks a bundle into a folder with a space in its name and checks that it needs nothing of the
# machine but a C library no newer than scripts/install/README.md says of bundles made here, and that it trains there, on one
# rank and on two. A bundle for another architecture runs under OTTAVA_EMULATOR.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "check_bundle.sh: $1" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/ottava bundle.XXXXXX")
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$1"
name=$(basename "$1" .tar.gz)
root=$work/$name

machine=$(readelf --file-header "$root/bin/ottava" | sed -nE 's/^ *Machine: *(.*)/\1/p')
case "${name##*-} $machine" in
  "x86_64 "*X86-64* | "aarch64 AArch64") ;;
  *) fail "$name holds a program for $machine" ;;
esac

needs=$("$here/needed_glibc.sh" "$root")
promised=$(sed -nE 's/.*\(glibc\) of ([0-9.]+) or newer.*/\1/p' "$here/README.md")
said=$(sed -n 's/^glibc //p' "$root/share/ottava/BUILD")
[ -n "$needs" ] || fail "no file asks for a version of glibc"
[ -n "$promised" ] || fail "README.md promises no version of glibc: has its form changed?"
[ "$needs" = "$said" ] || fail "BUILD says glibc $said, the files ask for $needs"
newest() { printf '%s\n' "$@" | sort -V | tail -1; }
if [ "$(newest "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" "$promised")" = "$promised" ]; then
  [ "$(newest "$needs" "$promised")" = "$promised" ] || fail "it needs glibc $needs, README.md promises $promised"
fi

needed=$(for file in "$root"/bin/* "$root"/lib/ottava/*; do readelf --dynamic --wide "$file"; done |
  sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | sort -u | grep -vE '^(ld-linux|lib(c|m|dl|rt|pthread))[.-]')
for library in $needed; do
  [ -e "$root/lib/ottava/$library" ] || fail "it lacks $library"
done

bytes=$(stat -c %s "$1")
[ "$bytes" -lt 60000000 ] || fail "it has $bytes bytes, more than 60 MB"
"$here/train_one_step.sh" "$root" launch
echo "$name: $((bytes / 1000000)).$((bytes / 100000 % 10)) MB, needs glibc $needs"
