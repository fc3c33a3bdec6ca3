#pragma once

#include <cstdint>
#include <string>

#include "models/llama/llama_config.h"

namespace ottava {

/// What a first configuration is made for.
struct FirstConfigInputs {
  int64_t text_bytes = 0;       ///< decompressed and without what stores it in JSON, about
  double flops_per_second = 0;  ///< of the matrix products that training will do
  double minutes = 60;          ///< that training should take
  int64_t vocabulary = 0;       ///< 0: chosen by the text, for a tokenizer yet to be trained
};

/// A model, a batch and a number of steps that fit the time without reading the text more often than is
/// useful.
struct FirstConfig {
  LlamaConfig model;
  int64_t sequence = 0, local_batch = 0, global_batch = 0, steps = 0, warmup = 0;
  double learning_rate = 0;
  int64_t parameters = 0;
  double tokens = 0;   ///< trained on
  double epochs = 0;   ///< tokens over what the text has
  double minutes = 0;  ///< estimated
};

/// Compute-optimal within the budget: 20 tokens per parameter (arXiv:2203.15556) at 6 FLOPs each and half of
/// the given rate, but no more than 4 epochs, past which repeated text teaches little (arXiv:2305.16264). At
/// least 20 steps, for which a very small text is read more often and a very short time exceeded. Throws
/// ConfigError for a text too small to train on and a time that is not positive.
FirstConfig choose_first_config(const FirstConfigInputs& inputs);

/// A vocabulary that suits a tokenizer for a text of this size.
int64_t first_vocabulary(int64_t text_bytes);

/// "about 12 minutes", "less than a minute".
std::string minutes_text(double minutes);

/// The configuration as commented YAML. Paths are written as given.
struct FirstConfigPaths {
  std::string text, tokenizer, output;
  std::string text_key = "text";  ///< of JSON lines; written unless it is the default
};
std::string to_yaml(const FirstConfig& config, const FirstConfigPaths& paths);

}  // namespace ottava
