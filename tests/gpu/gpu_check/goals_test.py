#!/usr/bin/env python3
"""Goals that are met or not."""

import unittest

import stand_ins  # finds the script's modules
import goals
import speed


def item(shape, precision, tokens, graphs="on"):
    return {"shape": shape, "precision": precision, "tokens_per_second": tokens, "graphs": graphs}


class Goals(unittest.TestCase):
    def verdicts(self, ours, torch):
        steps = {"ottava": [item(*i) for i in ours], "torch": [item(*i) for i in torch], "shapes": ["8B x 16 layers", "1B", "debugmodel"],
                 "raced": ["8B x 16 layers", "1B"], "auto": ["8B x 16 layers", "1B"], "debug": "debugmodel"}
        return {g["goal"]: g["verdict"] for g in goals.step_goals(steps)}

    def test_met_or_not(self):
        v = self.verdicts([("8B x 16 layers", "bf16", 1150), ("8B x 16 layers", "fp8", 1600), ("8B x 16 layers", "auto", 1140),
                           ("1B", "bf16", 1100), ("1B", "auto", 1080), ("debugmodel", "bf16", 4.1e6)], [("8B x 16 layers", "bf16", 1000), ("1B", "bf16", 1000)])
        self.assertEqual(v["8B x 16 layers: BF16 >= 1.15 x PyTorch's"], "met")
        self.assertEqual(v["1B: BF16 >= 1.15 x PyTorch's"], "not met")
        self.assertEqual(v["8B x 16 layers: FP8 >= 1.40 x own BF16"], "not met")
        self.assertEqual(v["debugmodel: >= 4M tokens/s with graphs"], "met")
        self.assertEqual(v["8B x 16 layers: FP8 auto not below BF16 (beyond 1% of noise)"], "met")
        self.assertEqual(v["1B: FP8 auto not below BF16 (beyond 1% of noise)"], "not met")
        self.assertNotIn("1B: FP8 >= 1.40 x own BF16", v)

    def test_without_graphs_the_small_model_does_not_count(self):
        self.assertEqual(self.verdicts([("debugmodel", "bf16", 5e6, "off")], [])["debugmodel: >= 4M tokens/s with graphs"], "not met")
        self.assertEqual(set(self.verdicts([], []).values()), {"not measured"})

    def test_operations(self):
        def kernel(name, bound, share, **more):
            return {"name": name, "operands": "bf16 [4]", "calls": 2, "bound": bound, "share_of_peak": share, "bytes": 1e9, "flops": 1e12, "seconds": 1e-3, **more}
        failed = {"name": "adamw", "operands": "f32 [4]", "calls": 1, "bound": "copy", "bytes": 1e9, "flops": 0, "error": "no memory"}
        late = {"name": "sum_into", "operands": "f32 [4]", "calls": 3, "bound": "copy", "bytes": 2e4, "flops": 0, "planned_seconds": 2e-6}
        report = {"copy_bytes_per_second": 4e12, "gemm_flops_per_second": 8e14, "kernels": [
            kernel("matmul forward", "gemm", 1), kernel("rope", "copy", 0.86, planned_seconds=8e-4), kernel("amax", "copy", 0.84),
            kernel("clip_factor", "copy", 0.01, bytes=8), kernel("column_amax", "copy", 0.7, bytes=2.5e8),
            kernel("attention_forward", "gemm", 0.34), kernel("attention_backward", "gemm", 0.19), failed, late]}
        verdict = {g["goal"].split(":")[0]: g["verdict"] for g in goals.kernel_goals(report)}
        self.assertEqual(verdict, {"rope": "met", "amax": "not met", "attention_forward": "met", "attention_backward": "not met", "adamw": "not measured"})
        rows = speed.kernel_rows(report, {"cudnn": {"forward_seconds": 2.5e-3, "backward_seconds": 5e-3}, "flash": {"error": "no kernel"}})
        self.assertEqual(speed.KERNEL_COLUMNS, ["operation", "MB", "GFLOP", "us", "planned us", "rate", "of the peak", "calls"])
        self.assertIn(("rope: bf16 [4]", "1000.00", "1000.000", "1000.0", "800.0", "1000 GB/s", "86%", 2), rows)
        self.assertIn(("adamw: f32 [4]", "1000.00", "", "no memory", "", "", "", 1), rows)
        self.assertIn(("sum_into: f32 [4]", "0.02", "", "not measured", "2.0", "", "", 3), rows)
        self.assertIn(("attention forward, PyTorch with cuDNN", "", "1000.000", "2500.0", "", "400.00 TFLOP/s", "50%", ""), rows)
        self.assertIn(("attention backward, PyTorch with its flash attention", "", "", "no kernel", "", "", "", ""), rows)
        self.assertEqual({len(row) for row in rows}, {len(speed.KERNEL_COLUMNS)})

    def test_memory(self):
        self.assertEqual(goals.memory_goal(None)["verdict"], "not measured")
        fits = {"model": "a", "plan": 500.0, "besides": 600.0, "limit": 1024.0, "verdict": "as planned"}
        self.assertEqual(goals.memory_goal({"memory": [fits]})["verdict"], "met")
        self.assertEqual(goals.memory_goal({"memory": [fits, {"model": "b", "verdict": "FAILED: no line"}]})["verdict"], "not met")


if __name__ == "__main__":
    unittest.main()
