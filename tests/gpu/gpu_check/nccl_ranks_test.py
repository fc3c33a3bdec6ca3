#!/usr/bin/env python3
"""Ranks that have a GPU each."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from stand_ins import BENCH, Trainings
import check
import device_tests
import nccl_ranks
from check import Check, Failed, TimedOut


class NcclRanks(unittest.TestCase):
    class Check(Trainings):
        def __init__(self, gpus, changed=None, seconds=1000, capability=90):
            super().__init__(changed)
            self.all, self.seconds, self.capability, self.started, self.noted = gpus, seconds, capability, {}, []

        text = "text.txt"

        def run(self, command, check=True, env=None, seconds=None):
            if "bench" in command:
                self.started["bench " + " ".join(command)] = (command, env)
                return "".join(f"[rank 0] {line}\n" for line in BENCH.splitlines())
            return "Time per step: 0.7 s; 3,000 tokens/s per rank" if "plan" in command else "GPU0 GPU1: NV18"

        def folder(self, name):
            return name

        def without_graphs(self, device, extra=()):
            return []

        def so_far(self, text, data):
            self.noted.append(text)

        def program(self, name):
            return name

        def compute_capability(self):
            return self.capability

        def gpus(self):
            return self.all

        def seconds_left(self):
            return self.seconds

        def train(self, name, device, steps, extra, launcher=(), env=None, seconds=None, first=1):
            self.started[name] = (list(launcher), env or {})
            return super().train(name, device, steps, extra, first)

    def stage(self, c):
        with mock.patch.object(device_tests, "device_tests", return_value="3 cases"):
            return device_tests.nccl(c)

    def test_one_gpu_is_one_rank_and_no_more_is_said(self):
        c = self.Check(["0"])
        text, data = self.stage(c)
        self.assertIn("several ranks have not been tried", text)
        self.assertEqual((c.commands, data), ({}, {"summary": "3 cases"}))

    def test_as_many_ranks_as_gpus_train_beside_one(self):
        for gpus, ranks, names in ((["2", "3"], 2, 10), (["0", "1", "2"], 2, 10), (list("0123"), 4, 11), (list("01234567"), 8, 12)):
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

        def run(command, check=True, env=None, seconds=None):
            if command[0] != "ottava_device_tests":
                raise Failed(f"{command[0]} cannot be started: the step needs 9 GiB")
            seen.append((command[-1], env.get("CUDA_VISIBLE_DEVICES"), env.get("CUDA_MODULE_LOADING")))
            if not last:
                return "All tests passed (1 assertion in 1 test case)"
            Path(env["OTTAVA_TEST_CASES"]).write_text(last)
            raise TimedOut("not done after 9 s: ...") if "ran" in last else Failed("exit code 1: lane.cpp:7: FAILED")

        def stage():
            folder, c = tempfile.TemporaryDirectory(), self.Check(list("0123456"))
            self.addCleanup(folder.cleanup)
            c.work, c.run, seen[:] = Path(folder.name), run, []
            return device_tests.nccl(c)

        text, data = stage()
        self.assertEqual(seen, [(device_tests.OF_SEVERAL, "0,1,2,3", "EAGER")])
        self.assertIn("Cases with 4 GPUs: All tests passed", text)
        self.assertEqual(len(data["ranks"]["layouts"]), 11)
        last = "ran\ta\nran\tb\n"
        self.assertIn("Cases with 4 GPUs: 2 of them ended, not done after 9 s.", stage()[0])
        for last, says in (("ran\ta\nfailed\tb\n", "cases with 4 GPUs failed: b"), ("failed\tb\n", "cases with 4 GPUs: .*lane.cpp:7: FAILED")):
            with self.assertRaisesRegex(Failed, f"(?s){says}.*threads of one process"):
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
        self.assertEqual(len(red.exception.data["ranks"]["layouts"]), 10 + len(nccl_ranks.WAYS_TO_TELL))
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

    @staticmethod
    def failing(c, fails):
        """The check, in which a run over NCCL does not end if fails(its name, keys, variables)."""
        train = c.train

        def one(name, device, steps, extra, launcher=(), env=None, seconds=None, first=1):
            run = train(name, device, steps, extra, launcher, env, seconds, first)
            if name.startswith("nccl ") and fails(name, extra, env):
                raise TimedOut(f"not done after {seconds:.0f} s")
            return run

        c.train = one
        return c

    def red(self, c):
        with self.assertRaises(Failed) as red:
            self.stage(c)
        return str(red.exception), red.exception.data["ranks"]["layouts"]

    def test_the_others_go_the_way_in_which_the_first_layout_works(self):
        c = self.failing(self.Check(list("01")), lambda name, keys, env: env.get("NCCL_NVLS_ENABLE") != "0")
        text, layouts = self.red(c)
        self.assertIn("FSDP: not done after 90 s", text)
        self.assertIn("FSDP without CUDA graphs: not done after 60 s", text)
        self.assertEqual(len(layouts), 10)
        self.assertTrue(all(name.endswith(" without NVLink SHARP") for name in layouts), layouts)
        self.assertNotIn("without cuMem", text)

    def test_where_no_way_works_the_hour_is_not_spent_on_every_layout(self):
        c = self.failing(self.Check(list("01234567")), lambda *_: True)
        text, layouts = self.red(c)
        self.assertEqual((layouts, len([name for name in c.started if name.startswith("nccl ")])), ({}, 1 + len(nccl_ranks.WAYS_OUT)))
        self.assertIn("so the other layouts were not tried", text)
        c = self.failing(self.Check(list("01")), lambda *_: True)
        c.graphs_fault = "[graphs] the micro-batch cannot be recorded"  # all go without
        self.assertNotIn("FSDP without CUDA graphs", self.red(c)[0])

    def test_a_later_layout_that_hangs_is_tried_in_ways_that_tell_why(self):
        c = self.failing(self.Check(list("01")), lambda name, keys, env: "TP 2" in name and "off" not in keys)
        text, layouts = self.red(c)
        self.assertIn("TP 2 without CUDA graphs", layouts)
        self.assertIn("TP 2 with NCCL's kernels in the order of their calls: not done after 60 s", text)
        self.assertIn("PP 2", layouts)
        self.assertLess(text.index("| PP 2 |"), text.index("| TP 2 without CUDA graphs |"))

    def test_what_nccl_found_is_in_the_report(self):
        log = ("node:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\nnode:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)\n"
               "node:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\nnode:1:2 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n")
        c = self.Check(list("01"))
        c.said = log + c.said
        text, data = self.stage(c)
        self.assertEqual(data["ranks"]["nccl"], {"version": "2.28.9+cuda13.0", "paths": "P2P/CUMEM, SHM/direct", "NVLS": "available"})
        self.assertIn("2 ranks with a GPU each; NCCL 2.28.9+cuda13.0; GPUs reach each other by P2P/CUMEM, SHM/direct; NVLS is available:", text)
        self.assertIn("NV18", text)
        levels = [env["NCCL_DEBUG"] for _, env in c.started.values() if env]
        self.assertEqual(levels, ["INFO"] + ["WARN"] * 12)
        self.assertEqual(len(c.noted), 10)  # a call that is killed leaves what there is
        with mock.patch.dict("os.environ", {"NCCL_DEBUG": "TRACE"}):
            c = self.Check(list("01"))
            self.stage(c)
            self.assertEqual({env["NCCL_DEBUG"] for _, env in c.started.values() if env}, {"TRACE"})

    def test_a_first_layout_that_ends_with_other_losses_does_not_stop_the_others(self):
        text, layouts = self.red(self.Check(list("01"), {"nccl FSDP": {9: 7.5}}))
        self.assertIn("FSDP: too far", text)
        self.assertLess(list(layouts).index("TP 2"), list(layouts).index("FSDP without CUDA graphs"))

    def test_another_layout_goes_on_from_the_checkpoint_of_a_run_that_worked(self):
        c = self.Check(list("01"))
        c.copies = []
        c.copy_of = lambda name, copy: c.copies.append((name, copy))
        _, data = self.stage(c)
        self.assertEqual(c.copies, [("nccl FSDP, which saves", "nccl TP 2, from its checkpoint")])
        self.assertEqual(len(data["ranks"]["layouts"]["TP 2, from its checkpoint"]["losses"]), nccl_ranks.STEPS - nccl_ranks.CHECKPOINT)
        c = self.failing(self.Check(list("01")), lambda name, keys, env: "which saves" in name)
        self.assertNotIn("TP 2, from its checkpoint", self.red(c)[1])

    def test_large_steps_are_measured_beside_the_plan(self):
        c = self.Check(list("0123"))
        text, data = self.stage(c)
        self.assertIn("| FSDP, bf16 | 5057 | 3000 | 512 |", text)
        self.assertEqual(list(data["ranks"]["speed"]), ["FSDP, bf16", "FSDP, fp8 with weights in FP8", "TP 4, bf16"])
        self.assertIn("too_large", self.where_none_runs(Failed("exit code 1: the step needs 90 GiB; set"))[1]["ranks"]["speed"]["FSDP, bf16"])
        self.assertIn("not measured", self.where_none_runs(TimedOut("no time was left"), seconds=20)[0])
        for error in (TimedOut("not done after 75 s: ottava"), Failed("exit code 1: no"), ""):
            with self.assertRaisesRegex(Failed, "speed of FSDP, bf16: "):
                self.where_none_runs(error)

    def where_none_runs(self, error, seconds=1000):
        """The stage where `bench train` raises it, or says nothing."""
        c = self.Check(list("01"), seconds=seconds)
        run = c.run
        c.run = lambda command, **more: run(command, **more) if "bench" not in command else mock.Mock(side_effect=[error])()
        return self.stage(c)

    def test_ranks_speak_before_a_run_is_ended(self):
        c = self.Check(list("01"))
        self.stage(c)
        given = [dict(zip(keys[-10::2], keys[-9::2])) for name, keys in c.commands.items() if name.startswith("nccl ")]
        waits = [float(keys["--comm.init_timeout_seconds"]) for keys in given]
        self.assertEqual(waits, [nccl_ranks.FIRST_SECONDS - 20.0] + [nccl_ranks.SECONDS - 20.0] * 9)

    def test_all_gpus_are_held_open(self):
        with tempfile.TemporaryDirectory() as folder:
            devices = [Path(folder) / name for name in ("nvidia0", "nvidia1")]
            for device in devices:
                device.touch()
            held = check.opened([*devices, Path(folder) / "nvidia2"])
            self.assertEqual([os.readlink(f"/proc/self/fd/{file}") for file in held], [str(device.resolve()) for device in devices])
            for file in held:
                os.close(file)

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
