#!/usr/bin/env python3
"""Golden RoPE scalings: what Hugging Face transformers makes of forms of config.json.

    pip install torch transformers        (in a virtual environment outside the source tree)
    scripts/reference/make_rope_golden.py tests/golden/rope.json

A list of {name, config, frequencies, attention_factor}: the text of a config.json, the inverse frequencies that a model
computes from it in FP32, and the factor of its cosines and sines. Rewriting it must change nothing.
"""

import json
import sys
import tempfile
from pathlib import Path

import transformers
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

BASE = dict(model_type="llama", hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, vocab_size=16, max_position_embeddings=4096)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
CASES = {
    "none": dict(rope_theta=5e5),
    "linear": dict(rope_theta=1e5, rope_scaling=dict(type="linear", factor=4.0)),
    "linear, newer form": dict(rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=1e6)),
    "llama3": dict(rope_theta=5e5, rope_scaling=LLAMA3 | dict(original_max_position_embeddings=512)),
    "llama3, length left out": dict(rope_theta=5e5, rope_scaling=LLAMA3),
    "yarn": dict(rope_theta=1e6, rope_scaling=YARN),
    "yarn by type": dict(rope_theta=1e4, rope_scaling=dict(type="yarn", factor=16, original_max_position_embeddings=256)),
    "yarn, newer form": dict(rope_parameters=YARN | dict(rope_theta=1e4)),
    "yarn, length left out": dict(rope_theta=1e4, rope_scaling=dict(rope_type="yarn", factor=4.0)),
    "yarn, length beside": dict(rope_theta=1e4, original_max_position_embeddings=2048,
                                rope_scaling=dict(rope_type="yarn", factor=4.0)),
    "yarn, betas": dict(rope_theta=1e4, rope_scaling=YARN | dict(beta_fast=8, beta_slow=0.5)),
    "yarn, betas null": dict(rope_theta=1e4, rope_scaling=YARN | dict(beta_fast=None, attention_factor=None)),
    "yarn, attention": dict(rope_theta=1e4, rope_scaling=YARN | dict(attention_factor=0.75)),
    "yarn, mscales": dict(rope_theta=1e4, rope_scaling=YARN | dict(factor=40, mscale=1.0, mscale_all_dim=0.707)),
    "yarn, one mscale": dict(rope_theta=1e4, rope_scaling=YARN | dict(mscale=0.5)),
    "yarn, mscale 0": dict(rope_theta=1e4, rope_scaling=YARN | dict(mscale=0.5, mscale_all_dim=0)),
    "yarn, attention before mscales": dict(rope_theta=1e4, rope_scaling=YARN | dict(attention_factor=1.5, mscale=0.5,
                                                                                    mscale_all_dim=1.0)),
    "yarn, not truncated": dict(rope_theta=1e4, rope_scaling=YARN | dict(truncate=False)),
    "yarn, one edge": dict(rope_theta=1e4, rope_scaling=YARN | dict(beta_fast=4, beta_slow=4, truncate=False)),
    "yarn, short": dict(rope_theta=1e4, rope_scaling=YARN | dict(original_max_position_embeddings=2)),
    "yarn, small theta": dict(rope_theta=1.5, rope_scaling=YARN),
    "yarn by 1": dict(rope_theta=1e4, rope_scaling=YARN | dict(factor=1.0)),
    "yarn, wide head": dict(head_dim=128, rope_theta=1e6, rope_scaling=YARN | dict(original_max_position_embeddings=512)),
    "yarn of qwen2": dict(model_type="qwen2", rope_theta=1e6, rope_scaling=YARN),
    "yarn of qwen3": dict(model_type="qwen3", head_dim=64, rope_theta=1e6, rope_scaling=YARN),
}


def made(name: str, extra: dict) -> dict:
    text = json.dumps(BASE | extra)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(text)
        config = transformers.AutoConfig.from_pretrained(folder)
    rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
    return {"name": name, "config": json.loads(text), "frequencies": rotary.inv_freq.tolist(),
            "attention_factor": float(rotary.attention_scaling)}


def main() -> None:
    cases = [json.dumps(made(name, extra)) for name, extra in CASES.items()]
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(cases) + "\n]\n")


if __name__ == "__main__":
    main()
