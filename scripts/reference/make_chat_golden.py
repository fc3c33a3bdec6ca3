#!/usr/bin/env python3
"""Writes tests/golden/chat: token ids and loss masks of conversations by HF, and the small tokenizers they belong to.

    python3 -m venv VENV && VENV/bin/pip install transformers jinja2 trl xxhash
    VENV/bin/python scripts/reference/make_chat_golden.py

Ids are those of `apply_chat_template` with the models' own templates, which PyPI's trl has. Masks are HF's
(`return_assistant_tokens_mask`), with {% generation %} put around content and end of turn in those same templates. They
are compared with the masks of trl's own templates for training: its Qwen2.5 also counts the newline after the header and
the one after the end of turn, its Qwen3 the latter. The Jinja texts of `known_templates.cpp` are shown to write the same,
and the hashes there to be those of trl's files.
"""
import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path

import jinja2
import jinja2.sandbox
import xxhash
from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/chat"
TRL = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
NAMES = {"llama3": "llama3", "llama3.1": "llama3_1", "llama3.2": "llama3_2", "qwen2.5": "qwen2_5", "qwen3": "qwen3",
         "chatml": "qwen3_instruct_2507"}
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    [(U, "What is a dog?"), (A, "An animal of the genus Canis.")],
    [(S, "Answer in one word."), (U, "A cat is"), (A, "feline"), (U, "and a cow?"), (A, "bovine")],
    [(S, "  spaces around \n"), (U, " \t leading and trailing \n\n"), (A, "\n\n two lines \n of text \n\n")],
    [(U, "\nnewline first"), (A, "\nnewline first\n")],
    [(U, "empty answer"), (A, "")],
    [(U, ""), (A, "an answer to nothing")],
    [(U, "cafe\u0301 \u1e69 s\u0323\u0307 \u212b"), (A, "nai\u0308ve \u1112\u1161\u11ab \U0001f468\u200d\U0001f469 \u65e5\u672c\u8a9e")],
    [(U, "\u00a0\u2003unicode spaces\u3000\x1f"), (A, "\u0085\u2028 trimmed \u00a0")],
    [(U, "one"), (A, "1"), (U, "two"), (A, "2"), (U, "three"), (A, "3"), (U, "and a question without an answer")],
    [(U, "think"), (A, "<think>\nIs it so?\n</think>\n\nIt is."), (U, "again"), (A, "<think>\n\nYes.\n</think>\n\nSo it is.")],
    [(U, "<tool_response>\n7\n</tool_response>"), (A, "seven"), (U, "more"), (A, "</think>\n\nno beginning")],
    [(U, "digits 1234567 and 'll 're"), (A, "def f(x):\n    return x ** 2  # 99\n")],
    [(U, "long " * 40), (A, "answer " * 60)],
]


