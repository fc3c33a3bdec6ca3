#!/usr/bin/env python3
"""Ranks that have a GPU each."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from stand_ins import Trainings
import device_tests
import nccl_ranks
from check import Check, Failed, TimedOut


class NcclRanks(unittest.TestCase):
    class Check(Trainings):
        def __init__(self, gpus, changed=None, seconds=1000, capability=90):
            super().__init__(changed)
            self.all, self.seconds, self.capability, self.started = gpus, seconds, capability, {}

        def program(self, name):
            return name

        def compute_capability(self):
            return self.capability

        def gpus(self):
            return self.all

        def seconds_left(self):
            return self.seconds

        def train(self, name, device, steps, extra, launcher=(), env=None, seconds=None):
            self.started[name] = (list(launcher), env or {})
            return super().train(name, device, steps, extra)

    def stage(self, c):
        with mock.patch.object(device_tests, "device_tests", return_value="3 cases"):
            return device_tests.nccl(c)

    def test_one_gpu_is_one_rank_and_no_more_is_said(self):
        c = self.Check(["0"])
        text, data = self.stage(c)
        self.assertIn("several ranks have not been tried", text)
        self.assertEqual((c.commands, data), ({}, {"summary": "3 cases"}))

    def test_as_many_ranks_as_gpus_train_beside_one(self):
        for gpus, ranks, names in ((["2", "3"], 2, 8), (["0", "1", "2"], 2, 8), (list("0123"), 4, 9), (list("01234567"), 8, 10)):
            c = self.Check(gpus)
            text, data = self.stage(c)
            self.assertIn(f"{ranks} ranks with a GPU each", text)
            self.assertEqual(len(data["ranks"]["layouts"]), names)
            launched = {name: how for name, how in c.started.items() if name.startswith("nccl ")}
            self.assertEqual(len(launched), names)
            for launcher, env in launched.values():
                self.assertEqual((launcher[1:4], env["CUDA_VISIBLE_DEVICES"]), (["launch", "-n", str(ranks)], ",".join(gpus[:ranks])))
            self.assertTrue(all(env == {} for name, (_, env) in c.started.items() if name.startswith("alone ")))

    def test_cases_of_several_ranks_see_as_many_gpus(self):
        seen, last = [], ""

        def run(command, check=True, env=None):
            seen.append((command[-1], env.get("CUDA_VISIBLE_DEVICES")))
            if len(seen) == 1 or not last:
                return "All tests passed (1 assertion in 1 test case)"
            Path(env["OTTAVA_TEST_CASES"]).write_text(last)
            raise TimedOut("not done after 9 s: ...") if "ran" in last else Failed("exit code 1: lane.cpp:7: FAILED")

        def stage():
            folder, c = tempfile.TemporaryDirectory(), self.Check(list("0123456"))
            self.addCleanup(folder.cleanup)
            c.work, c.run, seen[:] = Path(folder.name), run, []
            return device_tests.nccl(c)

        text, data = stage()
        self.assertEqual(seen, [(device_tests.OF_NCCL, None), (device_tests.OF_SEVERAL, "0,1,2,3")])
        self.assertIn("Cases with 4 GPUs: All tests passed", text)
        self.assertEqual(len(data["ranks"]["layouts"]), 9)
        last = "ran\ta\nran\tb\n"
        self.assertIn("Cases with 4 GPUs: 2 of them ended, not done after 9 s.", stage()[0])
        for last, says in (("ran\ta\nfailed\tb\n", "cases with 4 GPUs failed: b"), ("failed\tb\n", "cases with 4 GPUs: .*lane.cpp:7: FAILED")):
            with self.assertRaisesRegex(Failed, says):
                stage()

    def test_a_gpu_without_fp8_goes_without(self):
        _, data = self.stage(self.Check(list("01"), capability=80))
        self.assertEqual([name for name in data["ranks"]["layouts"] if "FP8" in name], [])

    def test_every_rank_has_sequences(self):
        for ranks in (2, 4, 8):
            for layout in nccl_ranks.LAYOUTS:
                if layout.fewest() <= ranks:
                    keys = layout.options(ranks)
                    local = int(keys[keys.index("--training.local_batch_size") + 1])
                    data_ranks = ranks // (layout.pp * layout.cp * layout.tp)
                    self.assertGreaterEqual(local, layout.pp)
                    self.assertEqual(nccl_ranks.SEQUENCES % (local * data_ranks), 0, (layout, ranks))

    def test_what_fails_or_hangs_is_red_and_the_others_run(self):
        with self.assertRaises(Failed) as red:
            self.stage(self.Check(list("01"), {"nccl TP 2": {9: 7.5}}))
        self.assertIn("TP 2: too far", str(red.exception))
        self.assertEqual(len(red.exception.data["ranks"]["layouts"]), 8)
        for seconds, says in ((1000, "FAILED"), (30, "not measured: no time was left")):
            c = self.Check(list("01"), seconds=seconds)
            train = c.train
            c.train = lambda name, *a, **k: (_ for _ in ()).throw(TimedOut("not done after 60 s")) if name == "nccl PP 2" else train(name, *a, **k)
            if seconds == 30:
                self.assertIn(f"| PP 2 | {says} |", self.stage(c)[0])
                continue
            with self.assertRaises(Failed) as red:
                self.stage(c)
            self.assertIn(f"| PP 2 | {says} |", str(red.exception))
            self.assertIn("PP 2: not done after 60 s", str(red.exception))

    def test_the_gpus_are_those_that_are_visible(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        with mock.patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": "3,5"}):
            self.assertEqual(c.gpus(), ["3", "5"])
        with mock.patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": ""}):
            for said, gpus in (("0\n1\n2\n", ["0", "1", "2"]), ("No devices were found\n", ["0"]), (Failed("no nvidia-smi"), ["0"])):
                Check.gpus.cache_clear()
                c.run = mock.Mock(side_effect=[said])
                self.assertEqual(c.gpus(), gpus)


if __name__ == "__main__":
    unittest.main()
