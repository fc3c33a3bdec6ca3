#!/usr/bin/env python3
"""The first training, with and without graphs."""

import unittest

import stand_ins  # finds the script's modules
import first_training
from check import Check, Failed, TimedOut, Training


class FirstTraining(unittest.TestCase):
    class Check:
        device, graphs_fault = "cuda", ""

        def __init__(self, *faults):
            self.faults = faults

        def seconds_left(self):
            return 30

        def train(self, name, device, steps, extra, seconds):
            fault = self.faults["off" in extra]
            if fault:
                raise fault
            return Training({1: 7.0}, {1: 1.0}, "")

    def test_later_runs_go_without_graphs_where_only_that_works(self):
        c = self.Check(Failed("exit code 1\n[graphs] the update cannot be recorded"), None)
        text, data = first_training.first_training(c)
        self.assertIn("cannot be recorded", c.graphs_fault)
        self.assertIn("work without CUDA graphs only", text)
        c = self.Check(None, None)
        first_training.first_training(c)
        self.assertEqual(c.graphs_fault, "")
        c = self.Check(TimedOut("not done after 18 s: ottava", "step 1"), Failed("exit code 1"))
        with self.assertRaisesRegex(Failed, "no training works here"):
            first_training.first_training(c)
        self.assertEqual(c.graphs_fault, "")

    def test_what_off_means_for_a_command(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        off = ["--training.cuda_graphs", "off"]
        self.assertNotIn("--training.cuda_graphs", c.train_command("x", "cuda", 1, []))
        c.graphs_fault = "broken"
        self.assertEqual(c.train_command("x", "cuda", 1, [])[-2:], off)
        self.assertNotIn("--training.cuda_graphs", c.train_command("x", "cpu", 1, []))
        self.assertEqual(c.train_command("x", "cuda", 1, ["--training.cuda_graphs", "on"]).count("--training.cuda_graphs"), 1)


if __name__ == "__main__":
    unittest.main()
