#!/usr/bin/env python3
"""Every command that scripts/gpu_check runs on a GPU is one that today's programs take: options that their --help lists, keys
and values that `ottava config` resolves, patterns that select tests, options of bench_pytorch.py. Nothing is run on a device.
So are those of scripts/kernel_report.py.

    gpu_check_commands_test.py OTTAVA OTTAVA_DEVICE_TESTS
"""

import contextlib
import functools
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "scripts/gpu_check"), str(ROOT / "scripts")]

import contract
import device_tests
import first_training
import kernel_report
import op_tests
import parity
import same_bits
import sanitizer
import shapes
import speed
from check import Check, Failed, Skipped, Training

OTTAVA, DEVICE_TESTS = "", ""  # of the command line
OPERATION = {"name": "", "operands": "", "calls": 1, "bound": "gemm", "share_of_peak": 0.5, "seconds": 1e-3, "bytes": 1, "flops": 1}


class Recorder(Check):
    """Runs nothing; every stage finds what it expects."""

    def __init__(self, gib):
        super().__init__(dry=False, programs=".", seconds=3600)
        self.commands, self.gib = [], gib

    def gpu_gib(self):
        return self.gib

    def gpus(self):
        return list("01234567")

    def program(self, name):
        return name

    def execute(self, command, **_):
        return 0, self.run(command)

    def run(self, command, **_):
        command = [str(word) for word in command]
        self.commands.append(command)
        if "--json" in command:
            report = {"copy_bytes_per_second": 1, "gemm_flops_per_second": 1,
                      "kernels": [{**OPERATION, "name": f"attention_{way}"} for way in ("forward", "backward")]}
            Path(command[command.index("--json") + 1]).write_text(json.dumps(report))
        if "--attention" in command:
            return json.dumps({"attention": {}})
        if "--query-gpu=compute_cap" in command:
            return "9.0\n"
        if lists_names(command):
            done = subprocess.run([DEVICE_TESTS, *command[1:]], capture_output=True, text=True)
            return done.stdout + done.stderr
        if "-f" in command:  # of test cases
            names = Path(command[command.index("-f") + 1])
            listed = op_tests.list_cases(self, "-f", str(names))
            assert listed == names.read_text().replace("\\", "").splitlines(), "a file of names does not select them"
        return "9.0\nAll tests passed, 1 assertions\nTraining completed\nERROR SUMMARY: 0 errors\n"

    def train(self, name, device, steps, extra, launcher=(), env=None, until=None, seconds=None, first=1):
        command = [*(launcher or ["ottava"]), *self.train_command(self.folder(name), device, steps, list(extra))]
        self.commands.append(command[command.index("mpirun"):] if "mpirun" in command else command)
        numbers = {step: 1.0 for step in range(first, steps + 1)}
        return Training(numbers, numbers, "CUDA graphs: on")

    def copy_of(self, name, copy):
        return copy


