#include "apps/commands/data_command.h"

#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "apps/commands/encoded_segment.h"
#include "apps/config/installed.h"
#include "apps/data/left_out.h"
#include "core/data/chat/chat_encoder.h"
#include "core/data/chat/masked_token.h"
#include "core/data/chat/template_file.h"
#include "core/data/corpus.h"
#include "core/data/data_check.h"
#include "core/data/packing.h"
#include "core/data/shard_writer.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/data/whole_packing.h"
#include "core/error.h"
#include "core/io/folder.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using fmt::print;

namespace fs = std::filesystem;
using namespace data;
constexpr std::string_view kInspect = "data inspect";

std::string quote(std::string_view text, size_t limit) {
  std::string quoted;
  for (char c : text.substr(0, limit)) {
    if (c == '\n')
      quoted += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20)
      quoted += ' ';
    else
      quoted += c;
  }
  // The cut may have left part of a character behind.
  if (text.size() > limit) {
    while (!quoted.empty() && (static_cast<unsigned char>(quoted.back()) & 0xc0) == 0x80) quoted.pop_back();
    if (!quoted.empty() && static_cast<unsigned char>(quoted.back()) >= 0xc0) quoted.pop_back();
    quoted += "...";
  }
  return quoted;
}

void show_file(const DataFile& file, DataInspectOptions::Verify verify, std::ostream& out) {
  constexpr std::string_view kPacked[]{"", ", gzip", ", zstd"};
  print(out, "  {}: {}{}, {}", file.path, name_of(file.format),
        kPacked[static_cast<size_t>(file.compression)], counted(file.bytes, "byte"));
  if (is_tokenized(file.format)) {
    auto shard = TokenShard::open(file.path, file.format);
    print(out, ", {} of {} bytes", counted(shard->tokens(), "token"), shard->token_bytes());
    if (file.format == Format::ottava_shard) {
      ShardHeader header = read_shard_header(shard->file());
      print(out, ", {}, vocabulary {}, tokenizer {}", counted(header.documents, "document"),
            header.vocab_size, shard->fingerprint());
      if (verify == DataInspectOptions::Verify::contents) {
        uint64_t found = compute_token_checksum(shard->file(), shard->begin(), shard->end());
        if (found != header.checksum) {
          fail<FileError>(kInspect,
                          "'{}' is damaged: its tokens have checksum {:016x}, the header says {:016x}",
                          file.path, found, header.checksum);
        }
        out << ", checksum good";
      }
    }
  }
  out << "\n";
}

// Conversations as training sees them, each with the mask of its loss. `what` they are: the first block or,
// of a block with a large compressed file, its beginning.
void inspect_conversations(const DataInspectOptions& options, const Tokenizer& tokenizer,
                           const std::vector<std::vector<int32_t>>& conversations, std::string_view what,
                           std::ostream& out) {
  const std::string_view begin = options.is_coloured ? "\033[32m" : "[[",
                         end = options.is_coloured ? "\033[0m" : "]]";
  print(out, "the loss counts what is {}\n", options.is_coloured ? "green" : "in [[double brackets]]");
  int64_t counted_tokens = 0, tokens = 0;
  for (size_t c = 0; c < conversations.size(); ++c) {
    const auto of_loss = std::ranges::count_if(conversations[c], [](int32_t t) { return !is_masked(t); });
    counted_tokens += of_loss;
    tokens += std::ssize(conversations[c]);
    if (static_cast<int64_t>(c) >= options.documents) continue;
    print(out, "conversation {} ({}, {} of them count):\n", c, counted(conversations[c].size(), "token"),
          of_loss);
    bool counts = false;
    for (int32_t token : conversations[c]) {
      if (counts == is_masked(token)) out << ((counts = !counts) ? begin : end);
      const int32_t id = id_of(token);
      out << tokenizer.decode(std::span(&id, 1));
    }
    out << (counts ? end : "") << "\n";
  }
  const WholePacked whole =
      pack_whole(conversations, {.seq_len = options.seq_len, .pad_id = tokenizer.pad_id().value_or(0)});
  const int64_t windows = whole.packed.windows(options.seq_len), room = windows * (options.seq_len + 1);
  print(out,
        "{}: {}, {}, {} of which count; {} of seq_len + 1 = {} tokens, {:.1f}% of them pads; {} longer than "
        "that left out\n",
        what, counted(conversations.size(), "conversation"), counted(tokens, "token"), counted_tokens,
        counted(windows, "window"), options.seq_len + 1,
        room > 0 ? 100 * (1 - static_cast<double>(whole.tokens) / room) : 0.0,
        counted(whole.too_long, "conversation"));
}

