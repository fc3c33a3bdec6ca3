#include "core/data/data_file.h"

#include <fmt/ranges.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "core/contains.h"
#include "core/data/token_shard.h"
#include "core/error.h"
#include "core/io/attempts.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/io/lfs_pointer.h"
#include "core/io/system_failure.h"
#include "core/io/utf8.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/listed.h"

namespace ottava::data {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kWhere = "data";
constexpr int kListDepth = 8;

bool ends_with(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); });
}

std::string_view without_compression(std::string_view path) {
  return compression_of(path) == Compression::none ? path : path.substr(0, path.rfind('.'));
}

bool is_json(std::string_view path) {
  return ends_with(without_compression(path), {".json", ".jsonl", ".ndjson"});
}

std::string megatron_bin(const std::string& idx) { return idx.substr(0, idx.size() - 4) + ".bin"; }

// A folder may contain other files. Only names that say "data" are taken, and none that say "about the data".
bool is_data_name(const fs::path& path) {
  std::string name = path.filename().string();
  if (!is_json(name) && !name.ends_with(".bin") &&
      !ends_with(without_compression(name), {".txt", ".text", ".md"}))
    return false;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  for (std::string_view about : {"README", "LICENSE", "LICENCE", "COPYING", "CHANGELOG", "CONTRIBUTING"})
    if (name == about || name.starts_with(std::string(about) + ".")) return false;
  return name != "TOKENIZER.JSON" && name != "TOKENIZER_CONFIG.JSON";
}

// Names may contain '#', so a comment begins a line or follows white space.
size_t comment_begin(std::string_view line) {
  for (size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1))
    if (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t') return at;
  return line.size();
}

// The first line is a JSON object or, if it continues past `head`, begins like one.
bool begins_with_json_object(std::string_view head) {
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  if (!head.starts_with('{')) return false;
  const size_t end = head.find('\n');
  if (end == std::string_view::npos && head.size() >= 1024) {
    const size_t key = head.find_first_not_of(" \t", 1);
    return key != std::string_view::npos && head[key] == '"' && contains_text(head, "\":");
  }
  try {
    return Json::parse(head.substr(0, end), "").is_object();
  } catch (const Error&) {
    return false;
  }
}

uint64_t sample_content(const File& file) {
  constexpr int64_t kSample = 4096;
  std::string sample = std::to_string(file.size()) + "\n";
  append_range(file, 0, kSample, sample);
  if (file.size() > kSample) append_range(file, file.size() / 2, kSample, sample);
  if (file.size() > kSample) append_range(file, std::max(file.size() - kSample, kSample), kSample, sample);
  return XXH64(sample.data(), sample.size(), 0);
}

// Under any name and format: as token ids, or as text, it would be trained on.
void refuse_lfs_pointer(const File& file) {
  std::string head;
  append_range(file, 0, 64, head);
  if (is_lfs_pointer(head)) fail<FileError>(kWhere, "'{}': {}", file.path(), kLfsPointer);
}

void refuse_unfinished(const std::string& folder) {
  if (!is_unfinished(folder)) return;
  fail<DataError>(kWhere,
                  "'{}' holds only some of its shards: `ottava data prepare` is writing them, or was broken "
                  "off; prepare the data again, and use the folder that it names at its end",
                  folder);
}

bool has(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::exists(folder / name, error);
}

bool is_dump_folder(const fs::path& folder) { return has(folder, ".lock") && has(folder, "data_index"); }

// What a run writes into its dump folder, unless it is told other names.
bool is_name_in_dump_folder(std::string_view name) {
  constexpr std::string_view kNames[] = {"checkpoint",     "comm_traces",    "data_index",
                                         "decisions.json", "events.jsonl",   "load_only",
                                         "metrics.jsonl",  "profile_traces", "tb"};
  return contains(kNames, name) || (name.starts_with("metrics.rank") && name.ends_with(".jsonl"));
}

