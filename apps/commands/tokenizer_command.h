#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava tokenizer train --output DIR --vocab-size N SOURCE...`: makes a byte-level BPE tokenizer from text
/// and writes DIR/tokenizer.json and DIR/tokenizer_config.json, which HF `tokenizers` and `transformers` can
/// read as well. Replaces an existing tokenizer only with --overwrite.
struct TokenizerTrainOptions {
  std::vector<std::string>
      sources;  ///< files, folders, globs, @lists as training.dataset_path takes them; no token shards
  std::string text_key = "text";  ///< of JSON lines
  std::string output_folder;
  int32_t vocab_size = 0;
  std::string rules = "llama3";  ///< llama3, gpt2 or qwen2: how text is cut into words
  std::vector<std::string> special_tokens{"<|begin_of_text|>", "<|end_of_text|>"};
  std::string bos_token = "<|begin_of_text|>";
  std::string eos_token = "<|end_of_text|>";
  int64_t max_bytes = 0;  ///< stop after the document that reaches this; 0: read all
  bool overwrites = false;
};
/// Prints to `out` what it read and wrote. If it throws ConfigError, FileError or DataError, no file is
/// written, and a tokenizer that was there stays as it was.
void tokenizer_train(const TokenizerTrainOptions& options, std::ostream& out);

/// `ottava tokenizer encode TOKENIZER [TEXT | --file FILE]`: prints ids on one line; with `pieces` one line
/// per token. Without text and file, all of `input` is one text.
struct TokenizerEncodeOptions {
  std::string tokenizer;
  std::optional<std::string> text;
  std::string file;
  std::istream* input = nullptr;
  enum class Print { ids, pieces };
  Print print = Print::ids;
  enum class Wrap { none, as_the_files_say };  ///< BOS and EOS
  Wrap wrap = Wrap::none;
};
void tokenizer_encode(const TokenizerEncodeOptions& options, std::ostream& out);

/// `ottava tokenizer decode TOKENIZER [IDS | --file FILE]`: prints the text and nothing else. Ids are decimal
/// numbers separated by white space or commas. Without ids and file they come from `input`, and every line is
/// decoded as soon as it arrives. Throws DataError for anything else, and for ids outside the vocabulary.
struct TokenizerDecodeOptions {
  std::string tokenizer;
  std::optional<std::string> ids;
  std::string file;
  std::istream* input = nullptr;
};
void tokenizer_decode(const TokenizerDecodeOptions& options, std::ostream& out);

/// `ottava tokenizer inspect TOKENIZER [--text FILE]`: prints what the files say; with a text also its bytes
/// per token.
struct TokenizerInspectOptions {
  std::string tokenizer;
  std::string text_file;
};
void tokenizer_inspect(const TokenizerInspectOptions& options, std::ostream& out);

/// Adds `ottava tokenizer` with its subcommands.
void add_tokenizer_commands(Command& commands);

}  // namespace ottava
