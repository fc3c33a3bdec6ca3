#!/usr/bin/env python3
"""Loads a checkpoint folder (`step-N`) with Hugging Face transformers, exactly as it is, and prints what it sees.

    python check_hf_load.py FOLDER [--tokens 1,2,3] [--dtype float32]

Checks: every tensor of the folder is used and none is missing, the weights are those of the file bit by bit,
tied weights are tied, logits are finite, and saving with transformers and loading again gives the same logits.
Needs `torch`, `transformers`, `safetensors` in an environment outside the source tree. Exits with 1 when something
is wrong.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM


def stored_tensors(folder):
    index = pathlib.Path(folder) / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    tensors = {}
    for name in files:
        with safe_open(pathlib.Path(folder) / name, "pt") as f:
            assert f.metadata() == {"format": "pt"}, f.metadata()
            for key in f.keys():
                tensors[key] = f.get_tensor(key)
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tokens", default="1,2,3,4,5")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()

    config = AutoConfig.from_pretrained(args.folder)
    dtype = getattr(torch, args.dtype)
    model, info = AutoModelForCausalLM.from_pretrained(args.folder, torch_dtype=dtype, output_loading_info=True)
    model.eval()
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    problems = [f"{kind}: {sorted(info[kind])}" for kind in kinds if info[kind]]
    if config.tie_word_embeddings and model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr():
        problems.append("embeddings are not tied")
    state = model.state_dict()
    stored = stored_tensors(args.folder)
    for name, tensor in stored.items():
        if name not in state or not torch.equal(state[name], tensor.to(dtype)):
            problems.append(f"{name} differs from the file")
    tokens = torch.tensor([[int(t) for t in args.tokens.split(",")]])
    with torch.no_grad():
        logits = model(tokens).logits
    if not torch.isfinite(logits).all():
        problems.append("logits are not finite")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype).eval()
        with torch.no_grad():
            if not torch.equal(again(tokens).logits, logits):
                problems.append("logits differ after save_pretrained")

    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    count = sum(p.numel() for p in model.parameters())
    print(f"{type(model).__name__}: {count} parameters, {len(stored)} tensors, rope {rope}")
    print(f"eos {config.eos_token_id}, last logits {logits[0, -1, :4].tolist()}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
