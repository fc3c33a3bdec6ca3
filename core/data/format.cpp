#include "core/data/format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.h"

namespace ottava::data {
namespace {

enum class Holds { text, tokens, bare_tokens };
struct FormatRow {
  Format format;
  std::string_view name;
  Holds holds;
};
constexpr FormatRow kRows[] = {{Format::text, "text", Holds::text},
                               {Format::json_lines, "JSON lines", Holds::text},
                               {Format::ottava_shard, "ottava shard", Holds::tokens},
                               {Format::llmc_shard, "llm.c shard", Holds::tokens},
                               {Format::megatron_shard, "Megatron shard", Holds::tokens},
                               {Format::tokens_u16, "u16 tokens", Holds::bare_tokens},
                               {Format::tokens_u32, "u32 tokens", Holds::bare_tokens}};

const FormatRow& row_of(Format format) {
  const auto* row = std::ranges::find(kRows, format, &FormatRow::format);
  if (row == std::end(kRows)) fail("data", "format {} has no row in format.cpp", static_cast<int>(format));
  return *row;
}

// What users call them.
const std::vector<std::pair<std::string, std::optional<Format>>> kFormats{
    {"auto", std::nullopt},
    {"text", Format::text},
    {"json_lines", Format::json_lines},
    {"tokens_u16", Format::tokens_u16},
    {"tokens_u32", Format::tokens_u32},
    {"messages", Format::json_lines},
    {"sharegpt", Format::json_lines},
    {"prompt_completion", Format::json_lines}};

}  // namespace

std::string_view name_of(Format format) { return row_of(format).name; }
bool is_tokenized(Format format) { return row_of(format).holds != Holds::text; }
bool is_bare(Format format) { return row_of(format).holds == Holds::bare_tokens; }

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, format] : kFormats) all.push_back(name);
    return all;
  }();
  return names;
}

std::optional<Format> format_named(std::string_view name) {
  for (const auto& [text, format] : kFormats)
    if (text == name) return format;
  fail<ConfigError>("data", "unknown format '{}': expected {}", name, fmt::join(format_names(), ", "));
}

}  // namespace ottava::data
