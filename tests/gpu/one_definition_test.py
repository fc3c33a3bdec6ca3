#!/usr/bin/env python3
"""The tests of all folders are one program on a GPU. Two variables of one name that headers of two folders define inline would
silently become one of them there.

    one_definition_test.py NM FILE    FILE: the program's object files, separated by semicolons
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

NM, OBJECTS = "", []  # of the command line


class OneDefinition(unittest.TestCase):
    def test_variables_have_one_size_everywhere(self):
        found = {}
        for path in OBJECTS:
            symbols = subprocess.run([NM, "--print-size", "--defined-only", path], capture_output=True, text=True, check=True).stdout
            for size, name in re.findall(r"^\w+ (\w+) [uV] (\S+)$", symbols, re.M):  # of many objects the linker takes one
                found.setdefault(name, {}).setdefault(int(size, 16), path)
        self.assertGreater(len(found), 20, "nm shows no variables")
        self.assertEqual({name: sizes for name, sizes in found.items() if len(sizes) > 1}, {})


if __name__ == "__main__":
    NM = sys.argv.pop(1)
    OBJECTS = [path for path in Path(sys.argv.pop(1)).read_text().split(";") if path.strip()]
    unittest.main()
