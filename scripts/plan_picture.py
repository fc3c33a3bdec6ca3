#!/usr/bin/env python3
"""plan_picture.py [--program build/ottava] [--out apps/predict/pictures/plan.svg]: the README's picture of a predicted step.

Draws what `ottava plan --trace` writes: a row for compute and one for each mesh axis, over the time of the step.
"""

import argparse
import gzip
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAN = ["configs/llama3_8b.yaml", "--gpus", "16", "--device", "h100_sxm", "--network", "ib_400", "--parallelism.tensor_parallel_degree", "2"]
TITLE = "The predicted step of the 8B model on 16 H100, tp 2 x dp_shard 8, 400 Gbit/s between machines"
WIDTH, LEFT, ROW, GAP, TOP, PIXEL = 1000, 120, 34, 12, 62, 0.6
COLOURS = {"products": "#0072b2", "attention": "#009e73", "other operations": "#7fb2d6", "between ranks": "#d55e00", "compute waits": "#e8c7a8"}


def kind_of(event):
    operation = event.get("args", {}).get("operation", "")
    if event["cat"] == "wait":
        return "compute waits"
    if event["name"].startswith("nccl"):
        return "between ranks"
    return "products" if "matmul" in operation else "attention" if operation.startswith("attention") else "other operations"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/ottava")
    parser.add_argument("--out", default="apps/predict/pictures/plan.svg")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "plan.json.gz")
        subprocess.run([a.program, "plan", *PLAN, "--trace", trace], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = sorted((e for e in events if e["ph"] == "X" and e["cat"] in ("kernel", "wait")), key=lambda e: e["ts"])
    step = next(e["dur"] for e in events if e["ph"] == "X" and e["name"].startswith("ProfilerStep"))
    tracks = sorted({e["tid"] for e in slices})
    scale = (WIDTH - LEFT - 20) / step
    out = []
    for row, track in enumerate(tracks):
        y = TOP + row * (ROW + GAP)
        out.append(f'<text x="{LEFT - 10}" y="{y + ROW / 2 + 4}" text-anchor="end">{names[track].replace("axis ", "")}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{step * scale:.1f}" height="{ROW}" fill="#8882"/>')
        open_kind, begin, end = None, 0, 0

        def close():
            if open_kind:
                out.append(f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 0.1):.1f}" height="{ROW}" fill="{COLOURS[open_kind]}"/>')

        for e in (e for e in slices if e["tid"] == track):
            kind, b = kind_of(e), LEFT + e["ts"] * scale
            if kind != open_kind and b - begin >= PIXEL or b - end > PIXEL or open_kind is None:
                close()
                open_kind, begin = kind, b
            end = b + e["dur"] * scale
        close()
    height = TOP + len(tracks) * (ROW + GAP) + 14
    for k in range(5):
        x = LEFT + k * step * scale / 4
        out.append(f'<text x="{x:.0f}" y="{height - 4}" text-anchor="{"start middle middle middle end".split()[k]}">{k * step / 4e3:.0f} ms</text>')
    legend, x = [], LEFT
    for name, colour in COLOURS.items():
        legend.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="44">{name}</text>')
        x += 32 + 7 * len(name)
    Path(ROOT, a.out).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 6}" font-family="sans-serif" font-size="13" fill="#888">\n'
        f'<text x="{LEFT}" y="20" font-weight="bold">{TITLE}</text>\n' + "\n".join(legend + out) + "\n</svg>\n")


if __name__ == "__main__":
    main()