@functools.cache
def said(*command):
    """Output of a program that must end well."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def recorded():
    """[stage, command] of all stages. What they make of made-up outputs is tested in gpu_check/."""
    out = []
    stages = [device_tests.environment, op_tests.op_tests, first_training.first_training, parity.parity, same_bits.shared_gpu, device_tests.nccl,
              same_bits.graphs, same_bits.attention, sanitizer.sanitizer, contract.contract, speed.kernels, speed.steps]
    with mock.patch("shutil.which", lambda name: name):
        for gib, wanted in ((140, stages), (80, [speed.steps])):
            c = Recorder(gib)
            for stage in wanted:
                c.commands = []
                with contextlib.suppress(Failed, Skipped):
                    stage(c)
                out += [(stage.__name__, command) for command in c.commands]
            c.close()
    missing = {stage.__name__ for stage in stages} - {stage for stage, _ in out}
    assert not missing, f"stages without a command: {missing}"
    return out


def check_ottava(words):
    """Options before the keys against --help, keys and values by resolving them."""
    command = [words.pop(0)]
    if command == ["--version"]:
        return said(OTTAVA, "--version")
    if command == ["launch"]:
        own, rest = words[:words.index("--")], words[words.index("--") + 1:]
        help_text = said(OTTAVA, "launch", "--help")
        for option in filter(lambda word: word.startswith("-"), own):
            assert re.search(rf"(^|[ ,]){option}[ ,=]", help_text, re.M), f"launch has no option {option}"
        return check_ottava(rest)
    if command == ["bench"]:
        command.append(words.pop(0))
    help_text, keys = said(OTTAVA, *command, "--help"), []
    while words:
        word = words.pop(0)
        if word.startswith("--") and "." not in word:
            assert re.search(rf"(^|[ ,]){word}[ ,=]", help_text, re.M), f"{' '.join(command)} has no option {word}"
            words.pop(0)
        else:
            keys.append(word)
    return said(OTTAVA, "config", *keys)


def planned_gib(keys):
    """What the rank takes where memory decides everything for less of it."""
    plan = said(OTTAVA, "plan", "configs/debug.yaml", "--device", "h200_sxm", "--limit-gib", "1", "--training.device", "cuda", *keys)
    return float(re.search(r"Memory per rank: ([\d.]+) GiB", plan).group(1))


def check_bench_pytorch(words):
    source = (ROOT / "scripts/reference/bench_pytorch.py").read_text()
    for i, word in enumerate(words):
        if word.startswith("--"):
            assert f'add_argument("{word}"' in source, f"bench_pytorch.py has no option {word}"
        if word == "--run":
            flavor, layers, seq_len, batch, precision = words[i + 1].split(":")
            assert f'"{flavor}": dict(' in source, f"bench_pytorch.py has no flavor {flavor}"
            assert int(layers) * int(seq_len) * int(batch) > 0 and precision in ("bf16", "fp8")


def lists_names(command):
    return "--list-test-names-only" in command or "--verbosity" in command  # Catch2 2 and 3


def check_command(command):
    """Raises AssertionError for what would not start; returns the kind of command."""
    words = list(command)
    if "ottava" in words:
        check_ottava(words[words.index("ottava") + 1:])
        return "ottava " + words[words.index("ottava") + 1]
    if words[0] == "ottava_device_tests" and "-f" in words:
        pass  # its cases were listed when it was recorded
    elif words[0] == "ottava_device_tests" and not lists_names(words):
        listed = subprocess.run([DEVICE_TESTS, "--list-tests", words[-1]], capture_output=True, text=True).stdout  # ends with their number
        assert re.search(r"^[1-9]\d* matching test case", listed, re.M), f"no test is called {words[-1]}"
    elif any(word.endswith("bench_pytorch.py") for word in words):
        check_bench_pytorch(words[2:])
        return "bench_pytorch.py"
    elif (words[0] not in ("nvidia-smi", "ottava_cublaslt_probe", "ottava_device_tests") and words[1] != "-c"
          and words[-1] not in ("--help", "/bin/true")):
        raise AssertionError(f"what is this: {' '.join(words)}")
    return words[0]


def device_cases(*pattern):
    c = Recorder(140)
    with contextlib.closing(c):
        return set(op_tests.list_cases(c, *pattern))


def cases_that_say(pattern):
    """Those of ottava_device_tests in whose body it matches."""
    cases = r'^TEST_CASE\(\s*"(.*?)"(?:,\s*"[^"]*")?\) {(.*?)^}'
    found = {re.sub(r'"\s*"', "", name) for file in (ROOT / "tests").rglob("*_test.cpp")
             for name, body in re.findall(cases, file.read_text(), re.M | re.S) if re.search(pattern, body)}
    return found & device_cases()


class Commands(unittest.TestCase):
    def test_cases_for_the_sanitizer_exist(self):
        for cases in sanitizer.CASES:
            check_command(["ottava_device_tests", cases])

    def test_cases_that_ask_for_free_memory_share_the_gpu_with_nobody(self):
        asking = cases_that_say(r"\b(memory_for_rank|memory_info|gpu_bytes_in_use)\(")
        self.assertTrue(asking)
        self.assertEqual(asking - device_cases("[alone]"), set())

    def test_cases_that_need_several_gpus_run_where_there_are_some(self):
        needing = cases_that_say(r"\b(nccl_ranks|device_count)\(")
        self.assertTrue(needing)
        self.assertEqual(needing - device_cases(device_tests.OF_SEVERAL), set())

    def test_every_command_is_taken(self):
        kinds, commands = set(), recorded()
        self.assertTrue(any(stage == "op_tests" and "-f" in command for stage, command in commands), "no file of cases was tried")
        for stage, command in commands:
            with self.subTest(f"{stage}: {' '.join(command)}"):
                kinds.add(check_command(command))
        self.assertLessEqual({"ottava train", "ottava launch", "ottava bench", "ottava_device_tests", "bench_pytorch.py"}, kinds)

    def test_operations_are_counted_for_kernel_report(self):
        counted = kernel_report.operations(OTTAVA, "tensorwise")
        self.assertTrue(any(k["name"].startswith("scaled_matmul") and k["flops"] > 1e12 for k in counted))

    def test_no_shape_needs_more_memory_than_it_says(self):
        for gib in (140, 80):
            benchmark = shapes.benchmark_of(gib)
            for shape, precision in benchmark.ours:
                planned = planned_gib(speed.keys_of(benchmark.shapes[shape], precision))
                with self.subTest(f"{shape}, {precision}, {gib} GiB"):
                    self.assertLessEqual(planned, benchmark.shapes[shape].gib + 0.06)
                    if precision == "bf16" and shape != shapes.DEBUG:
                        self.assertGreater(planned, benchmark.shapes[shape].gib - 0.5)
                    self.assertLess(planned, gib - 3)  # of an H200 or H100, with what libraries and the driver take

    def test_a_wrong_word_is_noticed(self):
        for command, says in ((["ottava", "train", "configs/debug.yaml", "--training.step", "3"], "unknown option --training.step"),
                              (["ottava", "bench", "train", "configs/debug.yaml", "--stepz", "3"], "bench train has no option --stepz"),
                              (["ottava", "launch", "--ranks", "2", "--", "train", "configs/debug.yaml"], "launch has no option --ranks"),
                              (["ottava", "train", "configs/debug.yaml", "--attention.backend", "xformers"], 'attention.backend: .*"xformers"'),
                              (["ottava_device_tests", "no test is called so"], "no test is called no test is called so"),
                              (["python", "bench_pytorch.py", "--attentions", "1"], "has no option --attentions"),
                              (["python", "bench_pytorch.py", "--run", "9B:1:1:1:bf16"], "has no flavor 9B")):
            with self.assertRaisesRegex(AssertionError, says):
                check_command(command)


if __name__ == "__main__":
    DEVICE_TESTS, OTTAVA = sys.argv.pop(), sys.argv.pop()
    unittest.main()
