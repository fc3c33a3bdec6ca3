#!/usr/bin/env python3
"""Pages of `ottava report` in headless Chromium: pictures to look at, and checks of what only a browser knows.

    scripts/report_screenshots.py [--ottava build/ottava] [--out outputs/report]

Makes two runs of numbers (BF16 and FP8, one restarted, with a spike and a nan), a report of each and of both, and pictures:
light, dark, phone and print. Fails where a page logs an error, asks for anything from outside, draws no curve, is wider than
a phone, or does not answer to the keyboard.
"""
import argparse
import html
import json
import math
import pathlib
import random
import re
import subprocess
import sys
import tempfile

LAYERS, OPERANDS = 6, ("attention.wqkv", "attention.wo", "feed_forward.w13", "feed_forward.w2")


def write_run(folder, name, steps, seed, float8):
    rng = random.Random(seed)
    run = folder / name
    run.mkdir(parents=True)
    begun, tokens, ema = 1_790_000_000, 32_768, 0.0
    cut = steps * 6 // 10
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            ema = 0.9 * ema + 0.1 * rng.gauss(0, 1)
            loss = 2.1 + 6.1 * math.exp(-step / (0.16 * steps)) + 0.08 * ema + (0.004 if float8 else 0)
            rate = (41_500 if float8 else 31_000) * (1 + 0.012 * rng.gauss(0, 1)) * (0.4 if step == 1 else 1)
            norm = 0.6 + 3 * math.exp(-step / (0.05 * steps)) + 0.1 * abs(rng.gauss(0, 1)) + (9 if step == steps * 3 // 4 else 0)
            line = {
                "step": step, "time": begun + step * tokens / rate + (900 if step > cut and float8 else 0),
                "loss_metrics/global_avg_loss": loss, "grad_norm": norm, "throughput(tps)": rate, "tflops": rate * 0.012,
                "mfu(%)": rate / 800, "utilization(%)": rate / (1000 if float8 else 730), "time_metrics/end_to_end(s)": tokens / rate,
                "time_metrics/data_loading(%)": abs(rng.gauss(0.4, 0.2)), "memory/max_active(GiB)": (34.2 if float8 else 41.7) - 2 * (step < 3),
                "n_tokens_seen": step * tokens * 8, "lr": 3e-4 * min(1, step / 40) * (0.55 + 0.45 * math.cos(math.pi * step / steps)),
                "loss_scale": 1.0, "skipped_steps": float(step > steps // 2),
            }
            if step == steps // 2:
                line["grad_norm"] = None
                line["non_finite"] = {"grad_norm": "nan"}
            for layer in range(LAYERS if float8 and step % 5 == 0 else 0):
                for k, operand in enumerate(OPERANDS):
                    for role, base in (("x", -4.2), ("w", -5.5), ("dy", -2.9)):
                        key = f"fp8/layers.{layer}.{operand}/{role}/"
                        depth = layer / LAYERS
                        f = 10 ** (base + depth + 0.3 * k * (role == "dy") + 0.8 * step / steps + 0.2 * rng.gauss(0, 1))
                        spike = role == "dy" and layer == LAYERS - 1 and k == 3 and abs(step - steps * 3 // 4) < 25
                        line[key + "underflow"] = min(1, f * (30 if spike else 1))
                        line[key + "saturation"] = 0.002 if spike else 0
                        line[key + "scale"] = 2.0 ** round(6 - 2 * depth + 3 * step / steps * (role == "dy"))
                        line[key + "amax"] = 448 / line[key + "scale"]
            for source, over in (("books", -0.2), ("code", -0.9), ("web", 0.3)):
                line[f"mixture/{source}/loss"] = loss + over + 0.05 * rng.gauss(0, 1)
            file.write(json.dumps(line) + "\n")
            if step % (steps // 10) == 0:
                learned = 1 - math.exp(-step / steps)
                file.write(json.dumps({"step": step, "time": line["time"], "validation_metrics/loss": loss + 0.09,
                                       "validation_metrics/wiki/loss": loss + 0.12, "validation_metrics/code/loss": loss - 0.7,
                                       "evaluation_metrics/hellaswag/acc_norm": 0.25 + 0.4 * learned,
                                       "evaluation_metrics/arc_easy/acc_norm": 0.25 + 0.6 * learned}) + "\n")
    config = (f"model: {{flavor: 8B, converters: [{'quantize.linear.float8' if float8 else ''}]}}\n"
              f"training: {{steps: {steps}, seq_len: 8192}}\noptimizer: {{lr: 3.0e-4}}\n"
              "quantize: {linear: {float8: {alert_underflow: 0.05, alert_saturation: 0.001}}}\n")
    gib = 1 << 30
    start = {
        "event": "start", "schema": 1, "steps": steps, "description": "", "device": "cuda:0", "ranks": 8, "mesh": "pp 2 x dp_replicate 1 x dp_shard 2 x cp 2 x tp 1 = 8",
        "pipeline": {"schedule": "1F1B, 2 ranks with 1 stage each, 8 micro-batches: 11.1% of the time idle where stages take the same time",
                     "ranks": ["embedding, layers 0 to 16; 2 micro-batches in flight at most", "layers 17 to 31, head; 1 micro-batch in flight at most"]},
        "model": "llama3 8B", "parameters": 8_030_261_248, "tokens_per_step": tokens * 8, "config": config,
        "plan": {"memory_bytes": int((31.5 if float8 else 39.1) * gib), "flops": {}, "sent_bytes": {},
                 "memory": {"weights": 4 * gib, "optimizer": 8 * gib, "gradients": 4 * gib,
                            "activations": int((12.5 if float8 else 20.1) * gib), "scratch": 3 * gib}}}
    events = [{**start, "time": begun, "step": 0, "text": ""}]
    if float8:
        events += [{"time": begun + 700, "step": cut, "event": "stopped", "text": "SIGTERM; saved"},
                   {**start, "time": begun + 1600, "step": cut, "text": f"goes on after step {cut}"},
                   {"time": begun + 2000, "step": steps * 3 // 4, "event": "alert",
                    "text": "dy of layers.5.feed_forward.w2 saturates: 0.2% of its elements"}]
    events.append({"time": begun + 2600, "step": steps, "event": "finished", "text": ""})
    (run / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return run


def chromium(*arguments):
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=4000",
               "--enable-logging=stderr", "--v=0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    if done.returncode or console:
        sys.exit("report_screenshots.py: " + "\n".join(console or [done.stderr[-2000:]]))
    return done.stdout


# Zooms in, moves, and shows all again on the first chart; on the map of FP8 operands one cell back, and its curve.
KEYS = """<script>
const press = (on, key) => on.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const plot = document.querySelector(".plot"), map = document.querySelector("canvas.map");
const labels = () => [...plot.querySelectorAll(".dygraph-axis-label-x")].map((e) => e.textContent).join(" ");
const seen = { stops: document.querySelectorAll("[tabindex='0']").length, axis: [labels()], tip: [], curves: [] };
for (const key of ["+", "ArrowRight", "0"]) { press(plot, key); seen.axis.push(labels()); }
if (map) for (const key of ["Shift", "ArrowLeft", "Enter"]) {
  press(map, key);
  seen.tip.push(document.querySelector(".map-tip").textContent);
  seen.curves.push(document.querySelectorAll(".plot").length);
}
document.body.dataset.keys = JSON.stringify(seen);
</script>"""


def check_keys(page, dom):
    seen = json.loads(html.unescape(re.search(r'data-keys="([^"]*)"', dom).group(1)))
    axis, tip, curves = seen["axis"], seen["tip"], seen["curves"]
    if seen["stops"] < 8 or len(set(axis[:3])) != 3 or axis[3] != axis[0]:
        sys.exit(f"report_screenshots.py: the first chart of {page} does not follow its keys: {seen}")
    if not tip or tip[1] == tip[0] or curves[2] != curves[1] + 1:
        sys.exit(f"report_screenshots.py: the map of FP8 operands of {page} does not follow its keys: {seen}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ottava", default="build/ottava")
    parser.add_argument("--out", default="outputs/report")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("runs", nargs="*", help="real runs instead")
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        runs = options.runs or [str(write_run(pathlib.Path(work), "bf16", options.steps, 1, False)),
                                str(write_run(pathlib.Path(work), "fp8", options.steps, 2, True))]
        pages = {"one": runs[-1:], "both": runs}
        for name, of in pages.items():
            page = out / f"{name}.html"
            subprocess.run([*options.ottava.split(), "report", *of, "--output", str(page)], check=True)
            url = page.resolve().as_uri()
            shots = [("light", "1280,4200", []), ("phone", "400,7600", [])]
            shots.append(("dark", "1280,4200", ["--blink-settings=preferredColorScheme=0"]))
            for look, size, more in shots:
                chromium(f"--window-size={size}", f"--screenshot={out / f'{name}_{look}.png'}", *more, url)
            chromium(f"--print-to-pdf={out / f'{name}.pdf'}", url)
            measured = pathlib.Path(work, "measured.html")
            measured.write_text(page.read_text() + "<script>document.body.dataset.widths = "
                                "document.documentElement.scrollWidth + '/' + innerWidth</script>")
            dom = chromium("--window-size=500,900", "--dump-dom", measured.as_uri())
            wide, window = map(int, re.search(r'data-widths="(\d+)/(\d+)"', dom).groups())
            if wide > window:
                sys.exit(f"report_screenshots.py: {page} is {wide} wide in a window of {window}")
            if not options.runs:
                measured.write_text(page.read_text() + KEYS)
                check_keys(page, chromium("--window-size=1280,900", "--dump-dom", measured.as_uri()))
            if len(re.findall("<canvas", dom)) < 16:
                sys.exit(f"report_screenshots.py: {page} draws too few curves")
    print(f"pictures in {out}: look at them")


if __name__ == "__main__":
    main()
