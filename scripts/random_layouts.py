#!/usr/bin/env python3
"""Trains small models in layouts drawn by a seed, and compares their losses with those of one rank: what no list of cases thought of.

    scripts/random_layouts.py --work /tmp/layouts [--seed 1] [--count 20] [--only 7] [--ottava build/ottava]

Each drawing is a model (widths, heads, masks, biases, tied embeddings), a precision or FP8 recipe, an optimizer, what is recomputed, and
a layout of up to eight ranks over all axes. Four runs of it: on one rank; in the layout, with a checkpoint in the middle; on from that
checkpoint in the same layout, whose losses must be the same to the last digit; on from it in another layout. A configuration that the
program refuses before the first step is drawn anew, and its sentence shown. About ten seconds a drawing on two
cores. Ends with 1 if a run failed or a loss was too far away; its folder is then kept, with the commands in commands.txt.
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys

from gpu_check.models import RECIPES

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, SAVED = 6, 3
# Relative distance between losses: sums in another order, in the precision of the activations; FP8 codes that flip with them. Muon
# rounds what it orthogonalizes to BF16.
BOUND = {"float32": 1e-6, "float32, Muon": 1e-4, "bfloat16": 1e-3, "FP8": 2e-3}
RECIPE = "quantize.linear.float8.recipe_name"


def write_text(file, draw):
    words = ("the", "octave", "above", "is", "played", "with", "one", "hand", "and", "heard", "by", "nobody")
    paragraphs = (" ".join(draw.choice(words) for _ in range(draw.randint(3, 60))) for _ in range(600))
    file.write_text("\n\n".join(paragraphs) + "\n")


def draw_model(draw):
    """What a layout does not change: the model, its arithmetic and the data of a step, as --key value."""
    fp8 = draw.random() < 0.4
    kv_heads = draw.choice((1, 2, 2, 3, 4))
    heads = kv_heads * draw.choice((1, 2, 2))
    keys = {
        "model.n_layers": draw.choice((1, 2, 3, 4, 6)),
        "model.n_heads": heads,
        "model.n_kv_heads": kv_heads,
        "model.head_dim": draw.choice((16, 32)) if fp8 else draw.choice((8, 16, 24)),
        "model.dim": draw.choice((64, 96, 128)) if fp8 else draw.choice((24, 32, 40, 48, 64)),
        "model.ffn_dim": draw.choice((128, 192, 256)) if fp8 else draw.choice((24, 40, 48, 96)),
        "model.tie_embeddings": draw.random() < 0.3,
        draw.choice(("model.qkv_bias", "model.qk_norm")): draw.random() < 0.5,
        "model.attn_mask_type": draw.choice(("causal", "block_causal")),
        "model.loss_chunk_tokens": draw.choice((0, 0, 16, 48)),
        "training.seq_len": draw.choice((32, 64, 512, 768)) if fp8 else draw.choice((16, 32, 48, 512, 768)),
        "training.global_batch_size": draw.choice((8, 12, 16)),
        "training.z_loss_weight": draw.choice((0, 0, 1e-3)),
        "training.max_norm": draw.choice((0.1, 1.0)),
        "training.seed": draw.randrange(1000),
        "training.mixed_precision_param": draw.choice(("float32", "bfloat16")) if not fp8 else "bfloat16",
        "activation_checkpoint.mode": draw.choice(("none", "selective", "selective", "full", "auto")),
        "activation_checkpoint.selective_ac_option": draw.choice(("op", "all_but_attention", "1", "2", "3")),
        "optimizer.name": draw.choice(("AdamW", "AdamW", "Muon")),
    }
    if fp8:
        keys |= {"model.converters": "quantize.linear.float8", RECIPE: draw.choice(RECIPES)}
    return keys


def draw_layout(draw, model):
    """Ranks and how they share the work. The sequences of a step stay the same."""
    fp8 = "model.converters" in model
    while True:
        ranks = draw.choice((2, 3, 4, 4, 6, 8, 8))
        rest, degrees = ranks, {}
        for axis in draw.sample(("pipeline", "tensor", "context", "replicate"), 4):
            degrees[axis] = draw.choice([d for d in (1, 2, 3, 4) if rest % d == 0])
            rest //= degrees[axis]
        degrees["shard"] = rest
        data = degrees["replicate"] * degrees["shard"]
        pipeline = degrees["pipeline"] > 1
        if (model["training.global_batch_size"] % data or model["model.n_heads"] % degrees["tensor"]
                or model["model.n_kv_heads"] % degrees["tensor"] and degrees["tensor"] % model["model.n_kv_heads"]
                or model["training.seq_len"] % degrees["tensor"]
                or degrees["context"] > 1 and model["training.seq_len"] % (256 * degrees["context"])
                or pipeline and (model["model.tie_embeddings"] or model.get(RECIPE) == "delayed" or degrees["pipeline"] > model["model.n_layers"])):
            continue
        sequences = model["training.global_batch_size"] // data
        local = draw.choice([n for n in (1, 2, 4, 8) if sequences % n == 0])
        keys = {
            "parallelism.data_parallel_replicate_degree": degrees["replicate"],
            "parallelism.data_parallel_shard_degree": degrees["shard"],
            "parallelism.context_parallel_degree": degrees["context"],
            "parallelism.tensor_parallel_degree": degrees["tensor"],
            "parallelism.pipeline_parallel_degree": degrees["pipeline"],
            "parallelism.fsdp_reshard_after_forward": draw.choice(("default", "never") if pipeline else ("default", "always", "never")),
            "parallelism.fsdp_reduce_every_microbatch": draw.choice(("auto", "false") if pipeline else ("auto", "true", "false")),
            "parallelism.fsdp_prefetch": draw.choice((0, 1, 2)),
            "parallelism.enable_async_tensor_parallel": draw.random() < 0.3,
            "parallelism.disable_loss_parallel": draw.random() < 0.2,
            "training.local_batch_size": local,
        }
        if pipeline:
            keys |= {
                "parallelism.pipeline_parallel_schedule": draw.choice(
                    ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")),
                "parallelism.pipeline_parallel_microbatch_size": draw.choice([n for n in (1, 2, 4) if local % n == 0]),
            }
        if fp8:
            for key in ("enable_fsdp_float8_all_gather", "enable_tp_float8_all_gather"):
                keys[f"quantize.linear.float8.{key}"] = draw.random() < 0.5
        return ranks, keys


def losses(folder):
    points = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        if "grad_norm" in point:
            points[point["step"]] = (point["loss_metrics/global_avg_loss"], point["grad_norm"])
    return points


class Refused(Exception):
    pass


class Failed(Exception):
    pass


def train(program, work, name, ranks, keys):
    """The losses of a run, by step. Refused if it ended with a sentence before the first step, Failed if in any other way."""
    folder = work / name
    options = [word for key, value in keys.items() for word in (f"--{key}", str(value).lower() if isinstance(value, bool) else str(value))]
    command = [program, *(["launch", "-n", str(ranks), "--"] if ranks > 1 else []), "train", str(work / "job.yaml"), "--job.dump_folder", str(folder), *options]
    with open(work / "commands.txt", "a") as file:
        file.write(" ".join(command) + "\n")
    with open(work / f"{name}.log", "w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=600, cwd=ROOT).returncode
    begun = (folder / "metrics.jsonl").exists() and bool(losses(folder))
    if code != 0:
        lines = (work / f"{name}.log").read_text(errors="replace").splitlines()
        sentence = next((line for line in lines if re.search(r"ottava: \[", line)), lines[-1] if lines else "nothing was said")
        raise (Failed if begun or code < 0 or code > 2 else Refused)(f"{name} ended with {code}: {sentence}")
    return losses(folder)


def distance(one, other, steps):
    return max((abs(one[step][0] / other[step][0] - 1) for step in steps), default=float("inf"))


def compare(program, work, draw):
    """Draws, trains, and returns a line about the drawing and the sentence that says what is wrong ("" if nothing is)."""
    model = draw_model(draw)
    kind = "FP8" if "model.converters" in model else model["training.mixed_precision_param"]
    if kind == "float32" and model["optimizer.name"] == "Muon":
        kind += ", Muon"
    recipe = model.get(RECIPE, model["training.mixed_precision_param"])
    (ranks, layout), (other_ranks, other) = draw_layout(draw, model), draw_layout(draw, model)
    write_text(work / "text.txt", draw)
    (work / "job.yaml").write_text(
        f"model: {{flavor: debugmodel, hf_assets_path: {ROOT}/configs/tokenizers/en-2256}}\n"
        f"training: {{dataset_path: {work}/text.txt, steps: {STEPS}, threads: 1}}\n"
        "optimizer: {lr: 2.0e-3}\nlr_scheduler: {warmup_steps: 2}\nmetrics: {log_freq: 1}\n"
        f"checkpoint: {{enable: true, interval: {SAVED}, keep_latest_k: 0}}\n")
    single = train(program, work, "single", 1, model | {"training.local_batch_size": 1, "checkpoint.enable": False})
    several = train(program, work, "several", ranks, model | layout)
    resumed = {}
    for name, n, keys in (("same", ranks, layout), ("other", other_ranks, other)):
        shutil.copytree(work / "several" / "checkpoint" / f"step-{SAVED}", work / name / "checkpoint" / f"step-{SAVED}")
        resumed[name] = train(program, work, name, n, model | keys)
    degrees = "x".join(str(layout[f"parallelism.{axis}_degree"]) for axis in (
        "data_parallel_replicate", "data_parallel_shard", "context_parallel", "tensor_parallel", "pipeline_parallel"))
    after = range(SAVED + 1, STEPS + 1)
    far = {"layout": distance(several, single, range(1, STEPS + 1)), "resumed elsewhere": distance(resumed["other"], single, after)}
    line = f"{recipe:>22}  {model['optimizer.name']:>5}  {degrees}  " + ", ".join(f"{name} {value:.1e}" for name, value in far.items())
    for run in (single, several):
        if sorted(run) != list(range(1, STEPS + 1)):
            return line, f"steps {sorted(run)} were logged"
    if any(resumed["same"].get(step) != several[step] for step in after):
        return line, f"resumed in the same layout: {resumed['same']}, not {several}"
    for name, value in far.items():
        if not value < BOUND[kind]:
            return line, f"{name}: {value:.1e} is more than {BOUND[kind]:.0e}"
    return line, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=pathlib.Path, help="folder for the runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="number of drawings")
    parser.add_argument("--only", type=int, help="this drawing alone")
    parser.add_argument("--ottava", default=str(ROOT / "build/ottava"))
    options = parser.parse_args()
    wrong = 0
    for k in [options.only] if options.only is not None else range(options.count):
        for attempt in range(40):
            work = (options.work / f"{options.seed}-{k}").absolute()
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            try:
                line, what = compare(str(pathlib.Path(options.ottava).absolute()), work, random.Random(f"{options.seed} {k} {attempt}"))
            except Refused as refusal:
                print(f"{k:>4}  refused: {refusal}", flush=True)
                continue
            except Failed as failure:
                line, what = "", str(failure)
            except subprocess.TimeoutExpired:
                line, what = "", "a run did not end within 600 s"
            print(f"{k:>4}  {line}{'' if not what else f'  WRONG: {what} ({work})'}", flush=True)
            break
        else:
            what = "forty drawings in a row were refused"
            print(f"{k:>4}  WRONG: {what}")
        wrong += bool(what)
        if not what:
            shutil.rmtree(work)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
