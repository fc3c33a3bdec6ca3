#!/usr/bin/env python3
"""scripts/gpu_check on outputs that only a GPU would give it: what it reads, and what it calls met, red or not measured."""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "scripts/gpu_check"))

import contract
import cuda_libraries
import device_tests
import first_training
import goals
import gpu_clocks
import nccl_ranks
import op_tests
import parity
import program_output
import same_bits
import sanitizer
import shapes
import speed
from check import Check, Failed, NotMeasured, Skipped, TimedOut, Training
from models import RECIPES, recipes_of

spec = importlib.util.spec_from_file_location("gpu_check_main", Path(speed.__file__).parent / "__main__.py")
main = importlib.util.module_from_spec(spec)
spec.loader.exec_module(main)

BENCH = """[ottava] INFO - Attention: cudnn (forward and backward of a layer: flash 9.1 ms, cudnn 4.2 ms)
[ottava] INFO - Precision: compute bf16, masters f32, moments bf16, gradient sums f32; 8 of 32 blocks are recomputed
attention: cudnn; loss: 2048 tokens at a time
CUDA graphs: on
step: median 0.405 s, fastest 0.404 s, slowest 0.409 s of 3
tokens/s: 20227 (8192 tokens per step)
model FLOPs: 512.3 TFLOP/s on each device (6 (N - N of the embedding) + 12 L H D T per token)
utilization: 49.2% (FLOPs as computed / time / GEMM peak)
memory: plan 94.026 GiB; 95.120 GiB in use on the GPU, 0.612 GiB of them before the plan's block
"""
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
        keys = (Path(__file__).resolve().parents[2] / "configs/keys.md").read_text()
        choices = re.search(r"^\| `quantize.linear.float8.recipe_name` \| ([^|]*) \|", keys, re.M).group(1)
        self.assertEqual(RECIPES, re.findall(r"\w+", choices.replace(" or ", ", ")))

    def test_recipes_by_compute_capability(self):
        self.assertEqual(set(RECIPES) - set(recipes_of(90)), {"mxfp8"})
        self.assertEqual(set(RECIPES) - set(recipes_of(100)), {"rowwise", "rowwise_with_gw_hp", "blockwise"})
        self.assertEqual(recipes_of(80), [])


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


class Libraries(unittest.TestCase):
    def test_pip_is_asked_for_what_is_nowhere_else(self):
        folders = lambda python: [str(Path(__file__).parent)]
        needed, cuda_libraries.NEEDED = cuda_libraries.NEEDED, (Path(__file__).name,)
        self.addCleanup(setattr, cuda_libraries, "NEEDED", needed)
        find = lambda environment, found: cuda_libraries.missing_library_folders("python3", environment, lambda name: found, folders)
        self.assertEqual(find({}, False), {"OTTAVA_CUDA_LIBRARIES": str(Path(__file__).parent)})
        self.assertEqual(find({}, True), {})
        self.assertEqual(find({"OTTAVA_CUDA_LIBRARIES": "/opt/own"}, False), {})
        self.assertEqual(cuda_libraries.folders_of("no such python"), [])


