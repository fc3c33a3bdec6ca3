"""What keys_change_test.py runs: groups of runs in which keys are at work, and for every used key a change and where it must show.

Row.sees, what is to be another one in the changed run:
    loss                      losses and gradient norms of the steps, in metrics.jsonl
    metric: REGEX             numbers of metrics.jsonl by these names
    weights                   bytes of model*.safetensors
    content: GLOB             bytes of other files that it wrote
    files                     names of the files that it wrote
    traced steps              numbers of the steps in each trace
    log: REGEX                what is found in its output
    plan: REGEX               what is found in the output of `ottava plan`
    says: REGEX               as log, whether either run is refused or not
    error: REGEX              the change is refused in these words
    weights or error: REGEX   weights, or that, where the machine has not what it takes
The echo of a configuration is no proof.
"""

import json
import random
from typing import NamedTuple

COMMON = {
    "job.dump_folder": "out",
    "model.dim": 32, "model.n_layers": 2, "model.n_heads": 4, "model.n_kv_heads": 2, "model.ffn_dim": 48,
    "training.dataset_path": "text.txt", "training.seq_len": 32, "training.local_batch_size": 2, "training.steps": 4,
    "training.threads": 1, "training.device": "cpu", "training.mixed_precision_param": "float32", "training.gemm_cache": "off",
    "optimizer.lr": 0.01, "lr_scheduler.warmup_steps": 1, "metrics.log_freq": 1,
    "metrics.peak_tflops_bf16": 1, "metrics.peak_tflops_fp8": 1,
}
BF16 = {"training.mixed_precision_param": "bfloat16"}
FP8 = BF16 | {"model.converters": ["quantize.linear.float8"]}
SAVES = {"checkpoint.enable": True, "checkpoint.interval": 2}
OVERFLOWS = {"training.loss_scale": 8e37, "training.z_loss_weight": 1, "training.local_batch_size": 1, "training.seq_len": 1}
TRACES = {"training.steps": 8, "profiling.enable_profiling": True, "profiling.profile_freq": 4, "profiling.profiler_warmup": 1}
FLOAT8 = "quantize.linear.float8."
PIPELINE = {"parallelism.pipeline_parallel_degree": 2, "model.n_layers": 4, "training.local_batch_size": 4}


def group(keys=None, **more):
    """`keys`: over COMMON. `after`: it begins in a copy of what that group's run left. `fails`: its runs end with an error.
    `how`: train, plan (with `words`), launch (on two ranks), terminal (train on one); alone, stopped: train on two ranks, of which the
    other one does not come, or stands still after step 2."""
    return {"keys": keys or {}, **more}


def sources(*weights):
    return [{"name": name, "path": f"{name}.txt", "weight": weight} for name, weight in zip(("text", "other"), weights)]


