#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/byte_stream.h"

namespace ottava::data {

enum class Format : uint8_t {
  text,            ///< plain text; `<|endoftext|>` separates documents
  json_lines,      ///< one JSON object per line, the document is the string under one key
  ottava_shard,    ///< written by `ottava data prepare`
  llmc_shard,      ///< llm.c: 1024-byte header, then u16 (GPT-2) or u32 (Llama 3) tokens
  megatron_shard,  ///< Megatron-LM: tokens in .bin, document table in the .idx beside it
  tokens_u16,      ///< nothing but u16 token ids (nanoGPT's train.bin), where the user says so
  tokens_u32,      ///< the same of u32
};
std::string_view name_of(Format format);
/// What a user may ask for: auto (each file's own), text, json_lines, tokens_u16, tokens_u32, and JSON lines
/// of conversations: messages, sharegpt, prompt_completion (core/data/chat/conversation.h).
const std::vector<std::string>& format_names();
/// Nothing for auto. Throws ConfigError for any other name.
std::optional<Format> format_named(std::string_view name);
inline bool is_tokenized(Format format) { return format >= Format::ottava_shard; }

/// By the end of the name: .gz, .zst, .zstd.
Compression compression_of(std::string_view path);

struct DataFile {
  std::string path;
  Format format = Format::text;
  Compression compression = Compression::none;
  int64_t bytes = 0;  ///< as stored
  int64_t mtime_ns = 0;
  /// XXH64 of size, head, middle and tail (4 KiB each): notices files that were exchanged, not every change
  /// of one (data_version.h), and costs three small reads.
  uint64_t content = 0;
};

/// The files behind a list of sources, in the order given; each source is
///   a file; a folder (searched recursively); a glob (`*`, `?`, `[]` in any component);
///   or `@list`, a text file with one source per line (`#` at its start or behind white
///   space begins a comment), relative to that file's folder.
/// Folders and globs give their files in byte order of the path; folders take only files whose names say that
/// they are data
/// (.txt .text .md .jsonl .ndjson .json .bin, text ones also with .gz or .zst; no README, LICENSE or the
/// like), and the log names what they leave out; a link to nothing under such a name is an error. Format,
/// unless `format` gives it: shards are known by their first bytes; .json .jsonl .ndjson, and files whose
/// first line is a JSON object, are JSON lines; everything else is text. Empty files are left out. Throws
/// FileError (missing, unreadable, wrong magic, binary where text is expected) and DataError (nothing to
/// read).
std::vector<DataFile> find_data_files(const std::vector<std::string>& sources,
                                      std::optional<Format> format = {});

/// For messages: "'a.txt', 'b/*.jsonl' and 3 more", "no sources".
std::string names_of_sources(const std::vector<std::string>& sources);

}  // namespace ottava::data
