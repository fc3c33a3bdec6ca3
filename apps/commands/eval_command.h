#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava eval MODEL [--tasks FILE...] [--text SOURCE...]`: how often a model chooses the right answer, and
/// how well it predicts texts. Prints one line for each task and source to `out`, and what is odd to `notes`.
struct EvalCommand {
  std::string model;               ///< step folder of a run, its checkpoint folder, or a Hugging Face folder
  std::vector<std::string> tasks;  ///< files: apps/evaluate/choice_task.h
  std::vector<std::string> texts;  ///< files, folders or globs of text or JSON lines
  std::string text_key = "text";
  int64_t max_examples = -1;          ///< of each task
  int64_t seq_len = 1024, batch = 4;  ///< the most of a pass: smallest_pass()
  std::string json;                   ///< file for the scores, with the log-likelihood of every choice
  std::string device = "auto";
  std::string dtype = "bfloat16";
};
/// Throws ConfigError, FileError, DataError and MemoryError before anything is scored, also for a `json`
/// whose folder is not there; later what reading `texts` throws, and at the end FileError if writing `json`
/// fails, as on a full disk.
void run_eval_command(const EvalCommand& command, std::ostream& out, std::ostream& notes);

void add_eval_command(Command& commands);

}  // namespace ottava