TrainOn train_on_of(const std::string& option) {
  try {
    return train_on_named(option);
  } catch (const ConfigError&) {
    fail<ConfigError>(kInspect, "--train-on is '{}', expected assistant, last or all", option);
  }
}

/// What documents are called: bare ids have only the pieces into which the reader cuts them.
std::string_view noun_of(const Corpus& corpus) { return corpus.knows_documents() ? "document" : "piece"; }

/// What training says about the data before its first step, but after a longer look, since nobody waits for a
/// step.
void print_check(const Corpus& corpus, const TextEncoder& encoder, const std::string& text_key,
                 std::ostream& out) {
  constexpr double kSeconds = 10;
  const DataCheck check = DataScan(corpus, encoder, text_key, BadRecords::skip).look(kSeconds);
  print(out, "data check: {} in {:.1f} MB ({}), {}, {} with bytes that are not UTF-8{}\n",
        counted(check.documents, noun_of(corpus)), check.bytes * 1e-6,
        check.is_whole ? "all of it" : fmt::format("as far as {:.0f} seconds go", kSeconds),
        counted(check.bad_records, "bad record"), check.ill_formed,
        check.ill_formed > 0 ? ", the first " + check.first_ill_formed : "");
  if (check.bad_records > 0) {
    print(out, "the first bad record, where training ends unless training.bad_records is skip: {}\n",
          check.first_bad_record);
  }
}

bool is_ids(const Document& document) {
  return document.kind == Document::Kind::u16_tokens || document.kind == Document::Kind::u32_tokens;
}

/// The beginning of a document; `tokens` are its bytes where it is text and there is no tokenizer.
std::string beginning(const Document& document, std::span<const int32_t> tokens, const Tokenizer* tokenizer) {
  constexpr size_t kTokens = 64, kIds = 16, kBytes = 256;
  const auto first = [&](size_t most) { return tokens.first(std::min(tokens.size(), most)); };
  if (tokenizer) return quote(tokenizer->decode(first(kTokens)), 160);
  if (is_ids(document))
    return fmt::format("{}{}", fmt::join(first(kIds), " "), tokens.size() > kIds ? " ..." : "");
  const std::span<const int32_t> bytes = first(kBytes);
  return quote(std::string(bytes.begin(), bytes.end()), 160);
}

void show_documents(const DataInspectOptions& options, std::string_view noun, const Segment& segment,
                    const std::vector<std::vector<int32_t>>& tokens, const Tokenizer* tokenizer,
                    std::ostream& out) {
  int64_t shown = 0;
  for (size_t d = 0; d < tokens.size() && shown < options.documents; ++d) {
    const Document& document = segment.documents[d];
    if (tokens[d].empty()) continue;
    print(out, "{} {} ({}): {}\n", document.goes_on ? "piece" : noun, shown++,
          counted(tokens[d].size(), tokenizer          ? "token"
                                    : is_ids(document) ? "id"
                                                       : "byte"),
          beginning(document, tokens[d], tokenizer));
  }
}

/// What training makes of `what`, the first block or its beginning. Bytes of ids depend on how they are
/// stored and say nothing about text.
void print_windows(const DataInspectOptions& options, std::string_view noun, const Segment& segment,
                   const EncodedSegment& encoded, std::string_view what, std::ostream& out) {
  const std::vector<std::vector<int32_t>>& tokens = encoded.tokens;
  int64_t documents = 0, count = 0, of_text = 0;
  for (size_t d = 0; d < tokens.size(); ++d) {
    documents += !tokens[d].empty() && (noun == "piece" || !segment.documents[d].goes_on);
    count += std::ssize(tokens[d]);
    if (!is_ids(segment.documents[d])) of_text += std::ssize(tokens[d]);
  }
  const int64_t window = options.seq_len + 1;
  print(out, "{}: {}, {}, {}{} of seq_len + 1 = {} tokens, {} dropped\n", what, counted(documents, noun),
        counted(count, "token"),
        of_text > 0
            ? fmt::format("{:.3f} bytes per token; ", static_cast<double>(encoded.text_bytes) / of_text)
            : "",
        counted(count / window, "window"), window, counted(count % window, "token"));
}

