#!/usr/bin/env python3
"""Losses of recipes on the GPU against the CPU's, and the memory that a plan promised."""

import re
import unittest
from pathlib import Path

import stand_ins  # finds the script's modules
import parity
from check import Failed, TimedOut
from models import RECIPES, recipes_of

MEMORY = ("GPU memory: plan 512.3 MiB, and {} MiB that libraries, connections and graphs took besides ({} the 1024 MiB kept for them)")
REFUSED = "exit code 1: ottava\n[fp8] this GPU does not multiply recipe {} (layers.0.attention.wqkv): it has tensorwise, delayed; set ..."


def case(recipe, if_time_allows=False):
    return parity.float8_case("2 layers, head dim 64", recipe, if_time_allows)


class Parity(unittest.TestCase):
    def test_memory_is_the_plan_and_the_constant(self):
        memory = parity.read_memory("[rank0] " + MEMORY.format("700.5", "of"))
        self.assertEqual(memory, {"plan": 512.3, "besides": 700.5, "limit": 1024})
        self.assertEqual(parity.judge_memory(memory), "as planned")
        self.assertTrue(parity.judge_memory(parity.read_memory(MEMORY.format("1100.0", "more than"))).startswith("FAILED"))
        self.assertTrue(parity.judge_memory(parity.read_memory(MEMORY.format("-3.0", "of"))).startswith("FAILED"))
        self.assertTrue(parity.judge_memory(parity.read_memory("no such line")).startswith("FAILED"))

    def test_only_a_recipe_that_the_gpu_lacks_may_be_refused(self):
        refused = lambda recipe, capability: parity.judge_error(case(recipe), Failed(REFUSED.format(recipe)), capability)
        self.assertEqual(refused("mxfp8", 90), "refused, as expected of this GPU")
        self.assertEqual(refused("rowwise", 100), "refused, as expected of this GPU")
        self.assertTrue(refused("tensorwise", 90).startswith("FAILED"))
        self.assertTrue(refused("mxfp8", 100).startswith("FAILED"))
        self.assertTrue(refused("mxfp8", None).startswith("FAILED"))
        other = Failed("exit code 1\n[cublaslt] no algorithm for fp8 policy of the model")
        self.assertTrue(parity.judge_error(case("mxfp8"), other, 90).startswith("FAILED"))

    def test_no_time_is_red_but_for_what_may_be_left_out(self):
        self.assertTrue(parity.judge_error(case("tensorwise"), TimedOut("not done after 3 s: ottava"), 90).startswith("FAILED"))
        self.assertTrue(parity.judge_error(case("tensorwise", True), TimedOut("no time was left"), 90).startswith("not measured"))
        self.assertTrue(parity.judge_error(case("tensorwise", True), Failed("exit code 1"), 90).startswith("FAILED"))

    def test_losses_within_the_bound_agree(self):
        def judge(device, precision="tensorwise"):
            return parity.judge_losses(case(precision), device, [7.0, *[6.0] * 20], 90)[2]

        self.assertEqual(judge([7.0, *[6.01] * 20]), "agrees")
        self.assertEqual(judge([7.0, *[6.0] * 10, *[6.2] * 10]), "agrees")  # a difference grows
        self.assertTrue(judge([7.0, *[6.02] * 20]).startswith("FAILED: too far in the first 8 steps"))
        self.assertTrue(judge([7.0, *[6.0] * 10, *[6.3] * 10]).startswith("FAILED: too far, "))
        self.assertTrue(judge([7.0], "mxfp8").startswith("FAILED"))
        for bad in (float("nan"), float("inf"), None):
            self.assertTrue(judge([7.0, bad]).startswith("FAILED: too far"))

    def test_recipes_are_those_of_the_program(self):
        keys = (Path(__file__).resolve().parents[3] / "configs/keys.md").read_text()
        choices = re.search(r"^\| `quantize.linear.float8.recipe_name` \| ([^|]*) \|", keys, re.M).group(1)
        self.assertEqual(RECIPES, re.findall(r"\w+", choices.replace(" or ", ", ")))

    def test_recipes_by_compute_capability(self):
        self.assertEqual(set(RECIPES) - set(recipes_of(90)), {"mxfp8"})
        self.assertEqual(set(RECIPES) - set(recipes_of(100)), {"rowwise", "rowwise_with_gw_hp", "blockwise"})
        self.assertEqual(recipes_of(80), [])


if __name__ == "__main__":
    unittest.main()
