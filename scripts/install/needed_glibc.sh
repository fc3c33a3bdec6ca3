#!/usr/bin/env bash
# needed_glibc.sh PREFIX: the oldest C library (glibc) on which what is installed in PREFIX runs, such as 2.36: the newest
# version of a symbol that a program or library there asks for.
set -euo pipefail
shopt -s nullglob
for file in "$1"/bin/* "$1"/lib/ottava/*; do
  readelf --version-info --wide "$file"
done | sed -nE 's/.*Name: GLIBC_([0-9.]+) .*/\1/p' | sort -Vu | tail -1
