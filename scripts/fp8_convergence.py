#!/usr/bin/env python3
"""Trains the debug model in bf16 and in every FP8 recipe on the same data from the same weights and compares losses.

    scripts/fp8_convergence.py TEXT [--steps 300] [--binary build/ottava] [--out scripts]

Writes fp8_convergence.md (a table) and fp8_convergence.svg (smoothed loss, and its gap to bf16). The loss is a smoke test:
that the bytes are right is what the tests prove. About ten minutes on two quiet cores.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

from gpu_check.models import RECIPES

COLORS = ["#111111", "#1f77b4", "#17becf", "#9467bd", "#2ca02c", "#8c8c00", "#d62728", "#ff7f0e"]
LAST = 50


def options(args, recipe):
    given = {"training.dataset_path": args.text, "training.steps": args.steps, "training.local_batch_size": 8,
             "training.seq_len": 256, "optimizer.lr": 8e-4, "lr_scheduler.warmup_steps": 20, "metrics.log_freq": 1, "training.threads": 1, "checkpoint.enable": "false"}
    if recipe != "bf16":
        given |= {"model.converters": "quantize.linear.float8", "quantize.linear.float8.recipe_name": recipe}
    if recipe == "delayed":
        given["quantize.linear.float8.amax_history_length"] = 16
    return given


def losses(args, recipe):
    with tempfile.TemporaryDirectory() as folder:
        command = [args.binary, "train", "configs/debug.yaml", "--job.dump_folder", folder]
        for key, value in options(args, recipe).items():
            command += [f"--{key}", str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(pathlib.Path(folder) / "metrics.jsonl") as lines:
            curve = [record["loss_metrics/global_avg_loss"] for record in map(json.loads, lines)
                     if "loss_metrics/global_avg_loss" in record]
    assert len(curve) == args.steps, f"{recipe}: {len(curve)} losses of {args.steps} steps"
    return curve


def smooth(curve, width=20):
    return [sum(curve[max(0, i - width + 1):i + 1]) / (i + 1 - max(0, i - width + 1)) for i in range(len(curve))]


def path(values, left, top, width, height, low, high):
    span = max(len(values) - 1, 1)
    points = ((left + width * i / span, top + height * (high - min(max(v, low), high)) / (high - low)) for i, v in enumerate(values))
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def plot(curves, out):
    """Two panels: loss, and the smoothed gap to bf16 in percent."""
    left, width, height = 60, 560, 200
    base = smooth(curves["bf16"])
    panels = [("loss, mean of 20 steps", {name: smooth(curve) for name, curve in curves.items()}),
              ("gap to bf16 of that mean, percent",
               {name: [100 * (a - b) / b for a, b in zip(smooth(curve), base)] for name, curve in curves.items()})]
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="820" height="520" font-family="sans-serif" font-size="12">',
             '<rect width="820" height="520" fill="white"/>']
    for index, (title, drawn) in enumerate(panels):
        top = 30 + index * (height + 50)
        values = [v for curve in drawn.values() for v in curve]
        low, high = min(values), max(values)
        parts.append(f'<text x="{left}" y="{top - 8}">{title}</text>'
                     f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>')
        for fraction in (0, 0.25, 0.5, 0.75, 1):
            y = top + height * fraction
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{high - (high - low) * fraction:.2f}</text>')
        for (name, curve), color in zip(drawn.items(), COLORS):
            parts.append(f'<path d="{path(curve, left, top, width, height, low, high)}" fill="none" stroke="{color}" stroke-width="1.3"/>')
    for i, (name, color) in enumerate(zip(curves, COLORS, strict=True)):
        parts.append(f'<rect x="640" y="{34 + 20 * i}" width="14" height="4" fill="{color}"/><text x="660" y="{40 + 20 * i}">{name}</text>')
    steps = len(base)
    parts.append(f'<text x="{left}" y="510">step 1</text><text x="{left + width}" y="510" text-anchor="end">step {steps}</text></svg>')
    out.write_text("\n".join(parts) + "\n")


def table(args, curves):
    mean = {name: sum(curve[-LAST:]) / LAST for name, curve in curves.items()}
    rows = [f"| {name} | {curve[0]:.4f} | {mean[name]:.5f} | {100 * (mean[name] - mean['bf16']) / mean['bf16']:+.4f}% "
            f"| {100 * sum(abs(a - b) / b for a, b in zip(curve[-LAST:], curves['bf16'][-LAST:])) / LAST:.4f}% |"
            for name, curve in curves.items()]
    return "\n".join([
        "# Convergence of the FP8 recipes", "",
        f"Made by `scripts/fp8_convergence.py`: the debug model, {args.steps} steps of 8 sequences of 256 tokens of the sample text, the",
        "same weights and data for all, every linear layer but the output in FP8. *Gap* is that of the mean loss of the last",
        f"{LAST} steps to bf16's, *distance* the mean over those steps of the distance of each. It must be above zero (the recipe did",
        "run) and small; it proves nothing else.", "",
        "| recipe | first loss | mean of the last 50 | gap | distance |", "|---|---|---|---|---|", *rows, "",
        "![loss and gap](fp8_convergence.svg)", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--binary", default="build/ottava")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("scripts"))
    args = parser.parse_args()
    curves = {}
    for recipe in ["bf16", *RECIPES]:
        curves[recipe] = losses(args, recipe)
        print(f"{recipe}: {curves[recipe][0]:.4f} -> {sum(curves[recipe][-LAST:]) / LAST:.5f}", flush=True)
    plot(curves, args.out / "fp8_convergence.svg")
    (args.out / "fp8_convergence.md").write_text(table(args, curves))


if __name__ == "__main__":
    main()
