#!/usr/bin/env python3
"""Cases of operations, each with a verdict."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import stand_ins  # finds the script's modules
import op_tests
from check import Check, Failed

# Stands in for ottava_device_tests, with the options and the file of tests/support/main.cpp. Cases by name: "breaks" leaves an
# error that fails all later ones of its process, "dies" ends it as a signal would, "hangs" never ends.
DEVICE_TESTS = """#!/usr/bin/env python3
import os, sys, time
CASES = {cases}
if "--list-test-names-only" in sys.argv:
    wanted = sys.argv[-1]
    tag = {{"[alone]": "alone", "*NCCL*": "NCCL"}}.get(wanted)
    print("\\n".join(case for case in CASES if tag is None or tag in case))
    sys.exit(len(CASES) % 256)
broken = False
for case in open(sys.argv[sys.argv.index("-f") + 1]).read().split("\\n"):
    case = case.replace("\\\\", "")
    if not case:
        continue
    say = lambda what: open(os.environ["OTTAVA_TEST_CASES"], "a").write(what + "\\n")
    print("case", case, flush=True)
    if "hangs" in case:
        time.sleep(60)
    if "dies" in case:
        os._exit(139)
    broken = broken or "breaks" in case
    if "skips" in case:
        say("skipped\t" + case + "\tthere is no GPU")
        continue
    say("ran\t" + case)
    if broken:
        print("an illegal memory access", flush=True)
        say("failed\t" + case)
sys.exit(1 if broken else 0)
"""


class OpTests(unittest.TestCase):
    def verdicts(self, cases, seconds=30):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = Path(folder.name) / "ottava_device_tests"
        program.write_text(DEVICE_TESTS.format(cases=cases))
        program.chmod(0o755)
        c = Check(dry=True, programs=folder.name, seconds=seconds)
        self.addCleanup(c.close)
        return c, lambda: {v.case: v for v in op_tests.verdicts_of(c)}

    def test_each_case_has_a_verdict_whatever_the_others_do(self):
        cases = [f"case {i}" for i in range(40)]
        cases[2], cases[5], cases[11], cases[20], cases[39] = "breaks 2", "one, and another", "dies 11", "skips 20", "over NCCL"
        cases += ["alone 1", "breaks alone 2", "alone 3"]
        c, verdicts = self.verdicts(cases)
        with mock.patch("op_tests.AT_ONCE", 4):
            out = verdicts()
        self.assertEqual({case for case, v in out.items() if v.result == "FAILED"}, {"breaks 2", "dies 11", "breaks alone 2"})
        self.assertEqual({v.result for v in out.values()}, {"passed", "skipped", "FAILED"})
        self.assertNotIn("over NCCL", out)
        self.assertIn("alone; behind a failed case", out["case 3"].says)
        self.assertEqual(out["alone 3"].result, "passed")
        self.assertIn("illegal memory access", out["breaks 2"].says)
        self.assertIn("exit code 139", out["dies 11"].says)
        self.assertEqual(out["skips 20"].says, "there is no GPU")
        with self.assertRaisesRegex(Failed, "42 cases on device cpu: 38 passed, 1 skipped, 3 failed, 0 without a verdict") as red:
            op_tests.op_tests(c)
        self.assertEqual(len(red.exception.data["cases"]), 42)

    def test_a_case_that_hangs_costs_its_own_time(self):
        cases = [f"case {i}" for i in range(16)] + ["hangs", "case behind it"]
        c, verdicts = self.verdicts(cases)
        with mock.patch("op_tests.SECONDS_OF_A_CASE", 2):
            out = verdicts()
        self.assertEqual([case for case, v in out.items() if v.result == "FAILED"], ["hangs"])
        self.assertIn("nothing new for 2 s\ncase", out["hangs"].says)
        self.assertEqual(out["case behind it"].result, "passed")

    def test_what_time_does_not_reach_is_red(self):
        c, _ = self.verdicts(["hangs 1", "case 2"], seconds=6)
        with self.assertRaisesRegex(Failed, "without a verdict"):
            op_tests.op_tests(c)

    def test_a_program_that_does_not_start(self):
        c, verdicts = self.verdicts([])
        with self.assertRaisesRegex(Failed, "no cases are listed"):
            verdicts()

    def test_a_program_that_says_nothing_of_its_cases(self):
        c, verdicts = self.verdicts([])
        Path(c.program("ottava_device_tests")).write_text("#!/bin/sh\n[ $# -ne 1 ] || echo case 1\n")
        self.assertEqual({v.result for v in verdicts().values()}, {"FAILED"})


if __name__ == "__main__":
    unittest.main()
