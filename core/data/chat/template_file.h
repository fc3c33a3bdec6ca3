#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/data/chat/chat_template.h"

namespace ottava::data {

/// What a model's folder says of its template: chat_template.jinja, else chat_template of
/// tokenizer_config.json (a string, or the one named "default" of several).
struct TemplateFile {
  std::string path;  ///< that has it
  std::string jinja;
  std::optional<ChatTemplate> style;  ///< which of ours it is
};
/// Nothing where there is none. Throws FileError for files that cannot be read.
std::optional<TemplateFile> read_template_file(const std::filesystem::path& folder);

/// The template named, or for "auto" that of the folder. Throws ConfigError: the folder has none, or none of
/// ours; `option` is what a user sets to name one ("chat.template").
ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& folder,
                                  std::string_view option);

}  // namespace ottava::data
