#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/byte_stream.h"

namespace ottava::data {

/// What a file of data holds. Fingerprints in checkpoints contain these numbers: a new format takes the next.
enum class Format : uint8_t {
  text = 0,            ///< plain text; `<|endoftext|>` separates documents
  json_lines = 1,      ///< one JSON object per line, the document is the string under one key
  ottava_shard = 2,    ///< written by `ottava data prepare`
  llmc_shard = 3,      ///< llm.c: 1024-byte header, then u16 (GPT-2) or u32 (Llama 3) tokens
  megatron_shard = 4,  ///< Megatron-LM: tokens in .bin, document table in the .idx beside it
  tokens_u16 = 5,      ///< nothing but u16 token ids (nanoGPT's train.bin), where the user says so
  tokens_u32 = 6,      ///< the same with u32
};
/// What it is called in messages.
std::string_view name_of(Format format);
/// Whether files hold token ids, not text.
bool is_tokenized(Format format);
/// Whether they hold nothing else, so that only the reader's pieces are known as documents.
bool is_bare(Format format);
/// Formats that a user may name: auto (each file's own), text, json_lines, tokens_u16, tokens_u32, and for
/// JSON lines of conversations messages, sharegpt, prompt_completion (core/data/chat/conversation.h).
const std::vector<std::string>& format_names();
/// The format of this name; nothing for auto. Throws ConfigError for an unknown name.
std::optional<Format> format_named(std::string_view name);

/// What decides the format of a file, for messages.
inline constexpr std::string_view kFormatKey = "training.format, or format of its source or set";

/// The compression, by the end of the name: .gz, .zst, .zstd.
Compression compression_of(std::string_view path);

/// One file of data, as find_data_files() found it.
struct DataFile {
  std::string path;
  Format format = Format::text;
  Compression compression = Compression::none;
  int64_t bytes = 0;  ///< as stored
  int64_t mtime_ns = 0;
  /// XXH64 of size, head, middle and tail (4 KiB each). Detects files that were exchanged, at the cost of
  /// three small reads, but not every change within a file (for which there is data_version.h).
  uint64_t content = 0;
};

/// What stands between the name of the output of `ottava data prepare` and six characters while its shards
/// are being written, or when writing them was broken off.
inline constexpr std::string_view kUnfinished = ".incomplete-";
/// Whether this is such a folder: by its name, and because it holds nothing but shards, beside which a file
/// system may have put hidden files (.nfs0001, .DS_Store).
bool is_unfinished(const std::string& folder);

/// Whether a file or folder is no data, where a folder or glob has it.
using LeavesOut = std::function<bool(const std::filesystem::path& path)>;

/// The files behind a list of sources, in the order given. Each source is
///   a file; a folder (searched recursively); a glob (`*`, `?`, `[]` in any component);
///   or `@list`, a text file with one source per line (`#` at its start or behind white
///   space begins a comment), relative to that file's folder.
///
/// Folders and globs give their files in byte order of the path. Folders take only files whose names say that
/// they are data (.txt .text .md .jsonl .ndjson .json .bin, text ones also with .gz or .zst; no README,
/// LICENSE, tokenizer.json or the like), and none of folders in them that are unfinished, a
/// tokenizer's, a model's or a run's; the log names those left out. Neither folders nor globs give what
/// `leaves_out`, if given, is true of. A broken link under such a name is an
/// error, and so is a folder that cannot be listed, also where a glob lists it. Empty files are left out.
///
/// Unless `format` is given, shards are known by their first bytes; .json .jsonl .ndjson, and files whose
/// first line is a JSON object, are JSON lines; everything else is text.
///
/// Throws FileError (missing, unreadable, a Git LFS pointer; without `format` also a wrong magic, or binary
/// where text is expected) and DataError (nothing to read, an unfinished folder that a source names or
/// whose files it names).
std::vector<DataFile> find_data_files(const std::vector<std::string>& sources,
                                      std::optional<Format> format = {}, const LeavesOut& leaves_out = {});

/// For messages: "'a.txt', 'b/*.jsonl' and 3 more", "no sources".
std::string names_of_sources(const std::vector<std::string>& sources);

}  // namespace ottava::data
