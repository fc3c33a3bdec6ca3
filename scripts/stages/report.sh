#!/usr/bin/env bash
# The pages of `ottava report` in headless Chromium (Debian's package, installed here): checks errors, requests and widths, and
# leaves pictures in outputs/report to be looked at.
#     scripts/stages/report.sh
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
scripts/install_dependencies.sh chromium fonts-dejavu-core
cmake --preset release >/dev/null
cmake --build build --target ottava
scripts/report_screenshots.py --ottava build/ottava --out outputs/report