GROUPS = {
    "plain": group(),
    "bf16": group(BF16 | SAVES),
    "level": group({"training.mixed_precision_param": None}),
    "rotary": group({"model.rope_theta": 100, "model.rope_scaling.factor": 8, "model.rope_scaling.low_freq_factor": 1,
                     "model.rope_scaling.high_freq_factor": 4, "model.rope_scaling.original_max_position_embeddings": 64}),
    "stretched": group({"model.rope_scaling.factor": 4}),
    "yarn": group({"model.rope_theta": 100, "model.rope_scaling.rope_type": "yarn", "model.rope_scaling.factor": 4,
                   "model.rope_scaling.original_max_position_embeddings": 16, "model.rope_scaling.beta_fast": 1,
                   "model.rope_scaling.beta_slow": 0.05}),
    "feed-forward": group({"model.ffn_dim": None, "model.ffn_dim_multiplier": 1, "model.multiple_of": 8}),
    "lines": group({"training.dataset_path": "lines.jsonl"}),
    "bad lines": group({"training.dataset_path": "bad.jsonl", "training.bad_records": "skip"}),
    "much data": group({"training.dataset_path": "much.txt", "training.data_check_seconds": 1000}),
    "mixture": group({"training.dataset_path": None, "training.mixture": sources(1, 1)}),
    "spiky": group({"training.steps": 20, "training.skip_spikes.window": 8, "training.skip_spikes.sigma": 0.5, "optimizer.lr": 0}),
    "overflowing": group(OVERFLOWS),
    "measured": group({"training.gemm_cache": "kept", "metrics.peak_tflops_bf16": None, "metrics.peak_tflops_fp8": None}),
    "chat": group({"training.dataset_path": "chats.jsonl", "training.format": "messages", "training.seq_len": 160,
                   "chat.template": "llama3.1", "model.hf_assets_path": "{root}/tests/golden/chat/llama"}),
    "muon": group(SAVES | {"optimizer.name": "Muon"}),
    "saving": group(SAVES),
    "keeping": group(SAVES | {"training.steps": 8, "checkpoint.keep_latest_k": 2}),
    "exporting": group(SAVES | {"checkpoint.last_save_model_only": True}),
    "resuming": group(SAVES | {"training.steps": 6}, after="saving"),
    "going back": group(SAVES | {"training.steps": 6, "checkpoint.load_step": 2}, after="saving"),
    "fine-tuning": group(SAVES | {"job.dump_folder": "out/tuned", "training.steps": 6,
                                  "checkpoint.initial_load_path": "out/checkpoint/step-4"}, after="saving"),
    "from Hugging Face": group({"job.dump_folder": "out/tuned", "model.flavor": "hf", "model.hf_assets_path": "out/checkpoint/step-4"},
                               after="saving"),
    "float8": group(FP8),
    "delayed": group(FP8 | {FLOAT8 + "recipe_name": "delayed", FLOAT8 + "amax_history_length": 1}),
    "validating": group({"validation.enable": True, "validation.dataset_path": "other.txt", "validation.freq": 2, "validation.steps": 2,
                         "validation.seq_len": 32, "validation.local_batch_size": 2}),
    "validating sets": group({"validation.enable": True, "validation.datasets": [{"name": "one", "path": "other.txt"}],
                              "validation.steps": 2, "validation.seq_len": 32}),
    "evaluating": group({"evaluation.enable": True, "evaluation.freq": 2, "evaluation.tasks": [{"name": "items", "path": "items.jsonl"}],
                         "evaluation.prompts": ["the dog"], "evaluation.max_new_tokens": 4, "validation.seq_len": 32,
                         "validation.local_batch_size": 2}),
    "profiling": group(TRACES),
    "nvtx": group(TRACES | {"profiling.enable_nvtx": True}),
    "terminal": group(how="terminal"),
    "two ranks": group({"training.global_batch_size": 8}, how="launch"),
    "two of float8": group(FP8, how="launch"),
    "two that trace": group(TRACES, how="launch"),
    "two that fail": group(OVERFLOWS | {"training.max_consecutive_skipped_steps": 1}, how="launch", fails=True),
    "tensor parallel": group({"parallelism.tensor_parallel_degree": 2}, how="launch"),
    "tensor parallel float8": group(FP8 | {"parallelism.tensor_parallel_degree": 2}, how="launch"),
    "pipeline": group(PIPELINE, how="launch"),
    "planned": group(how="plan"),
    "planned for a GPU": group(FP8 | {"training.device": "cuda", "model.head_dim": 16}, how="plan",
                               words=["--device", "h100_sxm", "--compute-capability", "90"]),
    "planned for an older GPU": group(FP8 | {"training.device": "cuda", "model.head_dim": 16}, how="plan",
                                      words=["--device", "a100_sxm", "--compute-capability", "80"]),
    "alone": group({"comm.init_timeout_seconds": 2}, how="alone"),
    "stopped": group({"comm.train_timeout_seconds": 2, "training.steps": 1000000}, how="stopped"),
}


class Row(NamedTuple):
    key: str
    group: str
    value: object
    sees: str
    also: dict = {}  # over the group's keys, in both runs


