#!/usr/bin/env python3
"""The clocks and watts of a busy GPU."""

import time
import unittest

from stand_ins import Bench
import gpu_clocks
import shapes
from check import Check


class Clocks(unittest.TestCase):
    def test_only_what_a_busy_gpu_says_counts(self):
        text = "345, 75.2\n1980, 690.1\n1755, 698.0\n1740, 699.5\n[N/A], [N/A]\n1980, 200.0\n17"
        self.assertEqual(gpu_clocks.read_clocks(text), {"sm_mhz": 1755, "watts": 698.0})
        self.assertEqual(gpu_clocks.read_clocks("No devices were found\n"), {})

    def test_it_is_asked_while_a_program_runs_and_ends_with_it(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        c.dry, start, said = False, c.start, []

        def stand_in(command, file):
            said.extend(command)
            before = command[:command.index("nvidia-smi")]
            return start([*before, "sh", "-c", "(echo 1700, 650.0; sleep 60) | grep ,"], file)  # grep fills a buffer before it writes a file
        c.start = stand_in
        with gpu_clocks.watched_clocks(c) as clocks:
            self.assertEqual((len(c.running), clocks), (1, {}))
            until = time.monotonic() + 20
            while not (c.work / "clocks.csv").read_text() and time.monotonic() < until:
                time.sleep(0.01)
        self.assertEqual((c.running, clocks), (set(), {"sm_mhz": 1700, "watts": 650}))
        self.assertEqual(said[said.index("nvidia-smi"):][:3], ["nvidia-smi", "-i", "0"])
        with gpu_clocks.watched_clocks(Bench([])) as clocks:
            pass
        self.assertEqual(clocks, {})  # where it cannot be started

    def test_fp8_comes_right_after_bf16(self):
        for gib in (140, 80):
            ours = shapes.benchmark_of(gib).ours
            for i, (shape, precision) in enumerate(ours):
                if precision == "fp8":
                    self.assertEqual(ours[i - 1], (shape, "bf16"))


if __name__ == "__main__":
    unittest.main()
