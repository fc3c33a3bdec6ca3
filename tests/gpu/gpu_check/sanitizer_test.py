#!/usr/bin/env python3
"""What compute-sanitizer says, and what it is asked to watch."""

import unittest
from unittest import mock

from stand_ins import Bench
import sanitizer
from check import Check, Failed, TimedOut

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at void {}::rms_norm_kernel<float>(float *)+0x120
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: ottava::cuda::launch [0x12] in ottava
=========
Training completed
========= ERROR SUMMARY: 1 error
"""


class Sanitizer(unittest.TestCase):
    def test_a_device_that_it_does_not_support_is_not_run(self):
        verdict, _ = sanitizer.read_sanitizer("memcheck", "========= Error: Device not supported. Please refer to ...\n========= ERROR SUMMARY: 1 error")
        self.assertEqual(verdict, "not run")

    def test_errors_and_unfinished_runs_are_red(self):
        clean = "Training completed\n========= ERROR SUMMARY: 0 errors"
        self.assertEqual(sanitizer.read_sanitizer("memcheck", clean), ("ok", "ERROR SUMMARY: 0 errors"))
        self.assertEqual(sanitizer.read_sanitizer("racecheck", "Training completed\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")[0], "ok")
        self.assertEqual(sanitizer.read_sanitizer("memcheck", clean.replace("0 errors", "10 errors"))[0], "FAILED")  # of an unknown form
        self.assertEqual(sanitizer.read_sanitizer("memcheck", "========= ERROR SUMMARY: 0 errors")[0], "FAILED")
        self.assertEqual(sanitizer.read_sanitizer("memcheck", "segmentation fault")[0], "FAILED")

    def test_a_tool_that_cannot_bear_the_step_watches_cases(self):
        fault, clean = "========= Internal Sanitizer Error: a hardware exception.", "========= RACECHECK SUMMARY: 0 hazards displayed"
        race = ("All tests passed\n========= Error: Race reported at void ottava::k(float *)+0x10\n=========\n"
                "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")

        given = []

        def racecheck(of_step, of_cases, seconds=60):
            given.clear()
            c = Check(dry=False, programs=".", seconds=seconds)
            self.addCleanup(c.close)
            c.program = lambda name: name

            def run(command, seconds=None, **_):
                if "racecheck" not in command:
                    return "Training completed\n========= ERROR SUMMARY: 0 errors"
                given.append(seconds)
                answer = of_cases(command[-1]) if "ottava_device_tests" in command else of_step
                if isinstance(answer, Exception):
                    raise answer
                return answer
            c.run = run
            with mock.patch("shutil.which", return_value="compute-sanitizer"):
                return sanitizer.sanitizer(c)[1]["racecheck"]

        self.assertEqual(racecheck(f"Training completed\n{clean}", None)[0], "ok")
        verdict, says = racecheck(fault, lambda cases: f"All tests passed\n{clean}" if "rope" in cases else fault)
        self.assertEqual(verdict, "ok")
        self.assertRegex(says, r"^nothing wrong in the cases rope rotates\*; the tool fails in rms_norm_forward .*; of a step racecheck itself fails")
        verdict, says = racecheck(fault, lambda cases: TimedOut("not done") if "rms" in cases else f"All tests passed\n{clean}")
        self.assertEqual(verdict, "ok")
        self.assertIn("; the time was up in rms_norm_forward agrees*, rms_norm_backward agrees*, rms_norm_backward in FP8: codes*; of a step", says)
        # What is wrong in one keeps none from being watched.
        with self.assertRaisesRegex(Failed, r"(?s)rms_norm_forward agrees.: .*1 in our kernels.*\n\nswiglu_forward agrees.: .*1 in our kernels.*"
                                            r"\n\nnothing wrong in the cases rms_norm_backward agrees.*; the time was up in grad_norm_squared sums.*; of a step"):
            racecheck(fault, lambda cases: race if "_forward" in cases else TimedOut("not done") if "norm_sq" in cases else f"All tests passed\n{clean}")
        for answer, why in ((fault, "the tool fails in"), (TimedOut("not done"), "the time was up in")):
            verdict, says = racecheck(fault, lambda cases: answer)
            self.assertEqual(verdict, "not run")
            self.assertRegex(says, f"^{why} rms_norm_forward .*; of a step racecheck itself fails")
        # Each has its share of what time is left.
        self.assertEqual(given[1:6], [sanitizer.SECONDS_OF_CASES] * 5)
        racecheck(fault, lambda cases: TimedOut("not done"), seconds=800)
        self.assertGreater(min(given[1:]), 800 / len(sanitizer.CASES) - 1)

    def test_only_faults_in_our_kernels_are_red(self):
        verdict, says = sanitizer.read_sanitizer("memcheck", MEMCHECK.format("ottava::cuda"))
        self.assertEqual(verdict, "FAILED")
        self.assertIn("1 in our kernels:\nInvalid __global__ write", says)
        self.assertEqual(sanitizer.read_sanitizer("memcheck", MEMCHECK.format("cutlass"))[0], "ok")  # though the host's frames are ours
        race = ("Training completed\n========= Error: Race reported between Write access at void {}::k(float *)+0x10\n=========     and Read "
                "access at void {}::k(float *)+0x20 [1 hazards]\n=========\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
        self.assertEqual(sanitizer.read_sanitizer("racecheck", race.format("ottava", "ottava"))[0], "FAILED")
        verdict, says = sanitizer.read_sanitizer("racecheck", race.format("cutlass", "cutlass"))
        self.assertEqual(verdict, "ok")
        self.assertIn("none of them in our kernels: Error: Race reported", says)

    def test_a_filter_is_used_where_the_tool_takes_one(self):
        def tool(help_text, taken):
            c = Bench([])
            c.run = lambda command, **_: help_text if "--help" in command else "nothing watched" if command[1:-1] in ([], *taken) else "bad option"
            return sanitizer.kernel_filter(c, "compute-sanitizer")
        self.assertEqual(tool("  --kernel-name arg", [["--kernel-name", "kns=ottava"]]), ["--kernel-name", "kns=ottava"])
        self.assertEqual(tool("  --kernel-regex arg", [["--kernel-regex", "kernel_substring=ottava"]]), ["--kernel-regex", "kernel_substring=ottava"])
        self.assertEqual(tool("  --filter arg", []), [])
        self.assertEqual(tool("  --tool arg", [["--filter", "kns=ottava"]]), [])


if __name__ == "__main__":
    unittest.main()