MEMORY = "log: Memory plan: .*"
ROWS = [
    Row("job.dump_folder", "plain", "elsewhere", "files"),
    Row("job.description", "plain", "a job of its own", "log: Starting job: .*"),
    Row("job.print_config", "plain", True, "log: (?m)^ *warmup_steps: 1"),
    Row("job.save_config_file", "plain", "resolved.yaml", "files"),

    Row("model.name", "plain", "llama4", "error: model.name: .*llama3"),
    Row("model.flavor", "plain", "1B", "loss"),
    Row("model.hf_assets_path", "plain", "{root}/configs/tokenizers/en-2560", "loss"),
    Row("model.initial", "from Hugging Face", "random", "loss"),
    Row("model.converters", "bf16", ["quantize.linear.float8"], "loss"),
    Row("model.dim", "plain", 64, "loss"),
    Row("model.n_layers", "plain", 3, "loss"),
    Row("model.n_heads", "plain", 2, "loss"),
    Row("model.n_kv_heads", "plain", 4, "loss"),
    Row("model.head_dim", "plain", 16, "loss"),
    Row("model.ffn_dim", "plain", 64, "loss"),
    Row("model.ffn_dim_multiplier", "feed-forward", 1.5, "loss"),
    Row("model.multiple_of", "feed-forward", 64, "loss"),
    Row("model.vocab_size", "plain", 2304, "loss"),
    Row("model.rope_theta", "plain", 100, "loss"),
    Row("model.norm_eps", "plain", 0.1, "loss"),
    Row("model.tie_embeddings", "plain", True, "loss"),
    Row("model.qkv_bias", "plain", True, "loss"),
    Row("model.qk_norm", "plain", True, "loss"),
    Row("model.max_seq_len", "saving", 64, "content: out/checkpoint/*/config.json"),
    Row("model.attn_mask_type", "plain", "block_causal", "loss"),
    Row("model.loss_chunk_tokens", "plain", 16, MEMORY),
    Row("model.rope_scaling.rope_type", "stretched", "linear", "loss"),
    Row("model.rope_scaling.factor", "rotary", 2, "loss"),
    Row("model.rope_scaling.low_freq_factor", "rotary", 2, "loss"),
    Row("model.rope_scaling.high_freq_factor", "rotary", 16, "loss"),
    Row("model.rope_scaling.original_max_position_embeddings", "rotary", 8, "loss"),
    Row("model.rope_scaling.beta_fast", "yarn", 0.5, "loss"),
    Row("model.rope_scaling.beta_slow", "yarn", 0.5, "loss"),
    Row("model.rope_scaling.attention_factor", "yarn", 1.5, "loss"),
    Row("model.rope_scaling.truncate", "yarn", False, "loss"),

    Row("training.dataset", "plain", "a name", "log: Data: .*: 1 file"),
    Row("training.dataset_path", "plain", "other.txt", "loss"),
    Row("training.mixture", "mixture", sources(1, 3), "loss"),
    Row("training.mixture_stages", "mixture", [{"from_step": 2, "weights": [0, 1]}], "loss"),
    Row("training.text_key", "lines", "title", "loss"),
    Row("training.format", "lines", "text", "loss"),
    Row("training.bad_records", "bad lines", "error", "error: bad.jsonl"),
    Row("training.data_check_seconds", "much data", 0, r"log: as far as training.data_check_seconds goes"),
    Row("training.add_bos", "plain", False, "loss"),
    Row("training.add_eos", "plain", False, "loss"),
    Row("training.shuffle", "plain", False, "loss"),
    Row("training.local_batch_size", "plain", 4, "loss"),
    Row("training.global_batch_size", "plain", 8, "loss"),
    Row("training.seq_len", "plain", 16, "loss"),
    Row("training.steps", "plain", 2, "loss"),
    Row("training.epochs", "plain", 0.02, "loss"),
    Row("training.max_norm", "plain", 0.1, "loss"),
    Row("training.z_loss_weight", "plain", 0.1, "loss"),
    Row("training.dtype", "plain", "bfloat16", "error: training.dtype: bfloat16 is not supported"),
    Row("training.mixed_precision_param", "plain", "bfloat16", "loss"),
    Row("training.mixed_precision_reduce", "two ranks", "bfloat16", "loss"),
    Row("training.mixed_precision_level", "level", "O0", "loss"),
    Row("training.loss_scale", "saving", 3, "weights"),
    Row("training.max_consecutive_skipped_steps", "overflowing", 1, "error: 2 consecutive steps"),
    Row("training.device", "plain", "cuda", r"says: Device: \w+|'cuda' cannot be used", {"model.head_dim": 16}),
    Row("training.cuda_graphs", "plain", "off", "log: CUDA graphs: .*"),
    Row("training.gemm_cache", "measured", "elsewhere", "files"),
    Row("training.threads", "plain", 2, r"log: Device: .*, (\d+ threads?)\)"),
    Row("training.seed", "plain", 1, "loss"),
    Row("training.skip_spikes.window", "spiky", 12, "metric: skipped_.*"),
    Row("training.skip_spikes.sigma", "spiky", 0, "metric: skipped_.*"),
    Row("training.dataloader.num_workers", "plain", 2, r"log: Data: .*(\d+ threads?, \d+ segments? ahead)"),
    Row("training.dataloader.prefetch_factor", "plain", 3, r"log: Data: .*(\d+ threads?, \d+ segments? ahead)"),

    Row("chat.template", "chat", "llama3", "loss"),
    Row("chat.train_on", "chat", "all", "loss"),
    Row("chat.system", "chat", "you are short", "loss"),
    Row("chat.date", "chat", "1 Jan 2001", "loss"),

    Row("optimizer.name", "plain", "Muon", "loss"),
    Row("optimizer.lr", "plain", 0.02, "loss"),
    Row("optimizer.beta1", "plain", 0.5, "loss"),
    Row("optimizer.beta2", "plain", 0.5, "loss"),
    Row("optimizer.eps", "plain", 0.01, "loss"),
    Row("optimizer.weight_decay", "plain", 1, "loss"),
    Row("optimizer.state_dtype", "saving", "bfloat16", "weights"),
    Row("optimizer.momentum", "muon", 0.5, "loss"),
    Row("optimizer.nesterov", "muon", False, "loss"),
    Row("optimizer.ns_steps", "muon", 2, "loss"),
    Row("optimizer.ns_coefficients", "muon", ["2", "-1.5", "0.5"], "loss"),
    Row("optimizer.ns_dtype", "muon", "float32", "weights"),
    Row("optimizer.adjust_lr_fn", "muon", "original", "loss"),
    Row("optimizer.param_groups", "plain", [{"match": "*", "lr_factor": 0.5}], "loss"),

    Row("lr_scheduler.warmup_steps", "plain", 3, "loss"),
    Row("lr_scheduler.total_steps", "plain", 8, "loss"),
    Row("lr_scheduler.decay_ratio", "plain", 0.25, "loss"),
    Row("lr_scheduler.decay_type", "plain", "cosine", "loss"),
    Row("lr_scheduler.min_lr_factor", "plain", 0.5, "loss"),

    Row("parallelism.data_parallel_replicate_degree", "two ranks", 2, MEMORY),
    Row("parallelism.data_parallel_shard_degree", "planned", 2, "plan: (?m)^  (?:parameters|optimizer|gradients) .*|Ranks: .*"),
    Row("parallelism.context_parallel_degree", "two ranks", 2, MEMORY, {"training.seq_len": 512}),
    Row("parallelism.tensor_parallel_degree", "two ranks", 2, MEMORY),
    Row("parallelism.pipeline_parallel_degree", "two ranks", 2, MEMORY),
    Row("parallelism.pipeline_parallel_schedule", "pipeline", "GPipe", MEMORY),
    Row("parallelism.pipeline_parallel_microbatch_size", "pipeline", 2, "log: Pipeline: .*"),
    Row("parallelism.pipeline_parallel_layers_per_stage", "pipeline", 1, "log: Pipeline: .*",
        {"parallelism.pipeline_parallel_schedule": "Interleaved1F1B"}),
    Row("parallelism.pipeline_parallel_first_stage_less_layers", "pipeline", 3, "log: Pipeline: .*"),
    Row("parallelism.pipeline_parallel_last_stage_less_layers", "pipeline", 3, "log: Pipeline: .*"),
    Row("parallelism.pipeline_parallel_split_points", "pipeline", ["layers.1"], "log: Pipeline: .*"),
    Row("parallelism.fsdp_reshard_after_forward", "two ranks", "never", "log: Traffic: .*"),
    Row("parallelism.fsdp_reduce_every_microbatch", "two ranks", "true", "log: Traffic: .*"),
    Row("parallelism.fsdp_prefetch", "two ranks", 0, "log: Traffic: .*"),
    Row("parallelism.enable_async_tensor_parallel", "tensor parallel", True, r"log: Decided: parallelism.enable_async_tensor_parallel \w+"),
    Row("parallelism.disable_loss_parallel", "tensor parallel", True, "log: Traffic: .*"),

    Row("checkpoint.enable", "plain", True, "files"),
    Row("checkpoint.folder", "saving", "elsewhere", "files"),
    Row("checkpoint.interval", "saving", 3, "files"),
    Row("checkpoint.keep_latest_k", "keeping", 3, "files"),
    Row("checkpoint.keep_every", "keeping", 4, "files"),
    Row("checkpoint.load_step", "resuming", 2, "loss"),
    Row("checkpoint.advance_data_steps", "going back", 1, "loss"),
    Row("checkpoint.load_only", "resuming", True, "files"),
    Row("checkpoint.exclude_from_loading", "resuming", ["optimizer"], "loss"),
    Row("checkpoint.initial_load_path", "fine-tuning", "out/checkpoint/step-2", "loss"),
    Row("checkpoint.initial_load_model_only", "fine-tuning", False, "loss"),
    Row("checkpoint.last_save_model_only", "saving", True, "files"),
    Row("checkpoint.export_dtype", "exporting", "bfloat16", "weights"),
    Row("checkpoint.async_mode", "saving", "async", r"log: Checkpoints: a snapshot of .*|\(in the background\)"),
    Row("checkpoint.enable_first_step_checkpoint", "saving", True, "files"),

    Row("activation_checkpoint.mode", "plain", "none", MEMORY),
    Row("activation_checkpoint.selective_ac_option", "plain", "1", MEMORY),
    Row("attention.deterministic", "plain", False, "log: attention.deterministic: false has no effect.*"),
    Row("attention.backend", "planned for a GPU", "cudnn", r"plan: attention by (.*)"),
    Row("cpu.bf16_matmul", "bf16", "direct", "weights or error: cpu.bf16_matmul is direct, but this machine has no bf16 instructions",
        {"cpu.bf16_matmul": "widened"}),
    Row("cpu.bf16_attention", "bf16", "direct", "weights or error: cpu.bf16_attention is direct, but this machine has no bf16 instructions",
        {"cpu.bf16_attention": "widened"}),

    Row(FLOAT8 + "recipe_name", "float8", "rowwise", "loss"),
    Row(FLOAT8 + "filter_fqns", "float8", ["feed_forward"], "loss"),
    Row(FLOAT8 + "policy", "float8", [{"match": "*feed_forward*", "recipe": "bf16"}], "loss"),
    Row(FLOAT8 + "high_precision_first_blocks", "float8", 1, "loss"),
    Row(FLOAT8 + "high_precision_last_blocks", "float8", 1, "loss"),
    Row(FLOAT8 + "auto", "planned for a GPU", True, "plan: Left to the run: .*"),
    Row(FLOAT8 + "auto_decisions", "float8", "slow.json", "loss", {FLOAT8 + "auto": True, FLOAT8 + "auto_decisions": "fast.json"}),
    Row(FLOAT8 + "emulate", "planned for an older GPU", True, "says: set quantize.linear.float8.emulate|are emulated"),
    Row(FLOAT8 + "power_of_two_scales", "float8", True, "loss"),
    Row(FLOAT8 + "amax_history_length", "delayed", 2, "loss"),
    Row(FLOAT8 + "fast_accumulation", "delayed", "all", "log: fast_accumulation has no effect.*"),
    Row(FLOAT8 + "margin", "delayed", 16, "loss"),
    Row(FLOAT8 + "enable_fsdp_float8_all_gather", "two of float8", True, "log: Traffic: .*"),
    Row(FLOAT8 + "keep_weight_codes", "two of float8", "false", MEMORY),
    Row(FLOAT8 + "enable_tp_float8_all_gather", "tensor parallel float8", True, "log: Traffic: .*"),
    Row(FLOAT8 + "enable_float8_gradient_all_to_all", "two of float8", True, "loss", {"model.dim": 128, "model.ffn_dim": 128}),
    Row(FLOAT8 + "pad_vocabulary", "float8", True, "says: .* pad_vocabulary: true, or recipe bf16 for it|Training completed",
        {"model.vocab_size": 2264, FLOAT8 + "policy": [{"match": "output", "recipe": "tensorwise"}]}),
    Row(FLOAT8 + "enable_statistics", "float8", False, "metric: fp8/.*"),
    Row(FLOAT8 + "alert_underflow", "delayed", 1, "log: FP8 underflow of [xw] above", {FLOAT8 + "margin": 16}),
    Row(FLOAT8 + "alert_gradient_underflow", "delayed", 0, "log: FP8 underflow of dy above", {FLOAT8 + "margin": 16}),
    Row(FLOAT8 + "alert_saturation", "delayed", 1, "log: FP8 saturation of .* above",
        {FLOAT8 + "alert_saturation": 0, "optimizer.lr": 0.3}),

    Row("metrics.log_freq", "plain", 2, "loss"),
    Row("metrics.enable_tensorboard", "plain", True, "files"),
    Row("metrics.enable_json_lines", "plain", False, "files"),
    Row("metrics.disable_color_printing", "terminal", True, r"log: \x1b\[\d+m"),
    Row("metrics.save_tb_folder", "plain", "events", "files", {"metrics.enable_tensorboard": True}),
    Row("metrics.save_for_all_ranks", "two ranks", True, "files"),
    Row("metrics.peak_tflops_bf16", "plain", 2, "log: Peak FLOPS used for computing MFU: .*"),
    Row("metrics.peak_tflops_fp8", "float8", 2, "log: Peak FLOPS of FP8: .*"),

    Row("profiling.enable_profiling", "plain", True, "files", {"profiling.profile_freq": 4}),
    Row("profiling.save_traces_folder", "profiling", "elsewhere", "files"),
    Row("profiling.profile_freq", "profiling", 2, "files"),
    Row("profiling.profiler_active", "profiling", 2, "traced steps"),
    Row("profiling.profile_ranks", "two that trace", "1", "files"),

    Row("validation.enable", "plain", True, "metric: validation_metrics/loss",
        {"validation.dataset_path": "other.txt", "validation.steps": 1, "validation.seq_len": 32}),
    Row("validation.dataset", "validating", "a name", "log: Validation data: .*: 1 file"),
    Row("validation.dataset_path", "validating", "text.txt", "metric: validation_metrics/loss"),
    Row("validation.datasets", "validating sets", [{"name": "one", "path": "other.txt"}, {"name": "two", "path": "text.txt"}],
        "metric: validation_metrics/.*loss"),
    Row("validation.local_batch_size", "validating", 1, "metric: validation_metrics/loss"),
    Row("validation.seq_len", "validating", 16, "metric: validation_metrics/loss"),
    Row("validation.freq", "validating", 3, "metric: validation_metrics/loss"),
    Row("validation.steps", "validating", 1, "metric: validation_metrics/loss"),
    Row("validation.dataloader.num_workers", "validating", 2, r"log: Validation data: .*(\d+ threads?, \d+ segments? ahead)"),
    Row("validation.dataloader.prefetch_factor", "validating", 3, r"log: Validation data: .*(\d+ threads?, \d+ segments? ahead)"),

    Row("evaluation.enable", "evaluating", False, "metric: evaluation_metrics/.*"),
    Row("evaluation.tasks", "evaluating", [{"name": "items", "path": "others.jsonl"}], "metric: evaluation_metrics/items/acc.*"),
    Row("evaluation.freq", "evaluating", 3, "metric: evaluation_metrics/.*"),
    Row("evaluation.max_examples", "evaluating", 5, "metric: evaluation_metrics/.*"),
    Row("evaluation.prompts", "evaluating", ["a cat", "the tree"], "log: (?s)the dog"),
    Row("evaluation.max_new_tokens", "evaluating", 8, "log: the dog.*"),
    Row("evaluation.temperature", "evaluating", 5, "log: the dog.*"),

    Row("comm.init_timeout_seconds", "alone", 1, r"says: within \d+ s \(comm.init_timeout_seconds\)"),
    Row("comm.train_timeout_seconds", "stopped", 1, r"says: made no progress in .* (for \d+ s)"),
    Row("comm.backend", "two ranks", "nccl", "error: comm.backend is nccl, but the device is cpu"),
    Row("comm.sm_budget", "plain", 8, "error: sm_budget is 8, but the device is cpu, which has no SMs"),
    Row("comm.trace_buf_size", "two that fail", 0, "files"),
    Row("comm.save_traces_folder", "two that fail", "elsewhere", "files"),
    Row("comm.save_traces_file_prefix", "two that fail", "of_rank_", "files"),
    Row("debug.deterministic", "plain", True, "log: debug.deterministic has no effect.*"),
    Row("comm.mode", "plain", "fake", "error: comm.mode: .*default"),
]
# Where the program has NVTX, a tool records its ranges.
NVTX_ROWS = [
    Row("profiling.enable_nvtx", "profiling", True, "content: nvtx.txt"),
    Row("profiling.profiler_warmup", "nvtx", 2, "content: nvtx.txt"),
]
WITHOUT_NVTX_ROWS = [
    Row("profiling.enable_nvtx", "profiling", True, "error: this program was built without NVTX"),
    Row("profiling.profiler_warmup", "profiling", 4, "error: 4 is less than profiler_warmup 4"),
]


