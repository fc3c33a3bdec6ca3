#!/usr/bin/env bash
# Builds HEAD on Ubuntu 24.04 (oneDNN 3.1, Catch2 3.4, GCC 13) and on 26.04 (oneDNN 3.9, Catch2 3.7, GCC 15, CMake 4), and runs all
# its tests there as an ordinary user, in roots of these systems (build-roots/noble, build-roots/resolute). Needs root.
#     scripts/stages/ubuntu.sh [ctest options]
#     OTTAVA_UBUNTU_SUITES=resolute scripts/stages/ubuntu.sh      only this one
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
source scripts/stages/debian_root.sh
need_root
scripts/install_dependencies.sh mmdebstrap curl ca-certificates
archive=${OTTAVA_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

# The keys by which packages are signed, of Ubuntu's own package of them, which Debian has not.
keys=$roots/ubuntu-keyring
if [ ! -d "$keys" ]; then
  package=$(mktemp)
  trap 'rm -f "$package"' EXIT
  curl --fail --silent --show-error --output "$package" "$archive/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
  sha256sum --check --quiet <<<"36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $package"
  mkdir -p "$roots"
  dpkg-deb --extract "$package" "$keys"
fi
for suite in ${OTTAVA_UBUNTU_SUITES:-noble resolute}; do
  mirror="deb [signed-by=$keys/usr/share/keyrings/ubuntu-archive-keyring.gpg] $archive $suite main universe"
  debian_root "$suite" "$suite" --variant=minbase --include="$(scripts/install_dependencies.sh --list | paste -sd,)"
  build_and_test "$suite" "$@"
done
