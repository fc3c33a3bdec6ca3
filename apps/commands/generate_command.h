#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "apps/generate/sample_token.h"

namespace ottava {

class Command;

/// `ottava generate --checkpoint DIR [--prompt "..." | --prompt-file FILE]`: prints the prompt and what the
/// model adds, token by token. Of a file or of `input`, which is read where neither is given, a last line end
/// is not part of the prompt; without all three the model begins. What it adds ends at EOS, or at a stop
/// token of generation_config.json. With `--chat` each line is a turn of the user, and only answers are
/// printed.
struct GenerateCommand {
  std::string checkpoint;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::istream* input = nullptr;
  int64_t max_tokens = 128;
  int64_t samples = 1;  ///< with more, a line "==> sample 2 of 3 <==" stands before each
  Sampling sampling{.temperature = 0.8};
  double repetition_penalty = 1;   ///< of tokens of the prompt and of those that were added; 1: none
  std::vector<std::string> stops;  ///< the text ends before the first of them that is added
  uint64_t seed = 0;               ///< sample i draws from stream i of it
  bool is_chat = false;
  std::string system, chat_template = "auto";
  /// Tokens of a conversation, answers included; absent: 4096, or the model's length where that is less.
  std::optional<int64_t> context;
  std::string device = "auto";
  std::string dtype = "bfloat16";
};
/// `notes` gets a line where the model's length may be exceeded, and one at the end: tokens and tokens/s.
/// Throws ConfigError and FileError before anything is
/// printed.
void run_generate_command(const GenerateCommand& command, std::ostream& out, std::ostream& notes);

void add_generate_command(Command& commands);

}  // namespace ottava
