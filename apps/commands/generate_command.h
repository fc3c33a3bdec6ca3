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

/// `ottava generate --checkpoint DIR [--prompt "..."... --prompts SOURCE | --prompt-file FILE]`: prints each
/// prompt and what the model adds, token by token, one prompt after the other. If none is given, `input` is
/// read; without that, too, the model begins by itself. A final line end of the prompt file or of `input` is
/// not part of the prompt. The text ends at EOS or at a stop token of generation_config.json. With `--chat`,
/// each line of `input` is a turn of the user, or the prompt the only one, and only answers are printed.
struct GenerateCommand {
  std::string checkpoint;
  std::vector<std::string> prompts = {};
  std::string prompt_source;  ///< of further prompts: given_prompts()
  std::string text_key = "text";
  std::string prompt_file;
  std::istream* input = nullptr;
  int64_t max_tokens = 128;
  /// Of each prompt. If there are several texts, each has a line above it,
  /// "==> prompt 1 of 2, sample 2 of 3 <==".
  int64_t samples = 1;
  Sampling sampling{.temperature = 0.8};
  double repetition_penalty = 1;   ///< for tokens of the prompt and those that were added; 1: none
  std::vector<std::string> stops;  ///< the text ends before the first of these that the model adds
  uint64_t seed = 0;               ///< sample i of every prompt draws from stream i of it
  std::string json;  ///< file for the texts, an object a line, begun anew; each line once it is made
  bool is_chat = false;
  std::string system, chat_template = "auto";
  /// Most tokens of a conversation, answers included; absent: 4096, or the model's length if that is less.
  std::optional<int64_t> context;
  std::string device = "auto";
  std::string dtype = "bfloat16";
};
/// Writes a line to `notes` if lines of `prompt_source` are left out, one if the model's length may be
/// exceeded and, without `--chat`, one at the end: tokens and tokens/s. Throws ConfigError, DataError,
/// FileError and MemoryError before a text is printed; later NumericsError for logits that are not finite,
/// FileError where `json` cannot be written, and ConfigError for a conversation that its context does not
/// hold.
void run_generate_command(const GenerateCommand& command, std::ostream& out, std::ostream& notes);

void add_generate_command(Command& commands);

}  // namespace ottava
