#!/usr/bin/env python3
"""Operations by themselves, and their table."""

import contextlib
import io
import time
import unittest
from unittest import mock

from stand_ins import Bench, main
import goals
import speed
from check import Failed, NotMeasured, TimedOut


class Kernels(unittest.TestCase):
    def test_what_was_measured_outlives_a_recipe_that_ends_in_an_error_or_late(self):
        one = lambda name: {"name": name, "operands": "", "bound": "gemm", "bytes": 1, "flops": 1, "calls": 1, "seconds": 1e-3, "share_of_peak": 0.5}

        def step_kernels(_, what, seconds):
            if what == "tensorwise":
                raise Failed("exit code 1\nno algorithm")
            if what == "blockwise":
                raise TimedOut("not done after 9 s: ottava")
            self.assertNotIn(what, ("mxfp8", speed.DEBUGMODEL))  # no time is left
            return {"copy_bytes_per_second": 1, "gemm_flops_per_second": 1, "kernels": [one(f"matmul {what}")]}

        with mock.patch.multiple(speed, step_kernels=step_kernels, torch_attention=lambda c: {"error": "no PyTorch here"}):
            with self.assertRaises(Failed) as red:
                speed.kernels(Bench([]))
        rows = {k["name"]: k.get("error") for k in red.exception.data["kernels"]}
        self.assertEqual(rows, {"matmul None": None, "all, tensorwise": "no algorithm", "matmul rowwise, rowwise": None,
                                "all, blockwise": "not done after 9 s: ottava"})
        self.assertIn("no algorithm", str(red.exception))
        goals.kernel_goals(red.exception.data)

    def test_a_table_without_a_figure_is_not_ok(self):
        operation = {"name": "rope", "operands": "", "bound": "copy", "bytes": 1, "flops": 0, "calls": 1}
        figures = {"seconds": 1e-3, "share_of_peak": 0.5}
        for kernels, status, count in (([operation, operation], "not measured", "0 of 2"), ([operation, {**operation, **figures}], "ok", "1 of 2")):
            report = {"copy_bytes_per_second": 1, "gemm_flops_per_second": 1, "kernels": kernels}
            c = Bench([], torch=False)
            c.compute_capability = lambda: 80
            c.deadline = time.monotonic() + 100
            with mock.patch.multiple(speed, step_kernels=lambda *_: report, torch_attention=lambda c: {"error": ""},
                                     kernel_rows=lambda *_: []), contextlib.redirect_stdout(io.StringIO()):
                result = main.run_stage(c, speed.kernels, 100)
            self.assertEqual(result["status"], status)
            self.assertIn(f"{count} operations were measured", result["report"])
            self.assertEqual(len(result["data"]["kernels"]), 2)

    def test_seconds_of_measuring_are_those_that_are_left(self):
        report = {"copy_bytes_per_second": 1, "gemm_flops_per_second": 1, "kernels": []}
        for left, torch, first in ((72, False, 8), (62, True, 3), (10, True, 1.5), (300, True, 8)):
            asked = []
            c = Bench([], torch=torch)
            c.seconds_left = lambda: left
            with mock.patch.multiple(speed, step_kernels=lambda c, what, seconds: asked.append(seconds) or {**report, "kernels": []},
                                     torch_attention=lambda c: {"error": ""}, kernel_rows=lambda *_: []), self.assertRaises(NotMeasured):
                speed.kernels(c)
            self.assertEqual(asked[0], first)
            self.assertEqual(len(asked), 6)

    def test_recipes_that_the_gpu_lacks_are_not_started(self):
        for capability, recipes in ((90, ["tensorwise", "rowwise", "blockwise"]), (100, ["tensorwise", "mxfp8"]), (80, []),
                                    (None, ["tensorwise", "rowwise", "blockwise", "mxfp8"])):  # nothing says what it is
            started = []
            c = Bench([], torch=False)
            c.compute_capability = lambda: capability
            report = {"copy_bytes_per_second": 1, "gemm_flops_per_second": 1, "kernels": []}
            with mock.patch.multiple(speed, step_kernels=lambda c, what, seconds: started.append(what) or {**report, "kernels": []},
                                     torch_attention=lambda c: {"error": ""}, kernel_rows=lambda *_: []), self.assertRaises(NotMeasured):
                speed.kernels(c)
            self.assertEqual(started, [None, *recipes, speed.DEBUGMODEL])


if __name__ == "__main__":
    unittest.main()
