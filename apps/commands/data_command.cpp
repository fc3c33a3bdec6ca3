#include "apps/commands/data_command.h"

#include <fmt/ostream.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands/command_line.h"
#include "apps/commands/encoded_segment.h"
#include "apps/config/installed.h"
#include "apps/config/limits.h"
#include "apps/report/metrics_reporter.h"
#include "core/data/chat/conversation.h"
#include "core/data/corpus.h"
#include "core/data/packing.h"
#include "core/data/shard_writer.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "core/io/attempts.h"
#include "core/io/descriptor.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/system_failure.h"
#include "core/io/uninterrupted.h"
#include "core/log.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using fmt::print;

namespace fs = std::filesystem;
using namespace data;
constexpr std::string_view kPrepare = "data prepare";

// Locked while this process lives, however it ends. Closed: it is another's, or cannot be locked.
struct FolderLock {
  Descriptor folder;
  int error = 0;
  bool is_anothers() const { return error == EWOULDBLOCK; }
  explicit FolderLock(const std::string& path)
      : folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!folder.is_open()) {
      error = errno;
      return;
    }
    if (uninterrupted([&] { return ::flock(folder, LOCK_EX | LOCK_NB); }) == 0) return;
    error = errno;
    folder.close();
  }
};

// Removes what was left beside `target` by a process that was killed. One that lives would end first, and all
// work here would be for nothing.
void remove_leftovers(const fs::path& target, std::ostream& out) {
  const std::string start = target.filename().string() + std::string(kUnfinished);
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator it(target.parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(start) && name.find(kUnfinished, start.size()) == std::string::npos &&
        is_unfinished(it->path().string()))
      found.push_back(it->path().string());
  }
  for (const std::string& path : found) {
    const FolderLock lock(path);
    if (lock.is_anothers())
      fail<ConfigError>(kPrepare,
                        "another process is preparing '{}' (its shards so far are in {}): wait for it, or "
                        "choose another output",
                        target.string(), path);
    if (!lock.folder.is_open()) continue;
    print(out, "Removing {}, which was not finished\n", path);
    fs::remove_all(path, error);
  }
}

/// A folder beside the final one; it is removed unless it was renamed to that.
class OutputFolder {
 public:
  OutputFolder(std::string target, std::ostream& out) : target_(std::move(target)) {
    while (target_.size() > 1 && target_.back() == '/') target_.pop_back();
    std::error_code error;
    if (target_.empty()) fail<ConfigError>(kPrepare, "no output folder is given");
    if (fs::exists(target_, error) && !(fs::is_directory(target_, error) && fs::is_empty(target_, error))) {
      fail<ConfigError>(
          kPrepare, "'{}' exists and is not an empty folder; remove it or choose another output", target_);
    }
    fs::create_directories(fs::absolute(target_).parent_path(), error);
    remove_leftovers(fs::absolute(target_), out);
    // Before it is locked, another that starts now takes it for a leftover.
    do {
      path_ = fmt::format("{}{}XXXXXX", target_, kUnfinished);
      if (error || ::mkdtemp(path_.data()) == nullptr) {
        std::string reason = error ? error.message() : std::strerror(errno);
        fail<FileError>(kPrepare, "cannot create a folder beside '{}': {}", target_, reason);
      }
      in_three_attempts({.complaint = fmt::format("{} could not be locked", path_)}, [&] {
        lock_.emplace(path_);
        if (is_of_system(lock_->error)) fail_for_system(lock_->error, kPrepare, "cannot lock " + path_);
      });
    } while (lock_->is_anothers() || !is_there(path_));
    fs::permissions(path_, fs::perms(0755), error);
  }
  OutputFolder(const OutputFolder&) = delete;
  ~OutputFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  void complete() {
    sync_or_warn(path_);
    in_three_attempts({.complaint = fmt::format("{} could not be given its name", target_)},
                      [&] { rename_file(kPrepare, path_, target_); });
    sync_or_warn(fs::absolute(target_).parent_path().string());
  }

 private:
  // The shards themselves have been flushed. To end here would remove them.
  void sync_or_warn(const std::string& folder) const {
    try {
      sync_folder(folder);
    } catch (const FileError& error) {
      log::warning("the shards in '{}' are whole, but a loss of power could take away their names: {}",
                   target_, error.what());
    }
  }

  std::string target_, path_;
  std::optional<FolderLock> lock_;
};

void check(const DataPrepareOptions& options) {
  if (chat_format_named(options.format)) {
    fail<ConfigError>(kPrepare,
                      "shards cannot store which tokens the loss counts: train on the {} files themselves "
                      "(training.format: {})",
                      options.format, options.format);
  }
}

/// Documents, one after the other, into shards of about so many tokens.
class ShardedOutput {
 public:
  ShardedOutput(std::string folder, const TextEncoder& encoder, int64_t tokens_per_shard, std::ostream& out)
      : folder_(std::move(folder)), encoder_(encoder), tokens_per_shard_(tokens_per_shard), out_(out) {}

  void append(const std::vector<int32_t>& document) {
    if (!shard_)
      shard_ = std::make_unique<ShardWriter>(fmt::format("{}/tokens-{:05}.bin", folder_, totals_.shards),
                                             encoder_);
    shard_->append(document);
    if (shard_->tokens() >= tokens_per_shard_) finish();
  }
  /// Of the last shard, if there is one.
  void finish() {
    if (!shard_) return;
    shard_->finish();
    print(out_, "tokens-{:05}.bin: {}, {}\n", totals_.shards, counted(shard_->documents(), "document"),
          counted(shard_->tokens(), "token"));
    totals_.documents += shard_->documents();
    totals_.tokens += shard_->tokens();
    ++totals_.shards;
    shard_.reset();
  }
  /// Shards, documents and tokens that have been finished.
  const DataPrepareTotals& totals() const { return totals_; }