// A tokenizer, alone or with a model, or what a run writes: it would be read as data where the folder of the
// text is also that of the work.
bool is_of_a_run(const fs::path& folder) {
  const auto is_there = [&](const char* name) { return has(folder, name); };
  const bool has_tokenizer =
      is_there("tokenizer.json") && (is_there("tokenizer_config.json") || is_there("config.json") ||
                                     is_there("vocab.json") || is_there("merges.txt"));
  return has_tokenizer || is_dump_folder(folder);
}

Format format_of(const File& file, Compression compression) {
  constexpr size_t kHead = 4096;
  std::string head;
  if (compression != Compression::none) {
    if (is_json(file.path())) return Format::json_lines;
    open_stream(file.path(), compression)->append(head, kHead);
    if (contains(head, '\0')) {
      fail<FileError>(kWhere,
                      "'{}' contains no text: byte {} of its decompressed content is 0; expected UTF-8 text "
                      "or JSON lines (unpack archives and token files first)",
                      file.path(), head.find('\0'));
    }
    return begins_with_json_object(head) ? Format::json_lines : Format::text;
  }
  append_range(file, 0, kHead, head);
  if (auto shard = sniff_shard(file.path(), head)) return *shard;
  if (is_json(file.path())) return Format::json_lines;
  if (file.path().ends_with(".bin")) {
    std::array<uint8_t, 4> first{};
    std::copy_n(head.begin(), std::min(head.size(), first.size()), first.begin());
    fail<FileError>(kWhere,
                    "'{}' is no token shard: it starts with {:02x}, expected the magic of ottava, llm.c "
                    "(20240520, 20240801), or a Megatron .idx file beside it; for bare token ids, as nanoGPT "
                    "writes them, set its format ({}) to tokens_u16 or tokens_u32",
                    file.path(), fmt::join(first, " "), kFormatKey);
  }
  if (contains(head, '\0')) {
    const bool is_utf16 = head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff");
    fail<FileError>(
        kWhere, "'{}' is not text: byte {} is 0; expected UTF-8 text, JSON lines (.jsonl) or token shards{}",
        file.path(), head.find('\0'),
        is_utf16 ? "; it begins as UTF-16 does: convert it with iconv -f UTF-16 -t UTF-8" : "");
  }
  if (begins_with_json_object(head)) {
    log::info(
        "data: '{}' is read as JSON lines because its first line is an object (to read it as plain text, set "
        "its format to text: {})",
        file.path(), kFormatKey);
    return Format::json_lines;
  }
  return Format::text;
}

class Finder {
 public:
  Finder(std::optional<Format> format, const LeavesOut& leaves_out)
      : format_(format), leaves_out_(leaves_out) {}
  std::vector<DataFile> files;
  int64_t empty = 0;

  void add(const std::string& source, int depth) {
    std::error_code error;
    if (source.empty())
      fail<DataError>(kWhere, "a source is an empty string; expected a file, folder, glob or @FILE");
    if (source[0] == '@') return add_list(source.substr(1), depth);
    const fs::file_status status = look(source, error);
    if (fs::exists(status))
      refuse_unfinished(fs::is_directory(status) ? source : fs::path(source).parent_path().string());
    if (fs::is_directory(status)) return add_folder(source);
    if (fs::exists(status)) return add_file(source);
    if (source.find_first_of("*?[") == std::string::npos) {
      if (status.type() == fs::file_type::none)
        fail<FileError>(kWhere, "cannot access '{}': {}", source, error.message());
      fail<FileError>(kWhere, "'{}' does not exist; expected a file, folder, glob or @FILE", source);
    }
    add_glob(source, depth);
  }

