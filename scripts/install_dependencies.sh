#!/usr/bin/env bash
# Installs what building ottava needs from Debian's packages: only what is missing, with sudo where that is needed.
# With everything there it does nothing and needs no network. Other distributions: install the same libraries by hand;
# configuring lists each one that is missing.
#   scripts/install_dependencies.sh [PACKAGE...]    these packages too
#   scripts/install_dependencies.sh --list          prints the list and installs nothing
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac

packages=(g++ cmake ninja-build pkg-config ccache python3 dpkg-dev file
  libopenmpi-dev openmpi-bin libyaml-cpp-dev libtomlplusplus-dev libspdlog-dev libfmt-dev libcli11-dev
  iproute2 nlohmann-json3-dev libpcre2-dev libutf8proc-dev libdnnl-dev libxxhash-dev libzstd-dev zlib1g-dev libjs-dygraphs catch2)
if [ "${1:-}" = --list ]; then printf '%s\n' "${packages[@]}"; exit; fi

missing=()
for package in "${packages[@]}" "$@"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "These packages are missing (Debian names): ${missing[*]}" >&2
  echo "This system has no apt-get: install them with its own package manager, then run this script again or configure with cmake --preset release." >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "Installing ${missing[*]} needs root: run this script as root, or install sudo." >&2; exit 1; }
  as_root=(sudo)
fi
echo "Missing packages, which apt installs: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
unknown=()
for package in "${missing[@]}"; do apt-cache show "$package" >/dev/null 2>&1 || unknown+=("$package"); done
if [ ${#unknown[@]} -gt 0 ]; then
  printf -v list ', %s' "${unknown[@]}"
  if [ ${#unknown[@]} -eq ${#missing[@]} ] && ! apt-cache show libc6 >/dev/null 2>&1; then
    echo "install_dependencies.sh: apt's lists are empty (it could not fetch them: is there a network?), so nothing was installed." >&2
    exit 1
  fi
  echo "install_dependencies.sh: apt has no package ${list:2}, so nothing was installed: ottava builds on Debian 12 and 13 and on Ubuntu 24.04 and 26.04 (with universe), on other systems with these libraries installed by hand." >&2
  exit 1
fi
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