 private:
  std::string folder_;
  const TextEncoder& encoder_;
  int64_t tokens_per_shard_;
  std::ostream& out_;
  std::unique_ptr<ShardWriter> shard_;
  DataPrepareTotals totals_;
};

BadRecords bad_records_of(const DataPrepareOptions& options) {
  if (options.bad_records == "error") return BadRecords::error;
  if (options.bad_records == "skip") return BadRecords::skip;
  fail<ConfigError>(kPrepare, "--bad-records is '{}', expected error or skip", options.bad_records);
}

}  // namespace

DataPrepareTotals prepare_data(const DataPrepareOptions& options, std::ostream& out) {
  check(options);
  const BadRecords bad_records = bad_records_of(options);
  TextEncoder text_encoder =
      make_text_encoder(Tokenizer::load(here_or_installed(options.tokenizer)), DocumentMarks{});
  Corpus corpus(find_data_files(options.sources, format_named(options.format)), {.max_text_bytes = 32 << 10});
  refuse_tokenized(kPrepare, corpus);
  DocumentEncoder encoder(corpus, text_encoder, options.text_key, bad_records);
  OutputFolder folder(options.output, out);

  ShardedOutput shards(folder.path(), text_encoder, options.tokens_per_shard, out);
  int64_t text_bytes = 0;
  for_each_encoded_segment(corpus, encoder, [&](const EncodedSegment& encoded) {
    text_bytes += encoded.text_bytes;
    for (const std::vector<int32_t>& tokens : encoded.tokens)
      if (!tokens.empty()) shards.append(tokens);  // else a bad record, or a text without a token
  });
  shards.finish();
  DataPrepareTotals totals = shards.totals();
  totals.bytes = text_bytes;
  totals.bad_records = encoder.bad_records();
  const std::string left_out =
      totals.bad_records == 0
          ? ""
          : fmt::format("{} left out (--bad-records skip){} {}", counted(totals.bad_records, "bad record"),
                        totals.bad_records == 1 ? ":" : ", one of them", encoder.first_bad_record());
  if (totals.tokens == 0) {
    fail<DataError>(kPrepare, "the sources contain no text: {} with {}, 0 documents{}",
                    counted(corpus.files().size(), "file"), counted(corpus.bytes(), "byte"),
                    left_out.empty() ? "" : "; " + left_out);
  }
  folder.complete();
  if (!left_out.empty()) print(out, "{}\n", left_out);
  print(out, "{}: {}, {}, {} from {} of text ({:.3f} bytes per token); {}\n", options.output,
        counted(totals.shards, "shard"), counted(totals.documents, "document"),
        counted(totals.tokens, "token"), counted(totals.bytes, "byte"),
        static_cast<double>(totals.bytes) / totals.tokens, marks_text(text_encoder));
  return totals;
}

namespace {

void add_prepare(Command& data) {
  auto o = std::make_shared<DataPrepareOptions>();
  data.subcommand("prepare", "tokenize text into shards of token ids")
      .required(
          "sources", o->sources,
          "files, folders or globs; plain text without <|endoftext|> becomes documents of at most 32 KiB")
      .required("--tokenizer", o->tokenizer, "folder with tokenizer.json, or the file itself")
      .required("--output", o->output, "folder for the shards; it must be new or empty")
      .option("--format", o->format, "format of all sources: auto, text or json_lines")
      .option("--text-key", o->text_key, "key that holds the text in JSON lines")
      .option("--bad-records", o->bad_records,
              "what to do with a line of JSON lines that is not an object with the text, as for "
              "training.bad_records: error or skip")
      .option("--tokens-per-shard", o->tokens_per_shard,
              "tokens per shard; a shard ends after the document that reaches this number")
      .within(1)
      .run([o] {
        prepare_data(*o, std::cout);
        return 0;
      });
}

void add_inspect_data(Command& data) {
  auto o = std::make_shared<DataInspectOptions>();
  data.subcommand("inspect", "show what data sources contain and what training makes of them")
      .required("sources", o->sources, "files, folders or globs")
      .option("--tokenizer", o->tokenizer,
              "folder with tokenizer.json, or the file itself, to count tokens with")
      .option("--format", o->format,
              "format of all sources: auto, text, json_lines, tokens_u16, tokens_u32, or for conversations "
              "messages, sharegpt or prompt_completion")
      .option(
          "--chat-template", o->chat_template,
          "chat template for conversations, as for chat.template; auto: the one in the tokenizer's folder")
      .option("--train-on", o->train_on,
              "tokens of conversations that the loss counts: assistant, last or all, as for chat.train_on")
      .option("--text-key", o->text_key, "key that holds the text in JSON lines")
      .option("--seq-len", o->seq_len, "sequence length in tokens, as for training.seq_len")
      .within(1, kMostTokens)
      .option("--documents", o->documents, "number of documents to show")
      .within(0)
      .flag("--verify", o->verify, DataInspectOptions::Verify::contents,
            "read shards completely and compare their checksums")
      .run([o] {
        o->is_coloured = prints_colors({}, 1, ::isatty(STDOUT_FILENO) != 0);
        inspect_data(*o, std::cout);
        return 0;
      });
}

}  // namespace

void add_data_commands(Command& commands) {
  Command data = commands.subcommand("data", "prepare and inspect training data");
  add_prepare(data);
  add_inspect_data(data);
}

}  // namespace ottava
