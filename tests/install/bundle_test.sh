#!/usr/bin/env bash
# bundle_test.sh: bundle.sh --cudnn-headers hands the headers of the folder given to the build, and --fetch-cudnn those of the
# packages that are pinned and no others. Two packages of one header each stand for cuDNN's, in a folder that pip takes for its
# index; cmake is a script that notes its arguments. Skipped (77) after --cudnn-headers without pip.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(realpath "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT
fail() { echo "bundle_test.sh: $1" >&2; exit 1; }
mkdir -p "$work"/{tree/scripts,index,bin}
cp -r "$source/scripts/bundle.sh" "$source/scripts/install" "$work/tree/scripts"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$work/index PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1
for tool in cmake nvcc; do
  printf '#!/bin/sh\necho "$0" "$@" >>"%s/called"\necho "%s stands in"; exit 1\n' "$work" $tool >"$work/bin/$tool"
  chmod +x "$work/bin/$tool"
done
PATH=$work/bin:$PATH

# bundle.sh from where the caller is; cmake fails, if nothing fails before it.
bundle() { rm -f "$work/called"; if "$work/tree/scripts/bundle.sh" "$@" >"$work/log" 2>&1; then fail "'$*' ended well"; fi; }
# refused TEXT WORD...: says the text, and configures nothing.
refused() {
  local says=$1
  shift
  bundle "$@"
  grep -qF -- "$says" "$work/log" || fail "'$*' was not refused with '$says': $(cat "$work/log")"
  [ ! -e "$work/called" ] || fail "configured in spite of '$*': $(cat "$work/called")"
}
# The folder whose headers cmake was given.
handed() {
  grep -qF -- " -DCUDNN_INCLUDE=$1 -DCUDNN_FRONTEND_INCLUDE=$1" "$work/called" ||
    fail "the headers of $1 did not reach cmake: $(cat "$work/log" "$work/called")"
}

mkdir -p "$work"/{caller/given,tree/given}
cd "$work/caller"
touch "$work"/tree/given/{cudnn,cudnn_frontend}.h  # of the caller's folder is meant
for header in cudnn.h cudnn_frontend.h; do
  refused "$work/caller/given has no $header" --cudnn-headers given
  touch "given/$header"
done
bundle --cudnn-headers given
handed "$work/caller/given"
bundle --cudnn-headers "$work/tree/given"
handed "$work/tree/given"
refused "$work/caller/nowhere has no cudnn.h" --cudnn-headers nowhere
for words in "--cudnn-headers" "--cudnn-headers given --cpu" "--cpu --fetch-cudnn"; do
  refused "bundle.sh: '$words' is unknown" $words
done
refused "bundle.sh: '--cudnn-headers ' is unknown" --cudnn-headers ""
bundle
if grep -q CUDNN_INCLUDE "$work/called"; then fail "headers that nobody asked for: $(cat "$work/called")"; fi

if ! python3 -m pip --version >/dev/null 2>&1; then
  [ -z "${OTTAVA_TEST_CASES:-}" ] || printf 'skipped\tbundle_test --fetch-cudnn\tpython3 has no pip\n' >>"$OTTAVA_TEST_CASES"
  exit 77
fi
cd "$work/tree"
python3 - "$work/index" scripts/install/cudnn_headers.txt <<'PYTHON'
import hashlib, pathlib, re, sys, zipfile
index, pins = map(pathlib.Path, sys.argv[1:])
assert len(re.findall(r"^nvidia-[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}$", pins.read_text(), re.M)) == 2
lines = []
for name, header in (("nvidia_cudnn_cu13", "nvidia/cudnn/include/cudnn.h"), ("nvidia_cudnn_frontend", "include/cudnn_frontend.h")):
    wheel = index / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(header, "// stands in\n")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    lines.append(f"{name.replace('_', '-')}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
pins.write_text("".join(lines))
PYTHON

bundle --fetch-cudnn
handed "$work/tree/build-bundle-cudnn/include"

# A package with other contents than the pinned one, whichever of the two it is, is refused before anything is configured, and
# nothing is kept.
for package in cudnn_cu13 cudnn_frontend; do
  wheel=$work/index/nvidia_$package-1.0-py3-none-any.whl
  cp "$wheel" "$work/right"
  printf ' ' >>"$wheel"
  echo "# $package" >>scripts/install/cudnn_headers.txt  # other pins than those that were fetched last
  refused "DO NOT MATCH THE HASHES" --fetch-cudnn
  [ ! -e build-bundle-cudnn/include ] || fail "headers of another $package were kept"
  cp "$work/right" "$wheel"
done
bundle --fetch-cudnn
[ -e "$work/called" ] || fail "the pinned packages were not taken after that: $(cat "$work/log")"
