#!/usr/bin/env bash
# What users get, on machines that have nothing else: in a new root of this machine's release the TGZ of build/ trains where an
# ordinary user unpacks it, then the DEB is installed with apt and trains as that user, one rank and two, over TCP and MPI. On
# the release before, whose C library is older than the promised one, the loader must say so. Needs root.
#     scripts/stages/package.sh [BUILD FOLDER]
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
source scripts/stages/debian_root.sh
need_root
scripts/install_dependencies.sh mmdebstrap
build=${1:-build}
roots=$(mktemp -d)
trap 'rm -rf "$roots"' EXIT
cpack --config "$build/CPackConfig.cmake" -B "$roots/packages" -G "TGZ;DEB" >"$roots/cpack.log" || { cat "$roots/cpack.log"; exit 1; }
tarball=$(echo "$roots"/packages/ottava-*.tar.gz)
deb=$(echo "$roots"/packages/ottava_*.deb)

# unpacked NAME: the home of an ordinary user with the unpacked bundle and the script that trains.
unpacked() {
  user_in "$1" user
  tar -C "$roots/$1/home/user" -xzf "$tarball"
  cp scripts/install/train_one_step.sh "$roots/$1/home/user/"
  chown -R --reference="$roots/$1/home/user" "$roots/$1/home/user"
}
bundle=/home/user/$(basename "$tarball" .tar.gz)

debian_root clean "$(. /etc/os-release && echo "$VERSION_CODENAME")" --variant=minbase
unpacked clean
in_root clean user ./train_one_step.sh "$bundle" launch
echo "== package: $(basename "$tarball") trains in a root of $(. /etc/os-release && echo "$PRETTY_NAME") without further packages"
rm -rf "$roots/clean$bundle"
cp "$deb" "$roots/clean/tmp/"
in_root clean root bash -ec 'export DEBIAN_FRONTEND=noninteractive; apt-get update; apt-get install -y /tmp/*.deb; rm /tmp/*.deb' \
  >"$roots/apt.log" 2>&1 || { cat "$roots/apt.log"; exit 1; }
in_root clean user ./train_one_step.sh /usr launch mpirun
echo "== package: $(basename "$deb") trains there as an ordinary user"

debian_root before bullseye --variant=minbase
unpacked before
if said=$(in_root before user "$bundle/bin/ottava" --version 2>&1); then
  echo "package.sh: the bundle runs on Debian 11: scripts/install/README.md promises less than is so" >&2
  exit 1
fi
grep -q "GLIBC_.* not found" <<<"$said" || { echo "package.sh: on Debian 11 the bundle says: $said" >&2; exit 1; }
echo "== package: Debian 11 refuses it: $(grep -o "version .GLIBC_[0-9.]*. not found" <<<"$said" | sort -Vu | tail -1)"