 private:
  // What there is; `error` says why that cannot be told, where the system does not fail.
  static fs::file_status look(const std::string& source, std::error_code& error) {
    return in_three_attempts({.complaint = fmt::format("'{}' could not be looked at", source)}, [&] {
      const fs::file_status status = fs::status(source, error);
      if (is_of_system(error.value()))
        fail_for_system(error.value(), kWhere, fmt::format("cannot access '{}'", source));
      return status;
    });
  }
  void add_file(const std::string& path) {
    std::optional<DataFile> entry = in_three_attempts(
        {.complaint = fmt::format("'{}' could not be read", path)}, [&] { return look_at(path); });
    if (entry)
      files.push_back(*std::move(entry));
    else
      ++empty;
  }
  // Nothing: it is empty.
  std::optional<DataFile> look_at(std::string path) const {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (status.type() == fs::file_type::none)
      fail_for_system(error.value(), kWhere, fmt::format("cannot access '{}'", path));
    if (!fs::is_regular_file(status)) fail<FileError>(kWhere, "'{}' is not a regular file", path);
    // A Megatron pair is named by either of its files.
    if (path.ends_with(".idx")) path = megatron_bin(path);
    const File file = File::open_for_reading(path);
    if (file.size() == 0) return std::nullopt;
    refuse_lfs_pointer(file);
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0)
      fail_for_system(errno, kWhere, fmt::format("cannot access '{}'", path));
    DataFile entry{.path = path, .compression = compression_of(path), .bytes = file.size()};
    entry.mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    entry.format = format_ ? *format_ : format_of(file, entry.compression);
    if (is_tokenized(entry.format) && entry.compression != Compression::none)
      fail<FileError>(kWhere, "'{}' is compressed, but {} are read directly: unpack it first", path,
                      name_of(entry.format));
    entry.content = sample_content(file);
    return entry;
  }
  // Into `paths` data, into `others` what is left out.
  void list_folder(const std::string& folder, std::vector<std::string>& paths,
                   std::vector<std::string>& others) const {
    paths.clear(), others.clear();
    const bool is_of_run_too = is_dump_folder(folder);
    std::string at = folder;  // what is looked at, or into
    try {
      using Iterator = fs::recursive_directory_iterator;
      for (Iterator i(folder, fs::directory_options::follow_directory_symlink); i != Iterator(); ++i) {
        at = i->path().string();
        const std::string name = i->path().filename().string();
        const bool is_hidden = name.starts_with('.'),
                   is_left_out_here = is_no_data(i->path()) ||
                                      (is_of_run_too && i.depth() == 0 && is_name_in_dump_folder(name));
        if (i->is_directory()) {
          const bool is_left_out =
              !is_hidden && (is_unfinished(i->path().native()) || is_of_a_run(i->path()) || is_left_out_here);
          if (is_left_out) others.push_back(i->path().string());
          if (is_left_out || is_hidden) i.disable_recursion_pending();
          continue;
        }
        if (is_hidden) continue;
        std::error_code error;
        const bool is_data = is_data_name(i->path()), is_regular = i->is_regular_file(error);
        if (is_data && i->is_symlink() && !i->exists(error))
          fail<FileError>(kWhere, "'{}' is a broken link: restore its target, or remove it",
                          i->path().string());
        if (!is_regular && !is_data) continue;
        // The .idx of a Megatron pair goes with its .bin.
        if (i->path().extension() == ".idx") continue;
        const bool is_taken = is_data && is_regular && !is_left_out_here;
        (is_taken ? paths : others).push_back(i->path().string());
      }
    } catch (const fs::filesystem_error& error) {
      fail_for_system(
          error.code().value(), kWhere,
          fmt::format("cannot list '{}'{}", folder, at == folder ? "" : fmt::format(", at '{}'", at)));
    }
  }
  void add_folder(const std::string& folder) {
    std::vector<std::string> paths, others;
    in_three_attempts({.complaint = fmt::format("'{}' could not be listed", folder)},
                      [&] { list_folder(folder, paths, others); });
    std::ranges::sort(paths);
    std::ranges::sort(others);
    if (paths.empty()) {
      fail<DataError>(
          kWhere,
          "folder '{}' contains no data: expected .txt .md .jsonl .json (also .gz, .zst) or .bin files{}",
          folder, others.empty() ? "" : "; left out: " + names_of_sources(others));
    }
    if (!others.empty()) {
      log::info("data: of folder '{}' {} taken, left out: {}", folder, counted(paths.size(), "file"),
                names_of_sources(others));
    }
    for (const std::string& path : paths) add_file(path);
  }
  void add_glob(const std::string& pattern, int depth) {
    std::vector<std::string> paths =
        in_three_attempts({.complaint = fmt::format("the files of '{}' could not be listed", pattern)},
                          [&] { return paths_matching(kWhere, pattern); });
    std::erase_if(paths, [&](const std::string& path) { return is_no_data(path); });
    if (paths.empty()) fail<DataError>(kWhere, "no file matches '{}'", pattern);
    std::ranges::sort(paths);
    for (const std::string& path : paths) {
      const bool goes_with_bin = path.ends_with(".idx") && contains(paths, megatron_bin(path));
      if (!goes_with_bin) add(path, depth);
    }
  }
  void add_list(const std::string& path, int depth) {
    if (depth >= kListDepth)
      fail<DataError>(kWhere, "'@{}': lists are nested more than {} deep", path, kListDepth);
    std::istringstream in(in_three_attempts({.complaint = fmt::format("'{}' could not be read", path)},
                                            [&] { return read_file(path); }));
    std::string line;
    for (bool is_first = true; std::getline(in, line); is_first = false) {
      if (is_first && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
      line.erase(comment_begin(line));
      line.erase(line.find_last_not_of(" \t\r") + 1);
      line.erase(0, line.find_first_not_of(" \t"));
      if (line.empty()) continue;
      bool list = line[0] == '@';
      fs::path source = list ? line.substr(1) : line;
      if (source.is_relative()) source = fs::path(path).parent_path() / source;
      add((list ? "@" : "") + source.string(), depth + 1);
    }
  }

  bool is_no_data(const fs::path& path) const { return leaves_out_ && leaves_out_(path); }

  std::optional<Format> format_;
  const LeavesOut& leaves_out_;
};

}  // namespace