def tokenizer(name, vocabulary, special):
    """The words of a tokenizer that is trained in tests/golden/tokenizer, with a model's special tokens."""
    file = json.loads((ROOT / "tests/golden/tokenizer" / vocabulary / "tokenizer.json").read_text())
    added = {a["content"] for a in file["added_tokens"]}
    words = [w for w, _ in sorted(file["model"]["vocab"].items(), key=lambda kv: kv[1]) if w not in added]
    file["model"]["vocab"] = {w: i for i, w in enumerate(words)}
    plain = ["<think>", "</think>"] if name == "qwen" else []
    file["added_tokens"] = [{"id": len(words) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                             "normalized": False, "special": t in special} for i, t in enumerate(special + plain)]
    file["post_processor"] = None
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")
    config = {"bos_token": special[0] if name == "llama" else None, "eos_token": special[1 if name == "llama" else 0],
              "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **config)


def replaced(text, *pairs):
    for old, new in pairs:
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    return text


def with_generation(name, text):
    """The template with marks around what counts: content and end of turn of the assistant."""
    def llama(header, body):
        return ("{%- if message['role'] == 'assistant' %}{{- " + header + " }}{%- generation %}{{- " + body +
                " }}{%- endgeneration %}{%- else %}{{- " + header + " + " + body + " }}{%- endif %}")
    header = r"'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    body = "message['content'] | trim + '<|eot_id|>'"
    if name == "llama3":
        return ("{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}" + llama(header, body) +
                "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
    if name.startswith("llama"):
        return replaced(text, ("{{- " + header + "+ " + body + " }}", llama(header, body)))
    begin, end = "{%- generation %}", "{%- endgeneration %}"
    if name == "qwen2.5":
        line = r"{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
        marked = (r"{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}" + begin +
                  "{{- message.content + '<|im_end|>' }}" + end + r"{{- '\n' }}{%- else %}" + line + "{%- endif %}")
        return replaced(text, (line, marked))
    if name == "chatml":
        return replaced(text, (r"{{- '<|im_start|>' + message.role + '\n' + content }}",
                               r"{{- '<|im_start|>' + message.role + '\n' }}" + begin + "{{- content }}"),
                        ("        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}",
                         "        {{- '<|im_end|>' }}" + end + "{{- '\\n' }}\n    {%- elif message.role == \"tool\" %}"))
    # Of the three ways in which qwen3 writes an answer, each begins after the header.
    text = text.replace(r"'<|im_start|>' + message.role + '\n' + content }}",
                        r"content }}")
    text = replaced(text, (r"'<|im_start|>' + message.role + '\n<think>\n' +", r"'<think>\n' +"),
                    ("{%- if loop.index0 > ns.last_query_index %}",
                     r"{{- '<|im_start|>' + message.role + '\n' }}" + begin + "{%- if loop.index0 > ns.last_query_index %}"),
                    ("        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}",
                     "        {{- '<|im_end|>' }}" + end + "{{- '\\n' }}\n    {%- elif message.role == \"tool\" %}"))
    return text.replace(r"""(message.role == "system" and not loop.first) %}
        {{- content + '<|im_end|>' + '\n' }}""", r"""(message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}""")


def apply(tok, template, messages, **more):
    out = tok.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True, **more)
    return out["input_ids"], out.get("assistant_masks")


def spans(mask):
    return [(m.start(), m.end()) for m in re.finditer("1+", "".join(map(str, mask)))]


def own_templates():
    source = (ROOT / "core/data/chat/known_templates.cpp").read_text()
    texts = dict(re.findall(r"std::string_view k(\w+) =\s*R\"\((.*?)\)\";", source, re.S))
    names = {"llama3": "Llama3", "llama3.1": "Llama31", "llama3.2": "Llama32", "chatml": "Chatml", "qwen2.5": "Qwen25",
             "qwen3": "Qwen3"}
    return {name: texts[key] for name, key in names.items()}, source


def check_own(name, tok, own, original, messages):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    for add in (False, True):
        values = {"messages": messages, "bos_token": tok.bos_token, "add_generation_prompt": add}
        mine, theirs = (environment.from_string(t).render(**values) for t in (own, original))
        assert mine == theirs, f"{name}: our Jinja text writes\n{mine!r}\ninstead of\n{theirs!r}"


def check_trl(name, tok, messages, ids, mask):
    training = TRL / (NAMES[name] + "_training.jinja")
    if not training.exists():
        return 0
    theirs, their_mask = apply(tok, training.read_text(), messages, return_assistant_tokens_mask=True)
    if theirs != ids:  # its Qwen3 keeps the thoughts of earlier turns
        return 0
    begin, end = {"llama3": (0, 0), "qwen2.5": (1, 1), "qwen3": (0, 1), "chatml": (0, 1)}[name]
    for (b, e), (tb, te) in zip(spans(mask), spans(their_mask), strict=True):
        merged = b == tb  # the newline of the header and one of the content are one token
        assert (b - begin == tb or merged) and e + end == te, (name, (b, e), (tb, te), messages)
    return 1


def main():
    own, source = own_templates()
    cases, compared = [], 0
    toks = {"llama": tokenizer("llama", "llama3-style", LLAMA), "qwen": tokenizer("qwen", "qwen-style", QWEN)}
    for name, file in NAMES.items():
        original = (TRL / (file + ".jinja")).read_text()
        assert f"0x{xxhash.xxh64(original.rstrip().encode()).intdigest():016x}" in source, f"the hash of {file} is not known"
        tok = toks["llama" if name.startswith("llama") else "qwen"]
        # llama3.2 writes today's date unless it is given one.
        fixed = {"date_string": "26 Jul 2024"} if name == "llama3.2" else {}
        for turns in CONVERSATIONS:
            messages = [{"role": r, "content": c} for r, c in turns]
            ids, _ = apply(tok, original, messages, **fixed)
            marked_ids, mask = apply(tok, with_generation(name, original), messages, return_assistant_tokens_mask=True, **fixed)
            assert marked_ids == ids, f"{name}: marks change the tokens of {messages}"
            prompt, _ = apply(tok, original, messages[:-1] if turns[-1][0] == A else messages, add_generation_prompt=True, **fixed)
            check_own(name, tok, own[name], original, messages)
            compared += check_trl(name, tok, messages, ids, mask)
            cases.append({"template": name, "messages": messages, "ids": ids, "mask": "".join(map(str, mask)), "prompt": prompt})
    versions = {p: importlib.metadata.version(p) for p in ("transformers", "tokenizers", "trl", "jinja2")}
    (OUT / "golden.json").write_text(
        '{"versions": ' + json.dumps(versions) + ',\n"templates": ' +
        json.dumps({name: (TRL / (file + ".jinja")).read_text() for name, file in NAMES.items()}) +
        ',\n"cases": [\n' +
        ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}\n")
    print(f"{len(cases)} cases; {compared} masks compared with trl's own")


main()
