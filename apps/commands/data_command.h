#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "core/data/text_encoder.h"

namespace ottava {

class Command;

/// `ottava data prepare`: turns text into token shards, once, for runs on many machines; reading them costs
/// next to nothing.
struct DataPrepareOptions {
  std::vector<std::string> sources;  ///< as training takes them: files, folders, globs, @lists
  std::string tokenizer;             ///< folder or tokenizer.json
  std::string output;                ///< folder that does not exist yet or is empty
  std::string format = "auto";       ///< data::format_named()
  std::string text_key = "text";
  std::string bad_records = "error";       ///< as training.bad_records: error or skip
  int64_t tokens_per_shard = 100'000'000;  ///< >= 1
};
struct DataPrepareTotals {
  int64_t shards = 0, documents = 0, tokens = 0;
  int64_t bytes = 0;        ///< of text, which JSON may store in more
  int64_t bad_records = 0;  ///< left out
};
/// Documents keep their order, and begin with BOS and end with EOS where the tokenizer has them; plain text
/// without separators becomes documents of at most 32 KiB. Uses all threads of parallel_for(). Everything is
/// written to a folder beside `output`, which is renamed to `output` at the end, so the result is whole or
/// absent. Prints one line per shard to `out`, and what was left out. Throws ConfigError, FileError,
/// DataError.
DataPrepareTotals prepare_data(const DataPrepareOptions& options, std::ostream& out);

/// `ottava data inspect`: what sources hold, what is wrong with them, and what training would make of them.
struct DataInspectOptions {
  std::vector<std::string> sources;
  std::string tokenizer;        ///< may be empty: then no tokens are counted
  std::string format = "auto";  ///< data::format_named()
  std::string text_key = "text";
  std::string chat_template = "auto";  ///< of conversations: as chat.template
  std::string train_on = "assistant";  ///< as chat.train_on
  bool is_coloured = false;            ///< mark what counts towards the loss by colour, not by [[brackets]]
  int64_t seq_len = 2048;              ///< >= 1
  int64_t documents = 3;               ///< how many to show the beginning of
  enum class Verify { headers, contents };
  Verify verify = Verify::headers;  ///< contents: read shards whole, compare checksums
};
/// Lists files, looks through the data as training does before its first step, shows the first documents and,
/// with a tokenizer, counts the windows of the first block (of a large compressed file: of its beginning).
/// Bad records are left out and counted. Throws FileError for a shard whose contents do not match the
/// checksum in its header, DataError for one of another tokenizer, and what reading throws.
void inspect_data(const DataInspectOptions& options, std::ostream& out);

/// Adds `ottava data` with its subcommands.
void add_data_commands(Command& commands);

}  // namespace ottava
