#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/config/value.h"

namespace ottava::config {

/// Limits that no honest file meets and that keep a hostile one harmless.
inline constexpr size_t kMaxBytes = 1 << 20;
inline constexpr size_t kMaxDepth = 32;
inline constexpr size_t kMaxValues = 100'000;  ///< after anchors are expanded

/// Throws ConfigError for a text of more than kMaxBytes.
void check_size(std::string_view text, std::string_view name);

/// Text to a tree with locations. `name` appears in the locations. YAML: one document, plain scalars by the
/// 1.2 core schema, anchors, aliases and `<<` merges; tags are refused. TOML 1.0; dates are refused. In both
/// a key given twice is an error, and the document must be a table (an empty one is an empty table).
/// Throws ConfigError "name:line:column: ...".
Value parse_yaml(std::string_view text, const std::string& name);
Value parse_toml(std::string_view text, const std::string& name);

/// A YAML flow value of the command line: "[{match: output, recipe: bf16}]", "[a, b]". Throws ConfigError.
Value parse_yaml_value(std::string_view text, const std::string& name);

/// Reads a .yaml, .yml or .toml file. Throws FileError when it cannot be read, is no regular file or is
/// larger than kMaxBytes, ConfigError for another extension or malformed text.
Value read_file(const std::filesystem::path& path);

}  // namespace ottava::config
