#!/usr/bin/env bash
# scripts/install_dependencies.sh installs what is missing, and where apt does not have all of it, nothing: one sentence says so.
# Scripts stand in for apt and note how they were called.
set -euo pipefail
script=$(cd "$(dirname "$0")/../../scripts" && pwd)/install_dependencies.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir bin
printf '#!/bin/sh\ncase "$*" in *" cmake") echo installed ;; *) exit 1 ;; esac\n' > bin/dpkg-query
printf '#!/bin/sh\necho "$*" >> %s/called\n' "$work" > bin/apt-get
printf '#!/bin/sh\n[ "$1" = show ] && ! grep -qxF -- "$2" %s/unknown\n' "$work" > bin/apt-cache
printf '#!/bin/sh\nexec "$@"\n' > bin/sudo
chmod +x bin/*
fails() { echo "install_dependencies_test: $*" >&2; exit 1; }
export PATH=$work/bin:$PATH

: > unknown
"$script" chromium > said 2>&1 || fails "failed: $(cat said)"
[[ $(tail -1 called) = "install "*" g++ "*" libjs-dygraphs catch2 chromium" ]] || fails "called: $(cat called)"
grep -q ' cmake ' called && fails "what is there was installed: $(cat called)"

rm called
printf 'libtomlplusplus-dev\nlibjs-dygraphs\n' > unknown
if "$script" > said 2>&1; then fails "packages that apt does not have were installed: $(cat called)"; fi
grep -qF 'apt has no package libtomlplusplus-dev, libjs-dygraphs, so nothing was installed: ottava builds on Debian 12' said ||
  fails "said: $(cat said)"
[ "$(cat called)" = 'update -qq' ] || fails "called: $(cat called)"
[ "$(wc -l < said)" = 2 ] || fails "said: $(cat said)"

printf 'libc6\n' > unknown
"$script" --list >> unknown
if "$script" > said 2>&1; then fails "without apt's lists it passed: $(cat said)"; fi
grep -qF "apt's lists are empty" said || fails "without apt's lists it said: $(cat said)"