class Bench:
    """A Check whose programs answer at once; `answers` maps words of the command to an output or an error."""

    dry, device, python, text, gpu, work = False, "cuda", "python3", "text.txt", "0", Path("/nowhere")

    def __init__(self, answers, gib=140.0, torch=True):
        self.answers, self.gib, self.torch = answers, gib, torch

        self.noted = []

    def so_far(self, text, data):
        self.noted.append(data)

    def start(self, command, file):
        raise Failed("nvidia-smi cannot be started")

    def program(self, name):
        return name

    def folder(self, name):
        return Path("/nowhere") / name

    def seconds_left(self):
        return 100

    def gpu_gib(self):
        return self.gib

    def compute_capability(self):
        return None

    def has_torch(self):
        return self.torch

    def without_graphs(self, device, extra=()):
        return []

    def run(self, command, **_):
        line = " ".join(map(str, command))
        answer = next((answer for words, answer in self.answers if all(w in line for w in words)), "")
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clocks(unittest.TestCase):
    def test_only_what_a_busy_gpu_says_counts(self):
        text = "345, 75.2\n1980, 690.1\n1755, 698.0\n1740, 699.5\n[N/A], [N/A]\n1980, 200.0\n17"
        self.assertEqual(gpu_clocks.read_clocks(text), {"sm_mhz": 1755, "watts": 698.0})
        self.assertEqual(gpu_clocks.read_clocks("No devices were found\n"), {})

    def test_it_is_asked_while_a_program_runs_and_ends_with_it(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        c.dry, start, said = False, c.start, []

        def stand_in(command, file):
            said.extend(command)
            before = command[:command.index("nvidia-smi")]
            return start([*before, "sh", "-c", "(echo 1700, 650.0; sleep 60) | grep ,"], file)  # grep fills a buffer before it writes a file
        c.start = stand_in
        with gpu_clocks.watched_clocks(c) as clocks:
            self.assertEqual((len(c.running), clocks), (1, {}))
            until = time.monotonic() + 20
            while not (c.work / "clocks.csv").read_text() and time.monotonic() < until:
                time.sleep(0.01)
        self.assertEqual((c.running, clocks), (set(), {"sm_mhz": 1700, "watts": 650}))
        self.assertEqual(said[said.index("nvidia-smi"):][:3], ["nvidia-smi", "-i", "0"])
        with gpu_clocks.watched_clocks(Bench([])) as clocks:
            pass
        self.assertEqual(clocks, {})  # where it cannot be started

    def test_fp8_comes_right_after_bf16(self):
        for gib in (140, 80):
            ours = shapes.benchmark_of(gib).ours
            for i, (shape, precision) in enumerate(ours):
                if precision == "fp8":
                    self.assertEqual(ours[i - 1], (shape, "bf16"))


class Steps(unittest.TestCase):
    def test_figures_of_both_sides(self):
        self.assertEqual(speed.read_bench_train(BENCH)["memory_gib"], 95.12)
        lines = '{"run": "8B:16:8192:1:bf16", "tokens_per_second": 16000, "tflops": 405, "memory_gib": 99}\n{"run": "1B:16:81'
        plan = "Time per step: 0.798 s (0.598 s to 0.997 s; h200_sxm, allow for 25%); 20,901 tokens/s per rank, mfu 60.1%, util 61.0%"
        c = Bench([(("bench train",), BENCH), (("plan", "--model.n_layers 16", "--training.seq_len 8192"), plan),
                   (("bench_pytorch",), TimedOut("not done", lines))])
        text, data = speed.steps(c)
        self.assertIn("| 8B x 16 layers, seq 8192 | bf16 | 20227 | 20901 | 512 | 49.2% | 95.1 | 94.0 | on | cudnn | 2048 | 8 of 32 blocks |  |  | 16000 | 405 | 99.0 | 1.26 |", text)
        self.assertIn("| 1B, seq 8192 | bf16 | 20227 | 20901 | 512 | 49.2% | 95.1 | 94.0 | on | cudnn | 2048 | 8 of 32 blocks |  |  | not measured |  |  |  |", text)
        self.assertIn("| 1B, seq 2048 | bf16 | 20227 |  | 512 | 49.2%", text)  # of which plan says nothing
        self.assertEqual(len(data["torch"]), 1)

    def test_all_that_is_said_of_recomputation_is_read(self):
        blocks = "8 of 32 blocks are recomputed"
        self.assertIn(f"; {blocks}\n", BENCH)
        for said, read in ((blocks, "8 of 32 blocks"), ("1 of 32 blocks is recomputed", "1 of 32 blocks"), ("nothing is recomputed", "nothing"),
                           ("norms and activations are recomputed", "norms and activations"),
                           ("all but attention is recomputed in 4 of 32 blocks", "all but attention in 4 of 32 blocks"),
                           ("all but attention is recomputed in 4 of 32 blocks, norms and activations in the others",
                            "all but attention in 4 of 32 blocks, norms and activations in the others")):
            self.assertEqual(speed.read_bench_train(BENCH.replace(blocks, said))["recomputed"], read)

    def test_plans_come_after_the_last_run_and_take_nothing_of_what_it_measured(self):
        said, kept = [], set()

        class Notes(Bench):
            def run(self, command, **_):
                said.append(command[1] if command[0] == "ottava" else "PyTorch")
                if said[-1] == "plan":
                    kept.add("--training.gemm_cache off" in " ".join(command))
                    raise TimedOut("no time was left")
                return BENCH
        c = Notes([])
        text, data = speed.steps(c)
        runs = len(shapes.benchmark_of(140).ours)
        self.assertEqual(said, ["bench"] * runs + ["PyTorch"] + ["plan"] * runs)
        self.assertEqual(kept, {True})
        # What is known after each run was said, for a report in the middle.
        self.assertEqual([len(noted["ottava"]) for noted in c.noted], [*range(1, runs + 1), runs])
        self.assertEqual({len(goals.step_goals(noted)) for noted in c.noted}, {len(goals.step_goals(data))})
        self.assertEqual({i["planned_tokens_per_second"] for i in data["ottava"]}, {None})  # what was measured stands

    def test_the_whole_8b_in_every_precision(self):
        commands = []
        c = Bench([])
        c.run = lambda command, **_: commands.append(" ".join(map(str, command))) or BENCH
        large = shapes.benchmark_of(140).shapes
        for precision in shapes.PRECISIONS:
            speed.train_ours(c, large["8B, seq 8192"], precision, None)
            speed.planned_speed(c, large["8B, seq 8192"], precision)
        for command in commands:  # each is measured and planned
            self.assertIn("--model.n_layers 32", command)
            self.assertIn("--optimizer.state_dtype bfloat16 --activation_checkpoint.mode selective", command)
        self.assertEqual([command.split()[1] for command in commands[:2]], ["bench", "plan"])
        said = dict(zip(shapes.PRECISIONS, commands[::2]))
        self.assertNotIn("float8", said["bf16"])
        self.assertNotIn("recipe_name", said["fp8"])
        self.assertIn("recipe_name rowwise", said["rowwise"])
        self.assertIn("recipe_name delayed", said["delayed"])
        self.assertIn("fast_accumulation all", said["fp8 fast"])
        self.assertIn("float8.auto true", said["auto"])
        speed.train_ours(c, large["8B, seq 8192, 4 micro-batches"], "fp8", None)
        self.assertIn("--training.local_batch_size 1", commands[-1])
        self.assertIn("--activation_checkpoint.mode selective --training.global_batch_size 4 --activation_checkpoint.selective_ac_option op",
                      commands[-1])
        self.assertNotIn("--optimizer.state_dtype", (speed.train_ours(c, large["1B, seq 8192"], "bf16", None), commands[-1])[1])

    def test_shapes_are_those_that_the_gpu_has_memory_for(self):
        for gib, lean, stack in ((140.4, "8B, seq 8192", "8B x 16 layers, seq 8192"),
                                 (79.6, "8B x 16 layers with BF16 moments, seq 8192", "8B x 8 layers, seq 8192"),
                                 (None, "8B x 16 layers with BF16 moments, seq 8192", "8B x 8 layers, seq 8192")):
            c = Bench([(("bench train",), BENCH)], gib)
            text, data = speed.steps(c)
            self.assertTrue(all("tokens_per_second" in item for item in data["ottava"]), gib)
            self.assertEqual(len(data["ottava"]), len(shapes.benchmark_of(gib).ours))
            self.assertEqual(data["shapes"][:3:2], [lean, stack])
            asked = [g["goal"] for g in goals.step_goals(data)]
            self.assertIn(f"{stack}: BF16 >= 1.15 x PyTorch's", asked)
            self.assertIn(f"{lean}: FP8 >= 1.40 x own BF16", asked)
            self.assertFalse([g for g in asked if lean in g and "PyTorch" in g])  # which has FP32 moments

    def test_memory_that_runs_out_beyond_the_plan_is_red_and_the_lighter_step_is_measured(self):
        cheap, full = "--activation_checkpoint.selective_ac_option op", "[cuda] GPU 0 cannot allocate 147188612608 bytes: 1 of 2 bytes are free"
        for answer in (full, "[graphs] cudaGraphInstantiate failed: out of memory", "[matmul] Matmul failed: CUBLAS_STATUS_ALLOC_FAILED"):
            c = Bench([(("bench train", cheap), Failed(f"exit code 1: ottava bench train\nottava: {answer}")), (("bench train",), BENCH)], 140.4, torch=False)
            with self.assertRaises(Failed) as red:
                speed.steps(c)
            self.assertIn(f"\n\n8B, seq 8192, bf16, with less recomputed: ottava: {answer}\n\n8B, seq 8192, 4 micro-batches, bf16, ", str(red.exception))
            items = red.exception.data["ottava"]
            self.assertEqual(len(items), len(shapes.benchmark_of(140).ours))
            self.assertEqual({i["tokens_per_second"] for i in items}, {20227})
            self.assertEqual(sum("beyond_the_plan" in i for i in items), 2)

    def test_where_too_little_memory_is_free_more_blocks_of_the_8b_are_recomputed_in_every_precision(self):
        lean, cheap = "8B, seq 8192", "--activation_checkpoint.selective_ac_option op"
        crowded = re.sub("cudnn [(]forward.*[)]", "flash (with its workspace the step takes 139.9 GiB, of 137.8 free)", BENCH).replace(
            "attention: cudnn", "attention: flash")
        refused = Failed("exit code 1: ottava bench train\n[memory] the step needs 128.6 GiB on cuda:0, 126.2 GiB are free for this rank; largest items: x")
        for gib, answer in ((140.4, BENCH), (140.4, crowded), (140.4, refused), (129.5, BENCH)):
            started = []
            c = Bench([(("bench train", cheap), answer), (("bench train",), BENCH)], gib, torch=False)
            run = c.run
            c.run = lambda command, **_: started.append(" ".join(map(str, command))) or run(command)
            text, data = speed.steps(c)
            items = [i for i in data["ottava"] if i["shape"] == lean]
            self.assertEqual({i["attention"] for i in items}, {"cudnn"})
            trained = [cheap in command for command in started if "bench train" in command and "n_layers 32" in command and "global" not in command]
            tried = 0 if gib < 130 else 1 if answer is not BENCH else len(items)
            self.assertEqual(trained, [True] * tried + [False] * (0 if answer is BENCH and gib > 130 else len(items)))

    def test_two_precisions_that_recompute_different_things_are_not_compared(self):
        cheap, asked = "--activation_checkpoint.selective_ac_option op", "8B, seq 8192: FP8 >= 1.40 x own BF16"
        refused = Failed("exit code 1: ottava bench train\n[memory] the step needs 128.6 GiB on cuda:0, 126.2 GiB are free for this rank; largest items: x")
        less = BENCH.replace("8 of 32 blocks are recomputed", "norms and activations are recomputed")
        self.assertNotEqual(less, BENCH)
        for answers, verdict in (([(("bench train", cheap, "float8"), refused), (("bench train", cheap), less)], "not measured"),
                                 ([(("bench train", cheap), refused)], "not met"), ([(("bench train", cheap), less)], "not met")):
            text, data = speed.steps(Bench([*answers, (("bench train",), BENCH)], 140.4, torch=False))
            goal = next(g for g in goals.step_goals(data) if g["goal"] == asked)
            self.assertEqual(goal["verdict"], verdict)
            if verdict == "not measured":
                self.assertEqual(goal["measured"], "two steps: with fp8 8 of 32 blocks recomputed, with bf16 norms and activations")

    def test_where_one_kind_of_cudnns_backward_fits_no_more_blocks_are_recomputed(self):
        times, too_large = "forward and backward of a layer: flash 9.1 ms, cudnn{} {} ms", "; with its workspace the step takes 139.9 GiB, of 137.8 free"
        cheap, attention = "--activation_checkpoint.selective_ac_option op", re.compile(r"(Attention: ).*")
        for chosen, said in (("cudnn, not deterministic", times.format(", not deterministic", 3.1)), ("cudnn", times.format("", 4.2)),
                             ("flash", times.format("", 9.9))):
            started = []
            mixed = attention.sub(rf"\1{chosen} ({said}{too_large})", BENCH).replace("attention: cudnn", f"attention: {chosen}")
            c = Bench([(("bench train", "--attention.deterministic false"), mixed), (("bench train",), BENCH)], 140.4, torch=False)
            run = c.run
            c.run = lambda command, **_: started.append(" ".join(map(str, command))) or run(command)
            speed.steps(c)
            of_8b = [command for command in started if "bench train" in command and "n_layers 32" in command]
            self.assertEqual([c for c in of_8b if cheap not in c], [])
            self.assertEqual(sum("--attention.deterministic false" in c for c in of_8b), 1)

    def test_what_does_not_fit_is_no_error(self):
        started = []
        small = Bench([], gib=48.0)
        small.run = lambda command, **_: started.append(" ".join(map(str, command))) or BENCH
        text, data = speed.steps(small)
        self.assertIn("| 3B, seq 8192 | bf16 | does not fit this GPU: 74.0 GiB are planned, 48.0 are there |", text)
        self.assertFalse([command for command in started if "--model.flavor 3B" in command])  # no process for it
        refused = Failed("exit code 1: ottava bench train\n[memory] the step needs 74.0 GiB on cuda:0, 71.2 GiB are free for this rank; largest items: x")
        text, data = speed.steps(Bench([(("bench train", "--model.flavor 3B"), refused), (("bench train",), BENCH)], gib=79.6))
        self.assertIn("does not fit this GPU: the step needs 74.0 GiB on cuda:0, 71.2 GiB are free for this rank |", text)
        verdicts = {g["goal"]: g["verdict"] for g in goals.step_goals(data)}
        self.assertEqual(verdicts["3B, seq 8192: BF16 >= 1.15 x PyTorch's"], "not measured")

    def test_a_run_that_hangs_leaves_time_to_the_others(self):
        now = [0.0]

        class Hangs(Bench):
            def seconds_left(self):
                return 400 - now[0]

            def run(self, command, until=None, **_):
                if "rowwise" in command:
                    now[0] = until
                    raise TimedOut("not done after 60 s: ottava bench")
                now[0] += 5
                return BENCH
        with mock.patch("time.monotonic", lambda: now[0]), self.assertRaises(Failed) as red:
            speed.steps(Hangs([], torch=False))
        items = red.exception.data["ottava"]
        self.assertEqual([i["precision"] for i in items if i.get("error") == "not done after 60 s"], ["rowwise"])
        self.assertGreater(len(items), 20)

    def test_no_time_is_not_measured_and_an_error_is_red(self):
        slow = Bench([(("bench train",), TimedOut("no time was left")), (("bench_pytorch",), "")])
        with mock.patch("speed.SECONDS_OF_A_RUN", 1000):
            text, data = speed.steps(slow)
        self.assertEqual((data["ottava"], data["torch"]), ([], []))
        self.assertEqual({g["verdict"] for g in goals.step_goals(data)}, {"not measured"})
        broken = Bench([(("bench train", "--quantize"), Failed("exit code 1\n[cuda] out of memory")), (("bench train",), BENCH)], torch=False)
        with self.assertRaisesRegex(Failed, "out of memory") as caught:
            speed.steps(broken)
        self.assertIn("no PyTorch here", str(caught.exception))
        self.assertEqual(caught.exception.data["ottava"][0]["tokens_per_second"], 20227)


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


class Trainings:
    """A Check whose trainings end at once, with the losses that `changed` alters by the run's name."""

    dry, device, graphs_fault = False, "cuda", ""

    def __init__(self, changed=None, said="CUDA graphs: on: step 1 runs as it is"):
        self.changed, self.said, self.commands = changed or {}, said, {}

    def copy_of(self, name, copy):
        return copy

    def train(self, name, device, steps, extra, first=1):
        self.commands[name] = extra
        losses = {step: 7 - step / 10 for step in range(first, steps + 1)} | self.changed.get(name, {})
        return Training(losses, {step: 1.0 for step in losses}, self.said)


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


class FirstTraining(unittest.TestCase):
    class Check:
        device, graphs_fault = "cuda", ""

        def __init__(self, *faults):
            self.faults = faults

        def seconds_left(self):
            return 30

        def train(self, name, device, steps, extra, seconds):
            fault = self.faults["off" in extra]
            if fault:
                raise fault
            return Training({1: 7.0}, {1: 1.0}, "")

    def test_later_runs_go_without_graphs_where_only_that_works(self):
        c = self.Check(Failed("exit code 1\n[graphs] the update cannot be recorded"), None)
        text, data = first_training.first_training(c)
        self.assertIn("cannot be recorded", c.graphs_fault)
        self.assertIn("work without CUDA graphs only", text)
        c = self.Check(None, None)
        first_training.first_training(c)
        self.assertEqual(c.graphs_fault, "")
        c = self.Check(TimedOut("not done after 18 s: ottava", "step 1"), Failed("exit code 1"))
        with self.assertRaisesRegex(Failed, "no training works here"):
            first_training.first_training(c)
        self.assertEqual(c.graphs_fault, "")

    def test_what_off_means_for_a_command(self):
        c = Check(dry=True, programs=".", seconds=60)
        self.addCleanup(c.close)
        off = ["--training.cuda_graphs", "off"]
        self.assertNotIn("--training.cuda_graphs", c.train_command("x", "cuda", 1, []))
        c.graphs_fault = "broken"
        self.assertEqual(c.train_command("x", "cuda", 1, [])[-2:], off)
        self.assertNotIn("--training.cuda_graphs", c.train_command("x", "cpu", 1, []))
        self.assertEqual(c.train_command("x", "cuda", 1, ["--training.cuda_graphs", "on"]).count("--training.cuda_graphs"), 1)


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


class Contract(unittest.TestCase):
    QUESTION = {"types": "e4m3 x e4m3", "scales": "tensor", "result": "f32", "beta": 0, "fast_accumulation": False, "m": 96, "n": 64, "k": 160}

    def line(self, number, layout):
        return f"asking {number} {layout}\n" + json.dumps({**self.QUESTION, "layout": layout, "algorithms": 3}) + "\n"

    def test_a_fault_costs_one_question(self):
        c, commands = Bench([]), []

        def execute(command):
            commands.append(command[1:])
            if command[-1] == "0":
                return 1, self.line(0, "TN") + self.line(1, "NN") + "asking 2 TT of block scales\nan illegal memory access"
            return 0, self.line(3, "NT")
        c.execute = execute
        with self.assertRaisesRegex(Failed, "by the question: TT of block scales") as red:
            contract.contract(c)
        self.assertEqual(commands, [["--from", "0"], ["--from", "3"]])
        self.assertEqual([a["layout"] for a in red.exception.data["answers"]], ["TN", "NN", "NT"])
        self.assertIn("| e4m3 x e4m3 | tensor | f32 | 0 | False | 96 | 64 | 160 | 3 | 3 |  | 3 |", str(red.exception))

    def test_what_is_offered_and_then_not_run_is_said(self):
        answers = [{**self.QUESTION, "layout": layout, "algorithms": 3, "ran": ran} for layout, ran in (("TN", "success"), ("NN", "not supported"))]
        c = Bench([])
        c.execute = lambda command: (0, "\n".join(map(json.dumps, answers)))
        self.assertIn("| 160 | 3 | 3, but not supported |", contract.contract(c)[0])

    def test_one_that_does_not_start_or_end(self):
        c, runs = Bench([]), []
        c.execute = lambda command: runs.append(command) or (1, "no NVIDIA driver is loaded")
        with self.assertRaisesRegex(Failed, "no NVIDIA driver"):
            contract.contract(c)
        self.assertEqual(len(runs), 1)
        c.execute = lambda command: (0, "nothing of use")
        with self.assertRaisesRegex(Failed, "exit code 0"):
            contract.contract(c)
        c.execute = mock.Mock(side_effect=TimedOut("not done after 9 s: probe", self.line(0, "TN") + "asking 1 NN\n"))
        with self.assertRaisesRegex(Failed, r"not done after 9 s\) by the question: NN"):
            contract.contract(c)


class Kernels(unittest.TestCase):
    def test_what_was_measured_outlives_a_recipe_that_ends_in_an_error_or_late(self):
        one = lambda name: {"name": name, "operands": "", "bound": "gemm", "bytes": 1, "flops": 1, "calls": 1, "seconds": 1e-3, "share_of_peak": 0.5}

        def step_kernels(_, recipe, seconds):
            if recipe == "tensorwise":
                raise Failed("exit code 1\nno algorithm")
            if recipe == "blockwise":
                raise TimedOut("not done after 9 s: ottava")
            self.assertNotEqual(recipe, "mxfp8")  # no time is left
            return {"copy_bytes_per_second": 1, "gemm_flops_per_second": 1, "kernels": [one(f"matmul {recipe}")]}

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
        for left, torch, first in ((60, False, 8), (55, True, 3), (10, True, 1.5), (300, True, 8)):
            asked = []
            c = Bench([], torch=torch)
            c.seconds_left = lambda: left
            with mock.patch.multiple(speed, step_kernels=lambda c, recipe, seconds: asked.append(seconds) or {**report, "kernels": []},
                                     torch_attention=lambda c: {"error": ""}, kernel_rows=lambda *_: []), self.assertRaises(NotMeasured):
                speed.kernels(c)
            self.assertEqual(asked[0], first)
            self.assertEqual(len(asked), 5)

    def test_recipes_that_the_gpu_lacks_are_not_started(self):
        for capability, recipes in ((90, ["tensorwise", "rowwise", "blockwise"]), (100, ["tensorwise", "mxfp8"]), (80, []),
                                    (None, ["tensorwise", "rowwise", "blockwise", "mxfp8"])):  # nothing says what it is
            started = []
            c = Bench([], torch=False)
            c.compute_capability = lambda: capability
            report = {"copy_bytes_per_second": 1, "gemm_flops_per_second": 1, "kernels": []}
            with mock.patch.multiple(speed, step_kernels=lambda c, recipe, seconds: started.append(recipe) or {**report, "kernels": []},
                                     torch_attention=lambda c: {"error": ""}, kernel_rows=lambda *_: []), self.assertRaises(NotMeasured):
                speed.kernels(c)
            self.assertEqual(started, [None, *recipes])


class Budget(unittest.TestCase):
    def test_all_stages_fit(self):
        self.assertLess(sum(seconds for _, seconds in main.STAGES), main.TOTAL)
        self.assertLess(main.TOTAL, 540)
        self.assertGreater(dict((s.__name__, t) for s, t in main.STAGES)["steps"], speed.TORCH_SECONDS)
        # Stages that are asked for by name share the time of all.
        self.assertEqual(main.budgets_of(["graphs", "attention"], 90), {"graphs": 40, "attention": 50})
        self.assertEqual(main.budgets_of(["graphs", "attention"], 9), {"graphs": 20, "attention": 25})
        # What a stage leaves over is the next one's.
        self.assertEqual(main.ends_of({"graphs": 20, "attention": 25}), {"graphs": 20, "attention": 45})

    def test_stages_of_a_call(self):
        names = [stage.__name__ for stage, _ in main.STAGES]
        self.assertEqual(main.stages_of(None, None), names)
        self.assertEqual(main.stages_of(None, "steps"), names[:-1])
        self.assertEqual(main.stages_of("steps", None), ["environment", "first_training", "steps"])  # which GPU, and whether graphs work there
        self.assertEqual(main.stages_of("kernels", "environment"), ["kernels"])
        self.assertEqual(main.stages_of("contract,environment", None), ["environment", "contract"])


class Script(unittest.TestCase):
    """gpu_check.sh in sources."""

    def tree_of(self, folder, installer):
        tree = Path(folder)
        (tree / "scripts/gpu_check").mkdir(parents=True)
        (tree / "scripts/gpu_check/__main__.py").write_text("import os, sys; print(os.environ.get('OTTAVA_GPU_CHECK_NOTE'), sys.argv[1:], os.environ.get('OTTAVA_TORCH_PYTHON'))")
        script = tree / "scripts/gpu_check.sh"
        script.write_bytes((Path(speed.__file__).parent.parent / "gpu_check.sh").read_bytes())
        self.program(tree / "scripts/install_dependencies.sh", installer)
        return tree, script

    @staticmethod
    def program(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def test_tests_are_built_where_the_quickstart_left_them_out(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, script = self.tree_of(folder, "exit 0\n")
            (tree / "build").mkdir()
            (tree / "build/build.ninja").write_text("")
            self.program(tree / "bin/cmake", f"echo \"$@\" >>'{tree}/calls'\n")
            env = {name: value for name, value in os.environ.items() if name != "OTTAVA_TORCH_PYTHON"}
            done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env={**env, "PATH": f"{tree}/bin:{os.environ['PATH']}"})
            self.assertEqual(done.stdout, f"None ['--programs', 'build', '--caller', '{os.getcwd()}'] None\n", done.stderr)
            self.assertEqual((tree / "calls").read_text().splitlines(),
                             ["--preset release -DOTTAVA_TESTS=ON", "--build build --target ottava ottava_device_tests"])

    def test_without_a_network_it_says_that_the_bundle_is_needed(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, script = self.tree_of(folder, "echo no network >&2\nexit 100\n")
            here = os.getcwd()
            run = lambda: subprocess.run(["bash", str(script), "--output", "x"], capture_output=True, text=True,
                                         env={**os.environ, "OTTAVA_TORCH_PYTHON": "venv/bin/python"})
            done = run()
            self.assertEqual(done.returncode, 2)
            self.assertIn("take a bundle: scripts/bundle.sh --fetch-cudnn", done.stderr)
            self.assertIn("share/ottava/scripts/gpu_check.sh --output DIR", done.stderr)
            for name in ("build/ottava", "build/tests/ottava_device_tests"):  # of an earlier build
                program = tree / name
                program.parent.mkdir(parents=True, exist_ok=True)
                program.touch(0o755)
            done = run()
            self.assertEqual(done.returncode, 0)
            self.assertEqual(done.stdout, "the build failed; these programs are of an earlier one "
                             f"['--programs', 'build', '--caller', '{here}', '--output', 'x'] {here}/venv/bin/python\n")


class Reports(unittest.TestCase):
    """A whole call, of stages that do as they like."""

    def call(self, stages, *words):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        written = []
        real = main.report.write

        def write(path, *rest):
            real(path, *rest)
            written.append(json.loads(path.with_name(path.name + ".json").read_text()))
        argv = ["gpu_check", "--output", folder.name, "--programs", folder.name, *words]
        said = io.StringIO()
        with mock.patch.object(main, "STAGES", stages), mock.patch.object(main.report, "write", write), mock.patch.object(sys, "argv", argv), \
                mock.patch.object(main.signal, "signal"), contextlib.redirect_stdout(said):
            try:
                code = main.main()
            except BaseException as e:
                code = e
        return code, written, sorted(p.suffix for p in Path(folder.name).iterdir()), said.getvalue()

    @staticmethod
    def stage(name, result=("fine", {}), fault=None):
        def run(c):
            run.left = c.seconds_left()
            if fault:
                raise fault
            return result
        run.__name__ = name
        return run

    def test_there_is_a_report_after_each_stage(self):
        stages = [(self.stage("one"), 100), (self.stage("two", fault=ValueError("odd")), 100), (self.stage("three", fault=KeyboardInterrupt()), 100)]
        code, written, kinds, _ = self.call(stages)
        self.assertIsInstance(code, KeyboardInterrupt)
        self.assertEqual([len(w["stages"]) for w in written], [0, 1, 2, 2])
        self.assertEqual(written[-1]["stages"][1]["report"], "odd")
        self.assertEqual(kinds, [".gz", ".json", ".md"])

    def test_what_a_stage_has_measured_is_in_the_report_however_the_call_ends(self):
        def steps(c):
            c.so_far("a row", {"ottava": []})
            c.so_far("two rows", {"ottava": []})
            raise KeyboardInterrupt
        code, written, _, _ = self.call([(self.stage("one"), 100), (steps, 100), (self.stage("three"), 100)])
        self.assertIsInstance(code, KeyboardInterrupt)
        self.assertEqual([[s["status"] for s in w["stages"]] for w in written],
                         [[], ["ok"], ["ok", "under way"], ["ok", "under way"], ["ok", "under way"]])
        self.assertEqual([w["stages"][1]["report"] for w in written[2:]], ["a row", "two rows", "two rows"])
        self.assertEqual({w["under_way"] for w in written[2:]}, {"steps"})
        # Of a stage that ends nothing is left but its end.
        def ends(c):
            c.so_far("half", {})
            return "all", {}
        code, written, _, _ = self.call([(ends, 100), (self.stage("two"), 100)])
        self.assertEqual([s["report"] for s in written[-1]["stages"]], ["all", "fine"])
        self.assertEqual(written[-1]["under_way"], "")

    def test_a_relative_output_is_the_callers(self):
        with tempfile.TemporaryDirectory() as caller:
            code, written, kinds, said = self.call([(self.stage("one"), 100)], "--output", "mine", "--caller", caller)
            self.assertEqual((code, kinds), (0, []))
            self.assertIn(f"{caller}/mine/gpu_check_", said)
            self.assertEqual(sorted(p.suffix for p in Path(caller, "mine").iterdir()), [".gz", ".json", ".md"])
            self.assertIn("`scripts/gpu_check.sh --output", next(Path(caller, "mine").glob("*.md")).read_text())
            self.assertNotIn("--caller", next(Path(caller, "mine").glob("*.md")).read_text())

    def test_time_that_is_left_over_is_the_next_ones(self):
        stages = [(self.stage("one"), 100), (self.stage("two"), 100)]
        code, written, _, _ = self.call(stages, "--seconds", "200")
        self.assertEqual(code, 0)
        self.assertGreater(stages[1][0].left, 190)
        # But not of one that would fill it where steps follow: these have it then.
        stages = [(self.stage(name), 100) for name in ("one", "sanitizer", "steps")]
        self.call(stages, "--seconds", "300")
        self.assertLessEqual(stages[1][0].left, 100)
        self.assertGreater(stages[2][0].left, 290)
        self.call(stages[:2], "--seconds", "200")
        self.assertGreater(stages[1][0].left, 190)

    def test_data_that_no_goal_can_be_made_of_costs_no_report(self):
        kernels = self.stage("kernels", ("text", {"kernels": [{"no": "bound"}]}))
        code, written, _, said = self.call([(kernels, 100), (self.stage("steps", ("text", {"ottava": 3})), 100)])
        self.assertEqual(code, 0)
        self.assertEqual([g["verdict"] for g in written[-1]["goals"]], ["not measured", "not measured"])
        self.assertIn("2 of 2 stages ok", said)

    def test_graphs_that_do_not_work_are_red_where_nobody_asked(self):
        def first_training_(c):
            c.graphs_fault = "[graphs] cannot be recorded"
            return "without", {}
        first_training_.__name__ = "first_training"
        stages = [(first_training_, 100), (same_bits.graphs, 10), (self.stage("contract"), 100)]
        with mock.patch.object(main, "first_training", first_training_):
            code, written, _, _ = self.call(stages, "--only", "first_training,contract")
        self.assertEqual(code, 1)
        self.assertEqual([(s["stage"], s["status"]) for s in written[-1]["stages"]],
                         [("first_training", "ok"), ("graphs", "FAILED"), ("contract", "ok")])


if __name__ == "__main__":
    unittest.main()
