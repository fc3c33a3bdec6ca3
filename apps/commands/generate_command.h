#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace ottava {

class Command;

/// `ottava generate --checkpoint DIR --prompt "..."`: prints the prompt and what the model adds, token by
/// token.
struct GenerateCommand {
  std::string checkpoint;
  std::string prompt;
  int64_t max_tokens = 128;
  double temperature = 0.8;  ///< 0: the likeliest token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 1;
  uint64_t seed = 0;
  std::string device = "auto";
  std::string dtype = "bfloat16";
};
void run_generate_command(const GenerateCommand& command, std::ostream& out);

/// The next token from logits: softmax(logits / temperature) over the top_k likeliest and, of these, the
/// likeliest that together reach top_p; `uniform` in [0, 1) chooses. Ties in order of ids.
struct Sampling {
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
};
int32_t sample_token(const float* logits, int64_t vocab, const Sampling& sampling, double uniform);

void add_generate_command(Command& commands);

}  // namespace ottava
