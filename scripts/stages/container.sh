#!/usr/bin/env bash
# Builds scripts/Containerfile from HEAD with buildah, on a base image of this machine's release that mmdebstrap makes (no
# registry is asked), and trains a step in the image. This machine's ccache, where it has one, serves the compiler there. Needs
# root.
#     scripts/stages/container.sh [BASE IMAGE]
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
source scripts/stages/debian_root.sh
need_root
scripts/install_dependencies.sh mmdebstrap buildah
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}  # as work without a kernel's overlays and namespaces
base=${1:-localhost/ottava-base}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -eq 0 ]; then
  debian_root base.tar "$(. /etc/os-release && echo "$VERSION_CODENAME")" --variant=minbase
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$roots/base.tar" /
  buildah commit --quiet --rm "$container" "$base"
fi
git archive --prefix=source/ HEAD | tar -x -C "$work"
cache=()
if command -v ccache >/dev/null; then cache=(--volume "$(ccache --get-config cache_dir):/root/.cache/ccache"); fi
buildah build "${cache[@]}" --file "$work/source/scripts/Containerfile" --build-arg BASE="$base" --tag localhost/ottava "$work/source"
container=$(buildah from localhost/ottava)
buildah run --user ottava "$container" -- bash -s /usr launch mpirun <scripts/install/train_one_step.sh
buildah rm "$container" >/dev/null
echo "== container: localhost/ottava trains: $(buildah images --format '{{.Size}}' localhost/ottava)"
