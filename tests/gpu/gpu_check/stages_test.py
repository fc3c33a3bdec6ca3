#!/usr/bin/env python3
"""Stages of a call: their time, and the report that each of them leaves."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from stand_ins import main
import same_bits
import speed


class Budget(unittest.TestCase):
    def test_all_stages_fit(self):
        self.assertLess(sum(seconds for _, seconds in main.STAGES), main.TOTAL)
        self.assertLess(main.TOTAL, 540)
        self.assertGreater(dict((s.__name__, t) for s, t in main.STAGES)["steps"], speed.TORCH_SECONDS)
        # Stages that are asked for by name share the time of all.
        self.assertEqual(main.budgets_of(["graphs", "attention"], 90), {"graphs": 40, "attention": 50})
        self.assertEqual(main.budgets_of(["graphs", "attention"], 9), {"graphs": 20, "attention": 25})
        # What a stage leaves over is the next one's.
        self.assertEqual(main.ends_of({"graphs": 20, "attention": 25}), {"graphs": 20, "attention": 45})

    def test_stages_of_a_call(self):
        names = [stage.__name__ for stage, _ in main.STAGES]
        self.assertEqual(main.stages_of(None, None), names)
        self.assertEqual(main.stages_of(None, "steps"), names[:-1])
        self.assertEqual(main.stages_of("steps", None), ["environment", "first_training", "steps"])  # which GPU, and whether graphs work there
        self.assertEqual(main.stages_of("kernels", "environment"), ["kernels"])
        self.assertEqual(main.stages_of("contract,environment", None), ["environment", "contract"])


class Reports(unittest.TestCase):
    """A whole call, of stages that do as they like."""

    def call(self, stages, *words):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        written = []
        real = main.report.write

        def write(path, *rest):
            real(path, *rest)
            written.append(json.loads(path.with_name(path.name + ".json").read_text()))
        argv = ["gpu_check", "--output", folder.name, "--programs", folder.name, *words]
        said = io.StringIO()
        with mock.patch.object(main, "STAGES", stages), mock.patch.object(main.report, "write", write), mock.patch.object(sys, "argv", argv), \
                mock.patch.object(main.signal, "signal"), contextlib.redirect_stdout(said):
            try:
                code = main.main()
            except BaseException as e:
                code = e
        return code, written, sorted(p.suffix for p in Path(folder.name).iterdir()), said.getvalue()

    @staticmethod
    def stage(name, result=("fine", {}), fault=None):
        def run(c):
            run.left = c.seconds_left()
            if fault:
                raise fault
            return result
        run.__name__ = name
        return run

    def test_there_is_a_report_after_each_stage(self):
        stages = [(self.stage("one"), 100), (self.stage("two", fault=ValueError("odd")), 100), (self.stage("three", fault=KeyboardInterrupt()), 100)]
        code, written, kinds, _ = self.call(stages)
        self.assertIsInstance(code, KeyboardInterrupt)
        self.assertEqual([len(w["stages"]) for w in written], [0, 1, 2, 2])
        self.assertEqual(written[-1]["stages"][1]["report"], "odd")
        self.assertEqual(kinds, [".gz", ".json", ".md"])

    def test_what_a_stage_has_measured_is_in_the_report_however_the_call_ends(self):
        def steps(c):
            c.so_far("a row", {"ottava": []})
            c.so_far("two rows", {"ottava": []})
            raise KeyboardInterrupt
        code, written, _, _ = self.call([(self.stage("one"), 100), (steps, 100), (self.stage("three"), 100)])
        self.assertIsInstance(code, KeyboardInterrupt)
        self.assertEqual([[s["status"] for s in w["stages"]] for w in written],
                         [[], ["ok"], ["ok", "under way"], ["ok", "under way"], ["ok", "under way"]])
        self.assertEqual([w["stages"][1]["report"] for w in written[2:]], ["a row", "two rows", "two rows"])
        self.assertEqual({w["under_way"] for w in written[2:]}, {"steps"})
        # Of a stage that ends nothing is left but its end.
        def ends(c):
            c.so_far("half", {})
            return "all", {}
        code, written, _, _ = self.call([(ends, 100), (self.stage("two"), 100)])
        self.assertEqual([s["report"] for s in written[-1]["stages"]], ["all", "fine"])
        self.assertEqual(written[-1]["under_way"], "")

    def test_a_relative_output_is_the_callers(self):
        with tempfile.TemporaryDirectory() as caller:
            code, written, kinds, said = self.call([(self.stage("one"), 100)], "--output", "mine", "--caller", caller)
            self.assertEqual((code, kinds), (0, []))
            self.assertIn(f"{caller}/mine/gpu_check_", said)
            self.assertEqual(sorted(p.suffix for p in Path(caller, "mine").iterdir()), [".gz", ".json", ".md"])
            self.assertIn("`scripts/gpu_check.sh --output", next(Path(caller, "mine").glob("*.md")).read_text())
            self.assertNotIn("--caller", next(Path(caller, "mine").glob("*.md")).read_text())

    def test_time_that_is_left_over_is_the_next_ones(self):
        stages = [(self.stage("one"), 100), (self.stage("two"), 100)]
        code, written, _, _ = self.call(stages, "--seconds", "200")
        self.assertEqual(code, 0)
        self.assertGreater(stages[1][0].left, 190)
        # But not of one that would fill it where steps follow: these have it then.
        stages = [(self.stage(name), 100) for name in ("one", "sanitizer", "steps")]
        self.call(stages, "--seconds", "300")
        self.assertLessEqual(stages[1][0].left, 100)
        self.assertGreater(stages[2][0].left, 290)
        self.call(stages[:2], "--seconds", "200")
        self.assertGreater(stages[1][0].left, 190)

    def test_data_that_no_goal_can_be_made_of_costs_no_report(self):
        kernels = self.stage("kernels", ("text", {"kernels": [{"no": "bound"}]}))
        code, written, _, said = self.call([(kernels, 100), (self.stage("steps", ("text", {"ottava": 3})), 100)])
        self.assertEqual(code, 0)
        self.assertEqual([g["verdict"] for g in written[-1]["goals"]], ["not measured", "not measured"])
        self.assertIn("2 of 2 stages ok", said)

    def test_graphs_that_do_not_work_are_red_where_nobody_asked(self):
        def first_training_(c):
            c.graphs_fault = "[graphs] cannot be recorded"
            return "without", {}
        first_training_.__name__ = "first_training"
        stages = [(first_training_, 100), (same_bits.graphs, 10), (self.stage("contract"), 100)]
        with mock.patch.object(main, "first_training", first_training_):
            code, written, _, _ = self.call(stages, "--only", "first_training,contract")
        self.assertEqual(code, 1)
        self.assertEqual([(s["stage"], s["status"]) for s in written[-1]["stages"]],
                         [("first_training", "ok"), ("graphs", "FAILED"), ("contract", "ok")])


if __name__ == "__main__":
    unittest.main()
