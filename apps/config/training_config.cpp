#include "apps/config/training_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/data/data_file.h"

namespace ottava {

using config::Value;

namespace {

void declare_data(config::Section& s, TrainingConfig& c) {
  s.field("dataset", c.dataset, "name shown in the log; the data itself is given by dataset_path");
  s.field("dataset_path", c.dataset_path,
          "training data, given as file, folder, glob, @FILE with a list of these, or a YAML list of them; "
          "relative to the working directory or, if not found there, to this file");
  s.list("mixture", c.mixture,
         "named sources to mix, used instead of dataset_path, each with a weight or a number of repeats "
         "(core/data/README.md)");
  s.list("mixture_stages", c.mixture_stages, "changes of the mixture's weights, each from a given step on");
  s.field("text_key", c.text_key,
          "key that holds the text in JSON lines, of files that name none in mixture or validation.datasets");
  s.field("format", c.format,
          "format of the training and validation files that name none in mixture or validation.datasets; "
          "auto: detected from content and name; text, json_lines: plain text or JSON lines with text; "
          "tokens_u16, tokens_u32: bare "
          "token ids, such as nanoGPT's train.bin; messages, sharegpt, prompt_completion: conversations in "
          "JSON lines (see section chat)")
      .one_of(data::format_names());
  using BadRecords = TrainingConfig::BadRecords;
  s.choice("bad_records", c.bad_records, {{"error", BadRecords::error}, {"skip", BadRecords::skip}},
           "what to do with a line of JSON lines that is not an object with the text; error: end the run; "
           "skip: leave the line out and count it");
  s.field("data_check_seconds", c.data_check_seconds,
          "time for checking data before the first step; the rest of the data is checked during training; 0: "
          "check only one segment")
      .range(0, 1e6)
      .unit("s");
  s.field("add_bos", c.add_bos,
          "begin every document, prompt and question with the tokenizer's BOS token; recorded in the "
          "tokenizer files of checkpoints");
  s.field("add_eos", c.add_eos,
          "end every document with the tokenizer's EOS token; if EOS and BOS are the same token, the BOS of "
          "the next document serves as the end");
  s.field("shuffle", c.shuffle, "shuffle the data in every epoch, in an order that depends on seed");
}

void declare_batch(config::Section& s, TrainingConfig& c) {
  constexpr double kMost = 1 << 30;
  s.field("local_batch_size", c.local_batch_size,
          "micro-batch size of each data-parallel rank; lower it if memory is short")
      .range(1, kMost)
      .unit("sequences");
  s.field("global_batch_size", c.global_batch_size,
          "sequences per optimizer step, reached by gradient accumulation where needed; -1: local_batch_size "
          "x data-parallel ranks")
      .range(1, kMost)
      .or_value(-1)
      .unit("sequences");
  s.field("seq_len", c.seq_len, "sequence length").range(1, kMostTokens).unit("tokens");
  s.field("steps", c.steps, "number of optimizer steps in the whole run").range(1, kMostSteps).unit("steps");
  s.field("epochs", c.epochs,
          "number of passes over the data, used instead of steps, which is then computed from the size of "
          "the data; null: use steps")
      .above(0)
      .unit("epochs");
  s.field(
       "max_norm", c.max_norm,
       "gradient clipping: a gradient with a larger global norm is scaled down to this norm; 1e39, which is "
       "above every float32: none is")
      .at_least(config::kLeastFloat);
  s.field("z_loss_weight", c.z_loss_weight,
          "weight of the z-loss, the squared log of the softmax denominator, which keeps logits small and is "
          "logged separately; 0: no z-loss; 1e-5 to 1e-4 are usual")
      .range(0, 1);
}

void declare_precision(config::Section& s, TrainingConfig& c) {
  s.choice("dtype", c.dtype, {{"float32", DType::f32}}, "dtype of the master weights")
      .refuse_value("bfloat16",
                    "training stalls without float32 master weights; optimizer.state_dtype bfloat16 halves "
                    "the memory of the optimizer state");
  s.choice("mixed_precision_param", c.mixed_precision_param,
           {{"bfloat16", DType::bf16}, {"float32", DType::f32}},
           "dtype of computation and of the parameters that FSDP gathers");
  s.choice("mixed_precision_reduce", c.mixed_precision_reduce,
           {{"float32", DType::f32}, {"bfloat16", DType::bf16}},
           "dtype in which gradients are summed across shards and replicas; micro-batches are always "
           "accumulated in float32");
  s.field("mixed_precision_level", c.mixed_precision_level,
          "shorthand for mixed_precision_param and model.converters; O0: FP32; O1: FP8; O2: BF16; empty: use "
          "those keys")
      .one_of({"", "O0", "O1", "O2"});
  s.field("loss_scale", c.loss_scale,
          "loss scaling, given as none, dynamic or a constant factor from 1e-18 to 8.5e37; gradients are "
          "unscaled "
          "before clipping")
      .or_scalar();
  s.field(
       "max_consecutive_skipped_steps", c.max_consecutive_skipped_steps,
       "end the run with an error after more than this many consecutive steps whose gradient is not finite, "
       "or would be multiplied by what is too small for float32")
      .at_least(0)
      .unit("steps");
}

}  // namespace

void declare(config::Section& s, DataloaderConfig& c) {
  s.meaning("threads that read, tokenize and pack data ahead of training");
  s.field("num_workers", c.num_workers,
          "number of threads; 0: one, enough for 10 to 20 MB of text per second")
      .range(0, 1024)
      .unit("threads");
  s.field("prefetch_factor", c.prefetch_factor,
          "segments of about 4 MiB of text that are tokenized in advance; null: one")
      .range(1, 1024)
      .unit("segments");
}

void declare(config::Section& s, SkipSpikesConfig& c) {
  s.meaning("skip steps whose loss or gradient norm is far above that of the preceding steps");
  s.field("window", c.window,
          "number of preceding steps that a step is compared with; none is skipped before half as many are "
          "known")
      .range(8, 65536)
      .unit("steps");
  s.field("sigma", c.sigma,
          "skip a step that lies more than this many standard deviations above the mean of the window; 0: "
          "skip none; 6 is usual")
      .at_least(0);
}

void declare(config::Section& s, TrainingConfig& c) {
  s.meaning("data, batch size, precision and device");
  declare_data(s, c);
  declare_batch(s, c);
  declare_precision(s, c);
  s.field("device", c.device, "device to train on; auto: a GPU if one is usable, else the CPU")
      .one_of({"auto", "cpu", "cuda"})
      .suggest("gpu", "cuda");
  using CudaGraphs = TrainingConfig::CudaGraphs;
  s.choice("cuda_graphs", c.cuda_graphs,
           {{"auto", CudaGraphs::automatic}, {"on", CudaGraphs::on}, {"off", CudaGraphs::off}},
           "record each step as a CUDA graph and replay it; auto: where possible, else the log says why not; "
           "on: an error where it is not possible");
  s.field(
      "gemm_cache", c.gemm_cache,
      "folder where measurements (fastest GPU matrix product algorithms, a CPU's peaks and memory rates) are "
      "kept for later runs; auto: $XDG_CACHE_HOME/ottava or ~/.cache/ottava; off: keep none");
  s.field("threads", c.threads,
          "CPU threads per rank, at most as many as OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS allow; 0: "
          "OMP_NUM_THREADS if it is set, else the cores on which the launcher lets the rank run (divided by "
          "the ranks of the machine that have the same), and no more than a container's quota of CPU time "
          "lets run")
      .range(0, 4096)
      .unit("threads");
  s.field("seed", c.seed, "random seed of the initial weights and the data order").at_least(0);
  s.section("skip_spikes", c.skip_spikes);
  s.section("dataloader", c.dataloader);

  s.renamed("compile", "compile.enable");
  s.renamed("deterministic", "debug.deterministic");
}

std::optional<double> TrainingConfig::constant_loss_scale() const {
  if (loss_scale == "none") return 1.0;
  Value number = config::plain_scalar(loss_scale, {});
  bool is_number = number.kind == Value::Kind::integer || number.kind == Value::Kind::real;
  return is_number ? std::optional(number.real) : std::nullopt;
}

void validate(const TrainingConfig& c, config::Problems& problems) {
  validate(c.mixture, c.mixture_stages, problems);
  if (!c.mixture.empty() && !c.dataset_path.empty())
    problems.add("training.mixture", "training.dataset_path is set as well; set only one of the two");
  if (c.epochs && !c.mixture.empty()) {
    const bool is_weighted =
        std::ranges::any_of(c.mixture, [](const auto& s) { return s.weight.has_value(); });
    if (is_weighted || !c.mixture_stages.empty())
      problems.add("training.epochs",
                   "a mixture with weights has no epochs; give every source of training.mixture a repeat and "
                   "remove mixture_stages, or set training.steps instead");
  }
  // Above, the inverse would be subnormal, which the update takes for zero; below, so would be gradients that
  // AdamW's epsilon does not hide yet.
  constexpr double kLeast = 1e-18, kMost = 8.5e37;
  const double scale = c.constant_loss_scale().value_or(c.loss_scale == "dynamic" ? 1.0 : NAN);
  if (!(scale >= kLeast && scale <= kMost))
    problems.add("training.loss_scale",
                 "expected none, dynamic or a number >= {} and <= {}, got the string \"{}\"", kLeast, kMost,
                 c.loss_scale);
  if (const int64_t tokens = c.local_batch_size * c.seq_len; tokens > kMostTokens)
    problems.add("training.local_batch_size", "{} x seq_len {} = {} tokens; expected at most {}",
                 c.local_batch_size, c.seq_len, tokens, kMostTokens);
  if (c.global_batch_size > 0 && c.global_batch_size % c.local_batch_size != 0) {
    problems.add("training.global_batch_size", "{} is not a multiple of local_batch_size {} (remainder {})",
                 c.global_batch_size, c.local_batch_size, c.global_batch_size % c.local_batch_size);
  }
}

}  // namespace ottava
