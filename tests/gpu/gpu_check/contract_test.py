#!/usr/bin/env python3
"""What cuBLASLt offers, layout by layout."""

import json
import unittest
from unittest import mock

from stand_ins import Bench
import contract
from check import Failed, TimedOut


class Contract(unittest.TestCase):
    QUESTION = {"types": "e4m3 x e4m3", "scales": "tensor", "result": "f32", "beta": 0, "fast_accumulation": False, "m": 96, "n": 64, "k": 160}

    def line(self, number, layout):
        return f"asking {number} {layout}\n" + json.dumps({**self.QUESTION, "layout": layout, "algorithms": 3}) + "\n"

    def test_a_fault_costs_one_question(self):
        c, commands = Bench([]), []

        def execute(command):
            commands.append(command[1:])
            if command[-1] == "0":
                return 1, self.line(0, "TN") + self.line(1, "NN") + "asking 2 TT of block scales\nan illegal memory access"
            return 0, self.line(3, "NT")
        c.execute = execute
        with self.assertRaisesRegex(Failed, "by the question: TT of block scales") as red:
            contract.contract(c)
        self.assertEqual(commands, [["--from", "0"], ["--from", "3"]])
        self.assertEqual([a["layout"] for a in red.exception.data["answers"]], ["TN", "NN", "NT"])
        self.assertIn("| e4m3 x e4m3 | tensor | f32 | 0 | False | 96 | 64 | 160 | 3 | 3 |  | 3 |", str(red.exception))

    def test_what_is_offered_and_then_not_run_is_said(self):
        answers = [{**self.QUESTION, "layout": layout, "algorithms": 3, "ran": ran} for layout, ran in (("TN", "success"), ("NN", "not supported"))]
        c = Bench([])
        c.execute = lambda command: (0, "\n".join(map(json.dumps, answers)))
        self.assertIn("| 160 | 3 | 3, but not supported |", contract.contract(c)[0])

    def test_one_that_does_not_start_or_end(self):
        c, runs = Bench([]), []
        c.execute = lambda command: runs.append(command) or (1, "no NVIDIA driver is loaded")
        with self.assertRaisesRegex(Failed, "no NVIDIA driver"):
            contract.contract(c)
        self.assertEqual(len(runs), 1)
        c.execute = lambda command: (0, "nothing of use")
        with self.assertRaisesRegex(Failed, "exit code 0"):
            contract.contract(c)
        c.execute = mock.Mock(side_effect=TimedOut("not done after 9 s: probe", self.line(0, "TN") + "asking 1 NN\n"))
        with self.assertRaisesRegex(Failed, r"not done after 9 s\) by the question: NN"):
            contract.contract(c)


if __name__ == "__main__":
    unittest.main()
