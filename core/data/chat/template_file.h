#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/data/chat/chat_template.h"

namespace ottava::data {

/// The template in a model's folder: chat_template.jinja, else chat_template of tokenizer_config.json (a
/// string or, of several, the one named "default").
struct TemplateFile {
  std::string path;  ///< the file that has it
  std::string jinja;
  std::optional<ChatTemplate> style;  ///< which of the known templates it is
};
/// The template of `folder`; nothing if it has none. Throws FileError for files that cannot be read.
std::optional<TemplateFile> read_template_file(const std::filesystem::path& folder);

/// The template of this name or, for "auto", that of the folder. Throws ConfigError if the folder has none,
/// or one that is not known; `option` is what a user sets to name one ("chat.template").
ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& folder,
                                  std::string_view option);

}  // namespace ottava::data