Compression compression_of(std::string_view path) {
  if (path.ends_with(".gz")) return Compression::gzip;
  return ends_with(path, {".zst", ".zstd"}) ? Compression::zstd : Compression::none;
}

bool is_unfinished(const std::string& folder) {
  constexpr size_t kUnique = 6;
  std::string_view name = folder;
  while (name.ends_with('/')) name.remove_suffix(1);
  const size_t end = name.size() - std::min(name.size(), kUnique);
  if (!name.substr(0, end).ends_with(kUnfinished) || contains(name.substr(end), '/')) return false;
  bool has_shard = false, has_hidden = false;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), last; !error && it != last; it.increment(error)) {
    const std::string file = it->path().filename().string();
    const bool is_hidden = file.starts_with('.'),
               is_shard = file.starts_with("tokens-") && file.ends_with(".bin");
    if (!is_hidden && !is_shard) return false;
    (is_shard ? has_shard : has_hidden) = true;
  }
  return !error && (has_shard || !has_hidden);
}

std::vector<DataFile> find_data_files(const std::vector<std::string>& sources, std::optional<Format> format,
                                      const LeavesOut& leaves_out) {
  Finder finder(format, leaves_out);
  for (const std::string& source : sources) finder.add(source, 0);
  if (finder.files.empty()) {
    fail<DataError>(kWhere,
                    "the dataset is empty: {} in {}, all of them empty; expected at least one with text",
                    counted(finder.empty, "file"), names_of_sources(sources));
  }
  if (finder.empty > 0) log::warning("data: {} left out", counted(finder.empty, "empty file"));
  return std::move(finder.files);
}

std::string names_of_sources(const std::vector<std::string>& sources) {
  constexpr size_t kNamed = 3;
  if (sources.empty()) return "no sources";
  return listed(
      sources, [](const std::string& source) { return "'" + source + "'"; }, kNamed);
}

}  // namespace ottava::data
