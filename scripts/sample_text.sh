#!/usr/bin/env bash
# sample_text.sh OUTPUT: puts a text to train on at OUTPUT, where there is none. The GNU Collaborative International
# Dictionary of English (40 MB, Debian package dict-gcide) is unpacked without installing it; offline, whatever English
# text this machine has (licenses and documentation) is joined, and that is said.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
output=${1:?is missing: the file to put the text into}
mkdir -p "$(dirname "$output")"
[ ! -s "$output" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
if (cd "$work" && apt-get download dict-gcide >/dev/null 2>&1 && dpkg -x dict-gcide_*.deb .); then
  gzip -dc < "$work/usr/share/dictd/gcide.dict.dz" > "$output.part"
  echo "Sample text: the GNU Collaborative International Dictionary of English (package dict-gcide)"
else
  find /usr/share/common-licenses /usr/share/doc /usr/share/perl -type f \
    \( -name '*.txt' -o -name '*.pod' -o -name copyright -o -path '*common-licenses*' \) -print0 2>/dev/null |
    sort -z | xargs -0 cat > "$output.part" 2>/dev/null || true
  echo "Offline: the sample text consists of this machine's licenses and documentation ($(du -h "$output.part" | cut -f1))." \
    "The loss will be lower than in the README, because licenses repeat"
fi
[ -s "$output.part" ] || { echo "sample_text.sh: no text was found on this machine; create $output yourself" >&2; exit 1; }
mv "$output.part" "$output"