def write_inputs(folder):
    """Texts that repeat on every machine."""
    chance = random.Random(5)
    words = "the a dog cat house tree runs walks sees finds big small red old new river over under with quickly letter answer".split()
    some = lambda: " ".join(words[int(chance.random() * len(words))] for _ in range(5 + int(chance.random() * 20)))
    for name, count in (("text", 600), ("other", 200)):
        (folder / f"{name}.txt").write_text("".join(some() + ".<|endoftext|>\n" for _ in range(count)))
    page = "".join(some() + ".\n\n" for _ in range(1000))
    (folder / "much.txt").write_text(page * (9000000 // len(page)))
    for name, speedup in (("fast", 2), ("slow", 0.5)):
        entries = [{"name": f"quantize.linear.float8.auto 64 x {shape} tensorwise", "value": str(speedup), "reason": ""}
                   for shape in ("64 x 32", "32 x 32", "96 x 32", "32 x 48")]
        (folder / f"{name}.json").write_text(json.dumps({"made_for": "a GPU", "entries": entries}))
    lines = [json.dumps({"text": some(), "title": some()}) for _ in range(100)]
    (folder / "lines.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "bad.jsonl").write_text("\n".join([*lines, "no JSON", *lines]) + "\n")
    talk = lambda: {"messages": [{"role": role, "content": some()[:40]} for role in ("user", "assistant") * 2]}
    (folder / "chats.jsonl").write_text("".join(json.dumps(talk()) + "\n" for _ in range(80)))
    ask = lambda i: {"query": f"item {i} of many", "choices": [f"one {i}", "two", "three and four"], "gold": i % 3}
    for name, first in (("items", 0), ("others", 100)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(ask(i)) + "\n" for i in range(first, first + 10)))
