#!/usr/bin/env python3
"""Where NVIDIA's libraries are looked for."""

import unittest
from pathlib import Path

import stand_ins  # finds the script's modules
import cuda_libraries


class Libraries(unittest.TestCase):
    def test_pip_is_asked_for_what_is_nowhere_else(self):
        folders = lambda python: [str(Path(__file__).parent)]
        needed, cuda_libraries.NEEDED = cuda_libraries.NEEDED, (Path(__file__).name,)
        self.addCleanup(setattr, cuda_libraries, "NEEDED", needed)
        find = lambda environment, found: cuda_libraries.missing_library_folders("python3", environment, lambda name: found, folders)
        self.assertEqual(find({}, False), {"OTTAVA_CUDA_LIBRARIES": str(Path(__file__).parent)})
        self.assertEqual(find({}, True), {})
        self.assertEqual(find({"OTTAVA_CUDA_LIBRARIES": "/opt/own"}, False), {})
        self.assertEqual(cuda_libraries.folders_of("no such python"), [])


if __name__ == "__main__":
    unittest.main()
