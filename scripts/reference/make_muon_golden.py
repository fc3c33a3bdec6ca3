#!/usr/bin/env python3
"""Makes tests/golden/muon.json: weights after three steps of torch.optim.Muon (PyTorch 2.9 or newer).

    python3 scripts/reference/make_muon_golden.py

Weights and gradients are numbers(count, seed), which tests/core/optim/muon_test.cpp makes too: the file holds only what came of them.
"""
import json
import pathlib

import torch

CASES = [
    {"rows": 12, "columns": 20, "nesterov": True, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.1},
    {"rows": 20, "columns": 12, "nesterov": True, "adjust_lr_fn": "original", "weight_decay": 0.0},
    {"rows": 8, "columns": 24, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.1},
]
LR, STEPS = 0.02, 3


def numbers(count, seed):
    out = []
    for i in range(count):
        x = ((i + 1) * 2654435761 + seed * 40503) % 2**32
        x = ((x ^ x >> 15) * 2246822519) % 2**32
        out.append(((x ^ x >> 13) % 2003 - 1001) / 1024)
    return out


def tensor(case, seed):
    return torch.tensor(numbers(case["rows"] * case["columns"], seed), dtype=torch.float32).reshape(case["rows"], case["columns"])


def main():
    out = []
    for case in CASES:
        weight = torch.nn.Parameter(tensor(case, 1))
        optimizer = torch.optim.Muon([weight], lr=LR, momentum=0.95, nesterov=case["nesterov"],
                                     weight_decay=case["weight_decay"], adjust_lr_fn=case["adjust_lr_fn"])
        for step in range(STEPS):
            weight.grad = tensor(case, 2 + step)
            optimizer.step()
        values = [float(f"{x:.6g}") for x in weight.detach().flatten().tolist()]
        momentum = optimizer.state[weight]["momentum_buffer"].flatten().tolist()
        out.append({**case, "lr": LR, "steps": STEPS, "weights": values, "momentum": [float(f"{x:.6g}") for x in momentum]})
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/muon.json"
    path.write_text(json.dumps({"made_by": f"torch {torch.__version__}", "cases": out}) + "\n")
    print(path)


if __name__ == "__main__":
    main()
