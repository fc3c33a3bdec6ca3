#!/usr/bin/env python3
"""Writes tests/golden/evaluate: multiple-choice items, a small model, and what lm-evaluation-harness makes of them.

    python3 -m venv VENV && VENV/bin/pip install torch transformers lm_eval
    VENV/bin/python scripts/reference/make_eval_golden.py

The items (80 of query, choices and gold, 60 in the form of HellaSwag, 60 in that of ARC) are made of words drawn by a seed.
The model has random weights; its tokenizer is that of tests/golden/chat/llama. The harness's own hellaswag.yaml and
arc_easy.yaml are used, on local files; for the first 80 items a task of the same kind. Four texts, of which two are longer
than a window of 96 tokens, have the harness's rolling log-likelihood, with one BOS in front (add_bos_token would add another).
"""
import importlib.metadata
import json
import random
from pathlib import Path

import lm_eval
import torch
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag import utils as hellaswag
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/evaluate"
TOKENIZER = ROOT / "tests/golden/chat/llama"
WORDS = ("dog cat cow lamp river stone door garden winter summer bread water silver yellow quick slow table orange naïve café "
         "über run walked under above between nothing everything because Über-Garden 1234 don't it's (see) e.g.").split()


def words(rng, least, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def own(rng, i):
    choices = [words(rng, 1, 6) for _ in range(rng.randint(2, 5))]
    query = words(rng, 3, 20) + rng.choice(["", "?", " ", "\n", ":\n\n", "  "])
    return {"query": query, "choices": choices, "gold": rng.randrange(len(choices))}


def swag(rng, i):
    title = " [title]" if i % 3 == 0 else ""
    return {"ind": i, "activity_label": words(rng, 1, 3), "ctx_a": words(rng, 4, 12) + title + " " + words(rng, 2, 4),
            "ctx_b": rng.choice(["", words(rng, 2, 5).upper(), "über " + words(rng, 1, 3)]),
            "endings": [words(rng, 2, 9) + rng.choice(["", " [step] " + words(rng, 1, 3), "  twice"]) for _ in range(4)],
            "label": str(rng.randrange(4))}


def arc(rng, i):
    n = rng.choice([3, 4, 4, 5])
    label = [str(k + 1) for k in range(n)] if i % 4 == 0 else list("ABCDE"[:n])
    return {"id": f"item_{i}", "question": words(rng, 5, 15) + "?",
            "choices": {"text": [words(rng, 1, 5) for _ in range(n)], "label": label}, "answerKey": rng.choice(label)}


def write_model():
    folder = OUT / "model"
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    tok = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER / "tokenizer.json"), bos_token="<|begin_of_text|>",
                                  eos_token="<|end_of_text|>")
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=24, intermediate_size=32, num_hidden_layers=2,
                                         num_attention_heads=3, num_key_value_heads=1, head_dim=8, rope_theta=10000.0,
                                         max_position_embeddings=512, tie_word_embeddings=True, rms_norm_eps=1e-5,
                                         bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0, 0.35)
    model.to(torch.bfloat16).save_pretrained(folder)
    file = json.loads((TOKENIZER / "tokenizer.json").read_text())
    file["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                              {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                              "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [tok.bos_token_id],
                                                                       "tokens": ["<|begin_of_text|>"]}}}
    (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "tokenizer_class": "PreTrainedTokenizerFast"}) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def task_config(name, base, path):
    """The harness's own task, reading a local file."""
    source = Path(lm_eval.__file__).parent / "tasks" / base if base else None
    class Loader(yaml.SafeLoader):
        pass
    Loader.add_constructor("!function", lambda loader, node: hellaswag.process_docs)
    config = yaml.load(source.read_text(), Loader) if base else {
        "output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_choice": "choices", "doc_to_target": "gold"}
    config |= {"task": name, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {"validation": str(path)}},
               "training_split": None, "validation_split": "validation", "test_split": None, "tag": None,
               "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm", "acc_bytes")]}
    return config


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = random.Random(11)
    kinds = {"own": (own, 80, None), "hellaswag": (swag, 60, "hellaswag/hellaswag.yaml"), "arc": (arc, 60, "arc/arc_easy.yaml")}
    for name, (make, count, _) in kinds.items():
        (OUT / f"{name}.jsonl").write_text("".join(json.dumps(make(rng, i), ensure_ascii=False) + "\n" for i in range(count)))
    folder = write_model()
    lm = HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=4, add_bos_token=True)
    golden = {"versions": {p: importlib.metadata.version(p) for p in ("lm_eval", "transformers", "torch")}, "tasks": []}
    for name, (_, _, base) in kinds.items():
        config = task_config(name, base, OUT / f"{name}.jsonl")
        task = lm_eval.api.task.ConfigurableTask(config=config)
        out = lm_eval.evaluate(lm=lm, task_dict={name: task}, log_samples=True, bootstrap_iters=2)
        got = out["results"][name]
        entry = {"name": name}
        for metric in ("acc", "acc_norm", "acc_bytes"):
            value = got[metric + ",none"]
            entry[metric], entry[metric + "_stderr"] = value, got[metric + "_stderr,none"]
            print(name, metric, value, got.get(metric + "_stderr,none"))
        samples = sorted(out["samples"][name], key=lambda s: s["doc_id"])
        entry["log_likelihoods"] = [[round(float(r[0][0]), 5) for r in s["resps"]] for s in samples]
        golden["tasks"].append(entry)
    texts = [words(rng, count, count) + end for count, end in ((3, ""), (40, ".\n"), (70, "\n\n"), (230, " über"))]
    (OUT / "texts.jsonl").write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
    lm = HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=1, max_length=96, add_bos_token=False)
    requests = [Instance("loglikelihood_rolling", {}, (t,), i) for i, t in enumerate(texts)]
    golden["texts"] = [round(value, 5) for value in lm.loglikelihood_rolling(requests)]
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")


main()
