#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava init TEXT [--output DIR] [--minutes M] [--tokenizer DIR] [--text-key KEY]`: prepares a run for
/// a text. Trains a tokenizer on the text (unless one is given), finds how fast the device is that training
/// takes by itself, a GPU if there is one, and writes DIR/ottava.yaml, with comments: a model, a batch and a
/// number of steps that fit the time.
struct InitCommand {
  std::vector<std::string> sources;  ///< as training.dataset_path takes them, but one
  std::string output = "first_model";
  double minutes = 60;
  std::string text_key = "text";  ///< of JSON lines
  std::string tokenizer;          ///< folder; empty: one is trained into DIR/tokenizer
};
/// Prints to `out` what it found and chose, and how to continue. Throws ConfigError, FileError or DataError;
/// for records of the text's first block that training would refuse, before anything is written. Never
/// replaces an existing ottava.yaml.
void run_init_command(const InitCommand& command, std::ostream& out);

void add_init_command(Command& commands);

}  // namespace ottava
