#include "apps/config/first_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/config/print.h"
#include "core/error.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

constexpr double kTokensPerParameter = 20, kMostEpochs = 4, kUtilization = 0.5;
constexpr double kBytesPerToken = 3.5;  // of a tokenizer that was trained on such a text

struct Size {
  int64_t dim, layers, head_dim;
};
// Widths and depths that are trained in practice; heads of 64 from where a width has several.
constexpr Size kSizes[] = {{64, 2, 16},     {128, 4, 32},    {192, 6, 32},   {256, 6, 64},   {384, 6, 64},
                           {512, 8, 64},    {640, 10, 64},   {768, 12, 64},  {1024, 16, 64}, {1536, 20, 64},
                           {2048, 24, 128}, {3072, 28, 128}, {4096, 32, 128}};

LlamaConfig model_of(const Size& size, int64_t vocabulary) {
  LlamaConfig m;
  m.dim = size.dim;
  m.layers = size.layers;
  m.head_dim = size.head_dim;
  m.heads = m.kv_heads = size.dim / size.head_dim;
  m.ffn_dim = llama_ffn_dim(size.dim, 0, 64);
  m.vocab_size = vocabulary;
  // Below this the embedding would be the larger part of the model twice over.
  m.tied_embeddings = vocabulary * size.dim * 4 > parameter_count(m);
  return m;
}

// Small models tolerate large steps.
double learning_rate_for(int64_t parameters) {
  const double rate = 3e-3 * std::pow(parameters / 1e6, -0.3);
  const double digits = std::pow(10, std::floor(std::log10(rate)));
  return std::clamp(std::round(rate / digits) * digits, 1e-4, 3e-3);
}

}  // namespace

int64_t first_vocabulary(int64_t text_bytes) {
  if (text_bytes < 1'000'000) return 1024;
  if (text_bytes < 20'000'000) return 4096;
  return text_bytes < 1'000'000'000 ? 16384 : 32768;
}

FirstConfig choose_first_config(const FirstConfigInputs& in) {
  if (!(in.minutes > 0)) fail<ConfigError>("init", "--minutes is {}, expected more than 0", in.minutes);
  constexpr int64_t kLeastBytes = 20'000;
  if (in.text_bytes < kLeastBytes) {
    fail<ConfigError>("init", "the text has {}, expected at least {}: it is too short to learn from",
                      counted(in.text_bytes, "byte"), kLeastBytes);
  }
  const double flops = in.minutes * 60 * in.flops_per_second * kUtilization;
  const double text_tokens = in.text_bytes / kBytesPerToken;
  const int64_t vocabulary = in.vocabulary > 0 ? in.vocabulary : first_vocabulary(in.text_bytes);
  const double most_tokens = kMostEpochs * text_tokens;
  const double best =
      std::min(std::sqrt(flops / (6 * kTokensPerParameter)), most_tokens / kTokensPerParameter);

  // The size whose parameters are nearest to that, by ratio.
  std::optional<LlamaConfig> model;
  double nearest = 0;
  for (const Size& size : kSizes) {
    const LlamaConfig candidate = model_of(size, vocabulary);
    const double distance = std::abs(std::log(parameter_count(candidate) / best));
    if (!model || distance < nearest) model = candidate, nearest = distance;
  }

  FirstConfig out;
  out.model = *model;
  out.parameters = parameter_count(out.model);
  out.sequence = out.parameters < 2'000'000 ? 256 : out.parameters < 30'000'000 ? 512 : 1024;
  out.local_batch = std::max<int64_t>(4096 / out.sequence, 1);
  const double per_token = model_flops_per_token(out.model, out.sequence);
  const double wanted = std::min(flops / per_token, most_tokens);
  // At least a few hundred steps, if the budget allows, and batches no smaller than a rank's.
  const double step_tokens = std::clamp(wanted / 1000, 4096.0, 524288.0);
  out.global_batch = std::max<int64_t>(
      std::llround(step_tokens / (out.sequence * out.local_batch)) * out.local_batch, out.local_batch);
  const double tokens_per_step = out.global_batch * out.sequence;
  out.steps = std::max<int64_t>(std::llround(wanted / tokens_per_step), 20);
  out.warmup = std::clamp<int64_t>(out.steps / 20, 2, 500);
  out.learning_rate = learning_rate_for(out.parameters);
  out.tokens = tokens_per_step * out.steps;
  out.epochs = out.tokens / text_tokens;
  out.minutes = out.tokens * per_token / (in.flops_per_second * kUtilization) / 60;
  return out;
}

std::string minutes_text(double minutes) {
  return minutes < 1 ? "less than a minute" : "about " + counted(std::llround(minutes), "minute");
}

std::string to_yaml(const FirstConfig& c, const FirstConfigPaths& p) {
  const LlamaConfig& m = c.model;
  auto quoted = [](const std::string& text) {
    return config::to_inline_yaml(config::Value::of(std::string(text)));
  };
  const std::string text_key =
      p.text_key == "text"
          ? ""
          : fmt::format("\n  text_key: {:<16} # key that holds the text in JSON lines", quoted(p.text_key));
  return fmt::format(
      R"(# A first model for this text: {:.1f}M parameters, {} tokens ({:.1f} epochs), {} on the machine that made this file.
# `ottava config THIS_FILE --comments` explains every key. Keys can also be set on the command line: --training.steps 1000

job:
  description: first model   # what the log calls the run
  dump_folder: {:<13} # output folder, relative to where ottava is started

model:                       # dimensions, chosen for the text and the time
  dim: {:<21} # model width; larger models need more tokens, about 20 per parameter
  n_layers: {:<16} # number of transformer blocks
  n_heads: {:<17} # attention heads, which divide dim; each has {} elements
  ffn_dim: {:<17} # width of the feed-forward layers, about 8/3 of dim
  tie_embeddings: {:<10} # true: input and output share one table; two would be much of a small model
  hf_assets_path: {:<10} # folder of the tokenizer; a model only knows the one that it was trained with

training:
  dataset_path: {:<12} # the text{}
  seq_len: {:<17} # tokens that the model sees at once; more of them take more memory and time
  local_batch_size: {:<8} # sequences processed at once; lower it if memory is short
  global_batch_size: {:<7} # sequences per step, reached by gradient accumulation
  steps: {:<19} # a step is {} tokens; more steps take longer and repeat the text more often

optimizer:
  lr: {:<22} # learning rate, the first key to tune: try half and double

lr_scheduler:
  warmup_steps: {:<12} # steps in which the learning rate rises to lr
  decay_ratio: 0.8           # in this fraction of all steps, at the end, it falls
  min_lr_factor: 0.1         # to this fraction of lr

checkpoint:
  enable: true               # the same command resumes from the newest checkpoint
  interval: {:<16} # steps between checkpoints
  keep_latest_k: 2           # older ones are deleted; 0 keeps all

metrics:
  log_freq: 10               # steps between lines of the log
)",
      c.parameters * 1e-6, with_commas(std::llround(c.tokens)), c.epochs, minutes_text(c.minutes),
      quoted(p.output), m.dim, m.layers, m.heads, m.head_dim, m.ffn_dim, m.tied_embeddings,
      quoted(p.tokenizer), quoted(p.text), text_key, c.sequence, c.local_batch, c.global_batch, c.steps,
      c.global_batch * c.sequence, c.learning_rate, c.warmup, std::max<int64_t>(c.steps / 10, 1));
}

}  // namespace ottava
