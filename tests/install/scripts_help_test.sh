#!/usr/bin/env bash
# Every script of scripts/ and scripts/stages/ says with --help what it does and how it is called, and does nothing else. What
# builds, installs or trains is stood in for by a script that notes that it was called.
set -euo pipefail
scripts=$(cd "$(dirname "$0")/../../scripts" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp -r "$scripts" scripts
mkdir bin
for program in cmake apt-get dpkg-query sudo nvcc; do printf '#!/bin/sh\necho "$0 $*" >> %s/called\nexit 1\n' "$work" > bin/$program; done
chmod +x bin/*
fails() { echo "scripts_help_test: $*: $(cat said)" >&2; exit 1; }
for script in scripts/*.sh scripts/stages/*.sh; do
  [ -x "$script" ] || continue  # it is only sourced
  PATH=$work/bin:$PATH "$script" --help > said 2>&1 || fails "$script --help failed"
  grep -qE "(scripts/|stages/|^)$(basename "$script")( |$)" said || fails "$script --help does not say how it is called"
done
if PATH=$work/bin:$PATH scripts/results.sh --steps 3 2> said; then fails "results.sh took --steps"; fi
grep -qF "results.sh: '--steps' is no text" said || fails "results.sh --steps"
[ "$(echo *)" = 'bin said scripts' ] || fails "--help left something behind: $(cat called 2>/dev/null || echo *)"
