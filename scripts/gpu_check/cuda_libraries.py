"""Where pip put CUDA's libraries: the program searches the toolkit and some virtual environments itself
(core/cuda/shared_library.cpp); OTTAVA_CUDA_LIBRARIES names those that lie elsewhere."""

import ctypes
import glob
import os
import subprocess

NEEDED = ("libcublasLt.so.13", "libnccl.so.2", "libcudnn.so.9", "libcudart.so.13", "libnvrtc.so.13")


def found_by_loader(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def toolkit_folders(environment):
    home = environment.get("CUDA_HOME")
    return ([home + "/lib64"] if home else []) + ["/usr/local/cuda/lib64"]


def folders_of(python):
    """nvidia/*/lib of every place from which this python imports."""
    try:
        ask = subprocess.run([python, "-c", "import sys; print('\\n'.join(p for p in sys.path if p))"], capture_output=True, text=True,
                             timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [folder for place in ask.stdout.split("\n") if place for folder in sorted(glob.glob(f"{place}/nvidia/*/lib"))]


def missing_library_folders(python, environment=None, loader=found_by_loader, pip_folders=folders_of):
    """{"OTTAVA_CUDA_LIBRARIES": ...} with pip's folders of those libraries that are nowhere else; empty where it is set."""
    environment = os.environ if environment is None else environment
    if environment.get("OTTAVA_CUDA_LIBRARIES"):
        return {}
    missing = [name for name in NEEDED
               if not loader(name) and not any(os.path.exists(f"{folder}/{name}") for folder in toolkit_folders(environment))]
    found = []
    for folder in pip_folders(python) if missing else ():
        if folder not in found and any(os.path.exists(f"{folder}/{name}") for name in missing):
            found.append(folder)
    return {"OTTAVA_CUDA_LIBRARIES": ":".join(found)} if found else {}