/// Without a tokenizer ids of any size are shown, and text is its own bytes.
TextEncoder encoder_of_bytes() {
  TextEncoder encoder;
  encoder.vocab_size = INT32_MAX;
  encoder.encode = [](std::string_view text, std::vector<int32_t>& ids) {
    ids.assign(text.begin(), text.end());
  };
  return encoder;
}

/// Prompts and completions need no template: they take one if it is given, or the tokenizer's folder has one.
std::shared_ptr<const ChatEncoder> chat_encoder_of(const DataInspectOptions& options, ChatFormat format,
                                                   TrainOn train_on,
                                                   const std::shared_ptr<const Tokenizer>& tokenizer) {
  if (!tokenizer)
    fail<ConfigError>(kInspect,
                      "conversations are shown as tokens, which needs a tokenizer: add --tokenizer");
  std::optional<ChatOptions> style;
  const fs::path given = here_or_installed(options.tokenizer),
                 folder = is_folder(given.string()) ? given : given.parent_path();
  if (format != ChatFormat::prompt_completion || options.chat_template != "auto" ||
      read_template_file(folder))
    style = {.style = choose_chat_template(options.chat_template, folder, "--chat-template"),
             .train_on = train_on};
  return std::make_shared<ChatEncoder>(
      tokenizer, ChatEncoder::Options{.format = format,
                                      .chat = style,
                                      .settings = {.style = "--chat-template", .train_on = "--train-on"}});
}

}  // namespace

void inspect_data(const DataInspectOptions& options, std::ostream& out) {
  const TrainOn train_on = train_on_of(options.train_on);
  const std::optional<ChatFormat> chat = chat_format_named(options.format);
  if (!chat && (options.chat_template != "auto" || train_on != TrainOn::assistant)) {
    fail<ConfigError>(kInspect,
                      "--chat-template and --train-on are only for conversations: add --format messages, "
                      "sharegpt or prompt_completion");
  }
  Corpus corpus(find_data_files(options.sources, format_named(options.format)), block_sizes(options.seq_len));
  print(out, "{}, {}, {} of about {} MiB\n", counted(corpus.files().size(), "file"),
        counted(corpus.bytes(), "byte"), counted(corpus.blocks(), "block"), corpus.sizes().block_bytes >> 20);
  for (const DataFile& file : corpus.files()) show_file(file, options.verify, out);

  std::shared_ptr<const Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) tokenizer = Tokenizer::load(here_or_installed(options.tokenizer));
  TextEncoder encoder = tokenizer ? make_text_encoder(tokenizer, DocumentMarks{}) : encoder_of_bytes();
  if (chat) encoder.chat = chat_encoder_of(options, *chat, train_on, tokenizer);
  DocumentEncoder documents(corpus, encoder, options.text_key, BadRecords::skip);
  print_check(corpus, encoder, options.text_key, out);

  Segment segment;
  BlockReader reader(corpus, 0);
  reader.next(segment);
  const std::string_view what = reader.finished() ? "first block" : "beginning of the first block";
  EncodedSegment encoded = encoded_segment(documents, segment);
  if (chat) {
    std::erase_if(encoded.tokens, [](const std::vector<int32_t>& ids) { return ids.empty(); });
    inspect_conversations(options, *tokenizer, encoded.tokens, what, out);
    if (const int64_t joined = documents.joined_completions(); joined > 0)
      print(out, "in {} {}\n", counted(joined, "completion"), kJoinedCompletions);
    return;
  }
  show_documents(options, noun_of(corpus), segment, encoded.tokens, tokenizer.get(), out);
  if (tokenizer) return print_windows(options, noun_of(corpus), segment, encoded, what, out);
  out << "to count tokens and training windows, add --tokenizer\n";
}

}  // namespace ottava
