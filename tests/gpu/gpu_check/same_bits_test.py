#!/usr/bin/env python3
"""Runs that must make the same bits."""

import unittest

from stand_ins import Trainings
import same_bits
from check import Failed


class SameBits(unittest.TestCase):
    def test_eager_and_graphs_go_on_from_one_checkpoint(self):
        c = Trainings()
        same_bits.graphs(c)
        for name, mode in (("graphs eager", "off"), ("graphs graphs", "on")):
            keys = dict(zip(c.commands[name][::2], c.commands[name][1::2]))
            self.assertEqual((keys["--checkpoint.load_step"], keys["--training.cuda_graphs"]), (str(same_bits.CHECKPOINT), mode))

    def test_a_bit_is_enough(self):
        with self.assertRaisesRegex(Failed, "eager and graphs differ"):
            same_bits.graphs(Trainings({"graphs graphs": {12: 5.8000001}}))
        with self.assertRaisesRegex(Failed, "are not those of the run that saved it"):
            same_bits.graphs(Trainings({"graphs eager": {5: 6.4}}))
        with self.assertRaisesRegex(Failed, "does not say that they are on"):
            same_bits.graphs(Trainings(said="CUDA graphs: off: ..."))
        same_bits.graphs(Trainings({"graphs graphs": {same_bits.CHECKPOINT: 1.0}}))  # what lies before it was read, not computed
        broken = Trainings()
        broken.graphs_fault = "[graphs] the micro-batch cannot be recorded"
        with self.assertRaisesRegex(Failed, "cannot be recorded"):
            same_bits.graphs(broken)

    def test_attention_must_repeat_itself(self):
        same_bits.attention(Trainings())
        with self.assertRaisesRegex(Failed, "does not repeat bit for bit"):
            same_bits.attention(Trainings({"cudnn again 2 layers, head dim 128": {9: 6.0}}))
        broken = Trainings({"cudnn 2 layers, head dim 64": {3: float("nan")}})
        with self.assertRaisesRegex(Failed, "head dim 128 . 5.8000") as red:  # the other model has run all the same
            same_bits.attention(broken)
        self.assertIn("inf > 5e-03", str(red.exception))
        with self.assertRaisesRegex(Failed, "> 5e-03"):
            same_bits.attention(Trainings({f"cudnn{again} 2 layers, head dim 64": {9: 6.2} for again in ("", " again")}))


if __name__ == "__main__":
    unittest.main()
