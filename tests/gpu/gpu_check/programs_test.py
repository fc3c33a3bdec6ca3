#!/usr/bin/env python3
"""Programs that the script starts: their output, time and environment."""

import contextlib
import gzip
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import stand_ins  # finds the script's modules
import device_tests
import program_output
from check import Check, Failed, Skipped, TimedOut


class Programs(unittest.TestCase):
    def test_what_a_program_said_before_its_time_was_up_is_kept(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        with self.assertRaisesRegex(TimedOut, "not done after 3 s") as caught:
            c.run(["sh", "-c", "echo first; sleep 60"], seconds=3)
        self.assertEqual(caught.exception.output, "first\n")
        with self.assertRaisesRegex(Failed, "exit code 3"):
            c.run(["sh", "-c", "exit 3"])
        with self.assertRaisesRegex(Failed, "cannot be started"):
            c.run(["no such program"])
        c.stage_deadline = 0
        with self.assertRaisesRegex(TimedOut, "no time was left"):
            c.run(["true"])

    def test_a_pipe_that_stays_open_holds_nothing_up(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        began = time.monotonic()
        out = c.run(["sh", "-c", "echo said; setsid sleep 20 & exit 0"])
        self.assertEqual(out, "said\n")
        self.assertLess(time.monotonic() - began, 15)

    def test_all_that_programs_say_is_in_one_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out.log.gz"
            c = Check(dry=True, programs=".", seconds=60, log=program_output.OutputLog(path))
            self.addCleanup(c.close)
            c.run(["echo", "hello"])
            with contextlib.suppress(TimedOut):
                c.run(["sh", "-c", "echo before; sleep 60"], seconds=2)
            with open(path, "ab") as file:
                file.write(gzip.compress(b"cut off")[:5])  # as if it had been ended in the middle
            text = b""
            with contextlib.suppress(EOFError), gzip.open(path) as file:
                while line := file.readline():
                    text += line
            self.assertRegex(text.decode(), r"exit code 0: echo hello\nhello\n=====.* not done after 2 s: .*\nbefore\n")
            with mock.patch.object(program_output.OutputLog, "LARGEST", 0):
                size = path.stat().st_size
                c.run(["echo", "no more"])
                self.assertEqual(path.stat().st_size, size)

    def test_of_endless_output_the_beginning_and_the_end_are_kept(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        with mock.patch("program_output.KEPT_BYTES", 100000):
            out = c.run(["sh", "-c", "echo begin; head -c 3000000 /dev/zero; echo end"])
        self.assertLess(len(out), 400000)
        self.assertTrue(out.startswith("begin") and out.endswith("end\n"))
        self.assertIn("bytes were left out here", out)

    def test_a_training_without_metrics_has_failed(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        with self.assertRaisesRegex(Failed, "its metrics.jsonl is none"):
            c.train("garbage", "cpu", 2, [], launcher=["echo", "garbage"])

    def test_a_run_that_only_looks_has_its_own_losses(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        line = '{"step": %d, "loss_metrics/global_avg_loss": %d, "grad_norm": 1}'
        c.folder("run").mkdir()
        (c.folder("run") / "metrics.jsonl").write_text("\n".join(line % (step, 7) for step in (1, 2, 3)))  # of the run that saved
        extra, looks = ["--checkpoint.load_only", "true"], f"mkdir load_only; echo '{line % (3, 6)}' >load_only/metrics.jsonl"
        with self.assertRaisesRegex(Failed, "its metrics.jsonl is none"):
            c.train("run", "cpu", 3, extra, launcher=["true"], first=3)
        run = c.train("run", "cpu", 3, extra, launcher=["sh", "-c", f"cd {c.folder('run')}; {looks}"], first=3)
        self.assertEqual(run.losses, {3: 6})
        with self.assertRaisesRegex(Failed, "steps .3. of 2 to 3 were logged"):
            c.train("run", "cpu", 3, extra, launcher=["true"], first=2)

    def test_programs_see_one_gpu(self):
        for said, gpu in (({}, "0"), ({"CUDA_VISIBLE_DEVICES": "3,5"}, "3")):
            with mock.patch.dict("os.environ", said):
                c = Check(dry=False, programs=".", seconds=60)
            self.addCleanup(c.close)
            self.assertEqual(c.run(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]).strip(), gpu)
            with mock.patch.object(Check, "execute", return_value=(0, "9.0")) as asked:
                c.compute_capability()
            self.assertEqual(asked.call_args.args[0][:3], ["nvidia-smi", "-i", gpu])

    def test_a_stage_whose_cases_are_all_skipped_is_not_run(self):
        def ran(account):
            def run(c, command, env, **_):
                Path(env["OTTAVA_TEST_CASES"]).write_text(account)
                return "All tests passed (1 assertion in 1 test case)"
            return mock.patch.object(Check, "run", run)

        c = Check(dry=False, programs=".", seconds=60)
        self.addCleanup(c.close)
        with mock.patch.object(Check, "program", return_value="ottava_device_tests"):
            with ran("skipped\tNCCL 1\tneeds 2 GPUs\n"), self.assertRaisesRegex(Skipped, "needs 2 GPUs"):
                device_tests.device_tests(c, "*NCCL*")
            with ran("skipped\tNCCL 1\tneeds 2 GPUs\nran\tNCCL 2\n"):
                self.assertIn("1 assertion", device_tests.device_tests(c, "*NCCL*"))

    def test_a_silent_nvidia_smi_and_a_slow_python_say_nothing(self):
        c = Check(dry=False, programs=".", seconds=60)
        self.addCleanup(c.close)
        with mock.patch.object(Check, "execute", side_effect=TimedOut("not done after 15 s")):
            self.assertEqual((c.gpu_gib(), c.compute_capability(), c.has_torch()), (None, None, None))
        for answer, gib, capability in (("81559\n", 81559 / 1024, 81559), ("9.0\n", None, 90), ("[N/A]\n", None, None), ("", None, None)):
            c = Check(dry=False, programs=".", seconds=60)
            self.addCleanup(c.close)
            with mock.patch.object(Check, "execute", return_value=(0, answer)):
                self.assertEqual((c.gpu_gib(), c.compute_capability(), c.has_torch()), (gib, capability, True))


if __name__ == "__main__":
    unittest.main()
