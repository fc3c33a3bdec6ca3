#include "apps/config/training_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/data/data_file.h"

namespace ottava {

using config::Value;

namespace {

void declare_data(config::Section& s, TrainingConfig& c) {
  s.field("dataset", c.dataset, "a name for the log; the text itself is dataset_path");
  s.field("dataset_path", c.dataset_path,
          "text to train on: file, folder, glob, @file that lists them, or several; relative to the working "
          "directory, else to this file");
  s.list("mixture", c.mixture,
         "in place of dataset_path: sources by name, each with a share of the tokens (core/data/README.md)");
  s.list("mixture_stages", c.mixture_stages, "new weights of the sources from a step on");
  s.field("text_key", c.text_key, "key of the text in JSON lines");
  s.field("format", c.format,
          "form of all files of dataset_path (and validation's): auto: by content and name; tokens_u16, "
          "tokens_u32: bare token ids, as nanoGPT's train.bin; messages, sharegpt, prompt_completion: JSON "
          "lines of conversations (section chat)")
      .one_of(data::format_names());
  using BadRecords = TrainingConfig::BadRecords;
  s.choice("bad_records", c.bad_records, {{"error", BadRecords::error}, {"skip", BadRecords::skip}},
           "a line of JSON lines that is no object with the text ends the run, or is left out and counted");
  s.field("data_check_seconds", c.data_check_seconds,
          "spent before the first step on looking through as much of the data as it allows (0: one segment); "
          "the rest is looked through during training")
      .range(0, 1e6)
      .unit("s");
  s.field("add_bos", c.add_bos,
          "begin every document with the tokenizer's BOS, and prompts and questions as well; the "
          "tokenizer_config.json of checkpoints says so");
  s.field("add_eos", c.add_eos,
          "end every document with the tokenizer's EOS; where that is its BOS, the BOS of the next document "
          "ends one");
  s.field("shuffle", c.shuffle, "permute blocks and documents anew in every epoch, by seed");
}

void declare_batch(config::Section& s, TrainingConfig& c) {
  constexpr double kMost = 1 << 30;
  s.field("local_batch_size", c.local_batch_size, "sequences per data-parallel rank and micro-batch")
      .range(1, kMost)
      .unit("sequences");
  s.field("global_batch_size", c.global_batch_size,
          "sequences per step; more than the ranks hold at once are accumulated; -1: "
          "local_batch_size x ranks")
      .range(-1, kMost)
      .unit("sequences");
  s.field("seq_len", c.seq_len, "length of a sequence").range(1, kMost).unit("tokens");
  s.field("steps", c.steps, "optimizer steps of the whole run").at_least(1).unit("steps");
  s.field("epochs", c.epochs,
          "how often the data is seen; steps follows from it once the data was counted, whatever it says")
      .above(0)
      .unit("epochs");
  s.field("max_norm", c.max_norm, "gradients with a larger global norm are scaled down to it").above(0);
  s.field("z_loss_weight", c.z_loss_weight,
          "c of a second loss, c (log of the softmax's denominator)^2 per token, which keeps logits from "
          "growing; logged by itself; 0: none, 1e-5 to 1e-4 are usual")
      .range(0, 1);
}

void declare_precision(config::Section& s, TrainingConfig& c) {
  s.choice("dtype", c.dtype, {{"float32", DType::f32}}, "master weights")
      .refuse_value("bfloat16",
                    "weights and optimizer state without FP32 masters stop learning; optimizer.state_dtype "
                    "bfloat16 saves half of the state");
  s.choice("mixed_precision_param", c.mixed_precision_param,
           {{"bfloat16", DType::bf16}, {"float32", DType::f32}}, "compute, and what FSDP gathers");
  s.choice("mixed_precision_reduce", c.mixed_precision_reduce,
           {{"float32", DType::f32}, {"bfloat16", DType::bf16}},
           "gradient sums between shards and replicas; those of micro-batches are float32");
  s.field("mixed_precision_level", c.mixed_precision_level,
          "short for precisions: O0 FP32, O1 FP8 compute, O2 BF16 compute; empty: as the keys say")
      .one_of({"", "O0", "O1", "O2"});
  s.field("loss_scale", c.loss_scale, "none, dynamic, or a constant; gradients are unscaled before the norm")
      .or_scalar();
  s.field("max_consecutive_skipped_steps", c.max_consecutive_skipped_steps,
          "steps in a row whose gradient is not finite before the run ends with an error")
      .at_least(0)
      .unit("steps");
}

}  // namespace

void declare(config::Section& s, DataloaderConfig& c) {
  s.meaning("threads that read, tokenize and pack ahead of training");
  s.field("num_workers", c.num_workers, "0: one, enough for 10 to 20 MB of text a second")
      .range(0, 1024)
      .unit("threads");
  s.field("prefetch_factor", c.prefetch_factor,
          "segments (about 4 MiB of text) tokenized ahead of use; null: one")
      .range(1, 1024)
      .unit("segments");
}

void declare(config::Section& s, SkipSpikesConfig& c) {
  s.meaning("leave out steps whose loss or gradient norm is far above those before");
  s.field("window", c.window, "steps that a step is compared with").range(8, 65536).unit("steps");
  s.field("sigma", c.sigma,
          "skip above their mean plus so many standard deviations; 0: skip none, 6 is usual")
      .at_least(0);
}

void declare(config::Section& s, TrainingConfig& c) {
  s.meaning("data, batch, precision, device");
  declare_data(s, c);
  declare_batch(s, c);
  declare_precision(s, c);
  s.field("device", c.device, "auto: a GPU when one can be used").one_of({"auto", "cpu", "cuda"});
  s.field("cuda_graphs", c.cuda_graphs,
          "launch a step's work as a whole, recorded once; auto: where that is possible, and the log says "
          "why not")
      .one_of({"auto", "on", "off"});
  s.field("gemm_cache", c.gemm_cache,
          "folder that keeps what was measured for later runs: algorithms of a GPU's matrix products, the "
          "CPU's peak; auto: $XDG_CACHE_HOME/ottava or ~/.cache/ottava; off: none");
  s.field("threads", c.threads, "CPU threads per rank; 0: cores / ranks on this machine")
      .range(0, 4096)
      .unit("threads");
  s.field("seed", c.seed, "decides initial weights and order of data").at_least(0);
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
    problems.add("training.mixture", "training.dataset_path is given too: give one of the two");
  if (c.epochs && !c.mixture.empty()) {
    const bool is_weighted =
        std::ranges::any_of(c.mixture, [](const auto& s) { return s.weight.has_value(); });
    if (is_weighted || !c.mixture_stages.empty())
      problems.add(
          "training.epochs",
          "sources with weights have no common epoch: give each source of training.mixture a repeat, and no "
          "mixture_stages");
  }
  // 0 would never clip.
  constexpr float kSmallest = std::numeric_limits<float>::min();
  if (c.max_norm > 0 && static_cast<float>(c.max_norm) < kSmallest)
    problems.add("training.max_norm", "{} is 0 in float32 or nearly so; expected at least {}", c.max_norm,
                 kSmallest);
  double scale = c.constant_loss_scale().value_or(c.loss_scale == "dynamic" ? 1.0 : -1.0);
  if (!(scale > 0) || !std::isfinite(scale)) {
    problems.add("training.loss_scale", "expected none, dynamic or a number > 0, got the text \"{}\"",
                 c.loss_scale);
  } else if (scale > std::numeric_limits<float>::max() || scale < std::numeric_limits<float>::min()) {
    problems.add("training.loss_scale", "{} is out of FP32's range, in which losses are scaled",
                 c.loss_scale);
  }
  if (c.global_batch_size == 0) {
    problems.add("training.global_batch_size",
                 "0 sequences train nothing; expected -1 (local_batch_size x ranks) or at least 1");
  } else if (c.global_batch_size > 0 && c.global_batch_size % c.local_batch_size != 0) {
    problems.add("training.global_batch_size", "{} is not a multiple of local_batch_size {} (remainder {})",
                 c.global_batch_size, c.local_batch_size, c.global_batch_size % c.local_batch_size);
  }
}

}  // namespace ottava
