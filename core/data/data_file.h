#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/byte_stream.h"
#include "core/data/format.h"

namespace ottava::data {

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
/// LICENSE, tokenizer.json or the like), none of folders in them that are unfinished, a tokenizer's, a
/// model's or a run's and, where the source itself is a run's folder, too, nothing under the names that runs
/// write there; the log names those left out. Neither folders nor globs give what `leaves_out`, if given, is
/// true of. A broken link under such a name is an error, and so is a folder that cannot be listed, also where
/// a glob lists it. Empty files are left out.
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
