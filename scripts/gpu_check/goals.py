"""What was aimed for, and whether it was reached: "met", "not met" or "not measured", with the numbers."""

BF16_OVER_TORCH, FP8_OVER_BF16, DEBUG_TOKENS, COPY_SHARE = 1.15, 1.40, 4e6, 0.85
# Of our kernels, which leave the tensor cores at most 33% and 20 to 23% of the data sheet's rate (tests/gpu/README.md); the product
# that they are compared with reaches up to 80% of it.
ATTENTION_SHARE = {"attention_forward": 0.33, "attention_backward": 0.20}
# Operations that move less are not what a copy of 1 GiB is, which they are compared with: starting and ending weigh more. On an H200
# an amax of 67 MB took 20 us, of which the copy's rate explains 16; one of 235 MB took 56, which it explains.
COPY_BYTES = 256e6
NOISE = 0.99  # two measurements of one thing


def goal(text, measured, is_met=None):
    return {"goal": text, "measured": measured, "verdict": "not measured" if is_met is None else "met" if is_met else "not met"}


def speeds(items):
    return {(i["shape"], i["precision"]): i["tokens_per_second"] for i in items if "tokens_per_second" in i}


def ratio_goal(text, a, b, least):
    """a / b >= least, both tokens/s."""
    if a is None or b is None:
        return goal(text, "")
    return goal(text, f"{a / b:.3f} ({a:.0f} and {b:.0f} tokens/s)", a / b >= least)


def own_goal(text, items, shape, precision, least):
    """The same of two of our rows, which are of one step only where they recompute the same."""
    of = {i["precision"]: i for i in items if i["shape"] == shape and "tokens_per_second" in i}
    ours, bf16 = of.get(precision, {}), of.get("bf16", {})
    if ours and bf16 and ours.get("recomputed") != bf16.get("recomputed"):
        return goal(text, f"two steps: with {precision} {ours.get('recomputed')} recomputed, with bf16 {bf16.get('recomputed')}")
    return ratio_goal(text, ours.get("tokens_per_second"), bf16.get("tokens_per_second"), least)


def step_goals(steps):
    """Of the stage's data, for the shapes that this GPU was to measure."""
    ours, torch = speeds(steps["ottava"]), speeds(steps["torch"])
    out = [ratio_goal(f"{s}: BF16 >= {BF16_OVER_TORCH} x PyTorch's", ours.get((s, "bf16")), torch.get((s, "bf16")), BF16_OVER_TORCH)
           for s in steps["raced"]]
    out += [own_goal(f"{s}: FP8 >= {FP8_OVER_BF16:.2f} x own BF16", steps["ottava"], s, "fp8", FP8_OVER_BF16)
            for s in steps["shapes"] if s.startswith("8B")]
    debug = steps["debug"]
    text, item = f"{debug}: >= {DEBUG_TOKENS / 1e6:.0f}M tokens/s with graphs", next(
        (i for i in steps["ottava"] if (i["shape"], i["precision"]) == (debug, "bf16") and "tokens_per_second" in i), None)
    out.append(goal(text, f"{item['tokens_per_second'] / 1e6:.2f}M, graphs {item['graphs']}",
                    item["tokens_per_second"] >= DEBUG_TOKENS and item["graphs"] == "on") if item else goal(text, ""))
    out += [own_goal(f"{s}: FP8 auto not below BF16 (beyond 1% of noise)", steps["ottava"], s, "auto", NOISE) for s in steps["auto"]]
    return out


def kernel_goals(report):
    out = []
    for k in report["kernels"]:
        is_copy = k["bound"] == "copy" and k["bytes"] >= COPY_BYTES
        least = ATTENTION_SHARE.get(k["name"], COPY_SHARE if is_copy else None)
        if least is None:
            continue
        of = "the measured BF16 product" if k["name"] in ATTENTION_SHARE else "the measured copy"
        text = f"{k['name']}: >= {100 * least:.0f}% of {of}"
        out.append(goal(text, f"{100 * k['share_of_peak']:.1f}%", k["share_of_peak"] >= least) if "share_of_peak" in k else goal(text, k.get("error", "")))
    return out


def memory_goal(parity):
    text = "GPU memory is the plan and at most the stated constant"
    if not parity or not parity["memory"]:
        return goal(text, "")
    measured = "; ".join(f"{m['model']}: {m['plan']:.0f} + {m['besides']:.0f} of {m['limit']:.0f} MiB" if "plan" in m else f"{m['model']}: {m['verdict']}"
                         for m in parity["memory"])
    return goal(text, measured, all(m["verdict"] == "as planned" for m in parity["memory"]))
