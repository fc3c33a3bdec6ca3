#!/usr/bin/env python3
"""Golden files for the model: Hugging Face transformers in FP32 on tiny models.

    pip install torch transformers safetensors        (in a virtual environment outside the source tree)
    scripts/reference/make_llama_golden.py tests/golden/llama

Each case is a folder that a user could train from: config.json and model.safetensors as `save_pretrained` writes them,
and golden.safetensors with tokens, targets, logits, the summed loss and the gradient of the mean loss with respect to
every parameter. Rewriting them must change nothing but the versions in VERSIONS.txt.
"""

import json
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file

BASE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=80, rms_norm_eps=1e-5,
            rope_theta=10000.0, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", factor=4.0)
# Pairs 2 to 6 of the 8 lie between the two; most positions are beyond the original length.
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=0.25, beta_slow=0.0005)
CASES = {
    "gqa_head16": ("llama", dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)),
    "tied_rope_scaling_head64": ("llama", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=64,
                                               tie_word_embeddings=True, rope_scaling=LLAMA3)),
    "head128": ("llama", dict(num_attention_heads=1, num_key_value_heads=1, head_dim=128)),
    "qwen2_bias": ("qwen2", dict(num_attention_heads=2, num_key_value_heads=1)),
    "qwen3_qk_norm": ("qwen3", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=16)),
    "linear": ("llama", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=16, rope_scaling=LINEAR)),
    # As in Mistral-Nemo head_dim is not hidden_size / num_attention_heads. The window holds the whole sequence.
    "mistral": ("mistral", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32, sliding_window=21)),
    "yarn": ("qwen3", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=16, rope_scaling=YARN)),
}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
}
BATCH, SEQUENCE = 2, 21


def make(name: str, family: str, extra: dict, root: Path) -> None:
    torch.manual_seed(sum(map(ord, name)))
    config_class, model_class = CLASSES[family]
    config = config_class(**{**BASE, **extra})
    config._attn_implementation = "eager"
    model = model_class(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than a fresh model's weights, so that every nonlinearity is exercised.
            parameter.copy_(torch.randn_like(parameter) * 0.25 + (1.0 if parameter.dim() == 1 else 0.0))
    folder = root / name
    model.save_pretrained(folder)
    tokens = torch.randint(0, config.vocab_size, (BATCH, SEQUENCE))
    targets = torch.randint(0, config.vocab_size, (BATCH, SEQUENCE))
    targets[0, 3] = targets[1, SEQUENCE - 1] = -100
    logits = model(input_ids=tokens).logits
    loss_sum = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100,
                                                 reduction="sum")
    (loss_sum / (targets != -100).sum()).backward()
    golden = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach().contiguous(),
              "loss_sum": loss_sum.detach().reshape(1)}
    for parameter_name, parameter in model.named_parameters():
        golden["grad." + parameter_name] = parameter.grad.contiguous()
    save_file(golden, folder / "golden.safetensors")
    (folder / "generation_config.json").unlink(missing_ok=True)


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    for name, (family, extra) in CASES.items():
        make(name, family, extra, root)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__}
    (root / "VERSIONS.txt").write_text("".join(f"{k} {v}\n" for k, v in versions.items()))
    print(json.dumps(versions))


if __name__ == "__main__":
    main()
