#include "core/data/chat/template_file.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace ottava::data {
namespace {

std::optional<std::string> template_of(const Json& config, const std::string& path) {
  const Json* value = config.find("chat_template");
  if (!value || value->is_null()) return std::nullopt;
  if (value->is_string()) return value->as_string("chat_template");
  for (const Json& entry : value->as_array(path + ": chat_template")) {
    const Json *name = entry.find("name"), *text = entry.find("template");
    if (name && text && name->is_string() && text->is_string() && name->as_string("name") == "default")
      return text->as_string("template");
  }
  return std::nullopt;
}

}  // namespace

std::optional<TemplateFile> read_template_file(const std::filesystem::path& folder) {
  TemplateFile out{.path = (folder / "chat_template.jinja").string()};
  if (std::filesystem::exists(out.path)) {
    out.jinja = read_file(out.path);
  } else {
    out.path = (folder / "tokenizer_config.json").string();
    if (!std::filesystem::exists(out.path)) return std::nullopt;
    std::optional<std::string> text = template_of(Json::parse(read_file(out.path), out.path), out.path);
    if (!text) return std::nullopt;
    out.jinja = std::move(*text);
  }
  out.style = recognise_chat_template(out.jinja);
  return out;
}

ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& folder,
                                  std::string_view option) {
  if (name != "auto") return chat_template_named(name);
  const std::optional<TemplateFile> file = read_template_file(folder);
  if (!file) {
    fail<ConfigError>(
        "chat",
        "{} has no chat template (neither chat_template.jinja nor one in tokenizer_config.json): "
        "set {} to {}",
        folder.string(), option, fmt::join(chat_template_names(), ", "));
  }
  if (!file->style) {
    fail<ConfigError>("chat",
                      "the chat template of {} is not one of the supported templates ({}): set {} to the "
                      "equivalent one, or render conversations into prompt_completion with another tool",
                      file->path, fmt::join(chat_template_names(), ", "), option);
  }
  return *file->style;
}

}  // namespace ottava::data
