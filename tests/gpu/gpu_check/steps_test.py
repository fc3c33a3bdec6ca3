#!/usr/bin/env python3
"""Whole steps: what is run, in which order, and what is read from it."""

import re
import unittest
from unittest import mock

from stand_ins import BENCH, Bench
import goals
import shapes
import speed
from check import Failed, TimedOut


def item(shape, precision, tokens, graphs="on"):
    return {"shape": shape, "precision": precision, "tokens_per_second": tokens, "graphs": graphs}


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


if __name__ == "__main__":
    unittest.main()
