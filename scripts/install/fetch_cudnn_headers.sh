#!/usr/bin/env bash
# fetch_cudnn_headers.sh FOLDER: puts cudnn*.h and cudnn_frontend's headers into FOLDER/include, from the Python packages that
# cudnn_headers.txt pins by version and hash (some 400 MB are downloaded, and not kept). Needs python3 with pip.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "fetch_cudnn_headers.sh: expected a folder" >&2; exit 2; }
folder=$1
if [ -e "$folder/include/cudnn.h" ] && cmp -s "$here/cudnn_headers.txt" "$folder/fetched"; then exit 0; fi
rm -rf "$folder"
mkdir -p "$folder/wheels"
python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: --platform manylinux_2_27_x86_64 --python-version 3.11 \
  --dest "$folder/wheels" --requirement "$here/cudnn_headers.txt"
python3 - "$folder" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
for wheel in (folder / "wheels").glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, path = ("/" + name).partition("/include/")
            if not found or not path or name.endswith("/"):
                continue
            target = folder / "include" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
PYTHON
rm -rf "$folder/wheels"
for header in cudnn.h cudnn_frontend.h; do
  [ -e "$folder/include/$header" ] || { echo "fetch_cudnn_headers.sh: the packages hold no $header" >&2; exit 1; }
done
cp "$here/cudnn_headers.txt" "$folder/fetched"
