#include "core/data/chat/template_file.h"

#include <fmt/ranges.h>

#include <map>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/text/listed.h"

namespace ottava::data {
namespace {

constexpr const char *kConfig = "tokenizer_config.json", *kDefault = "default";

/// The templates of tokenizer_config.json by their names; a single one has none and is the default.
std::map<std::string, std::string> templates_in(const std::filesystem::path& folder) {
  const std::string path = (folder / kConfig).string();
  if (!is_there(path)) return {};
  const Json config = Json::parse(read_file(path), path);
  const Json* value = config.find("chat_template");
  if (!value || value->is_null()) return {};
  if (value->is_string()) return {{kDefault, value->as_string("chat_template")}};
  std::map<std::string, std::string> templates;
  for (const Json& entry : value->as_array(path + ": chat_template")) {
    const Json *name = entry.find("name"), *text = entry.find("template");
    if (name && text && name->is_string() && text->is_string())
      templates.emplace(name->as_string("name"), text->as_string("template"));
  }
  return templates;
}

[[noreturn]] void refuse_absent(const std::filesystem::path& folder, std::string_view option) {
  constexpr size_t kShown = 8;
  std::string what = "has no chat template (neither chat_template.jinja nor one in tokenizer_config.json)";
  if (const auto others = templates_in(folder); !others.empty()) {
    const auto quoted = [](const auto& entry) { return fmt::format("'{}'", entry.first); };
    what = fmt::format("has no default chat template, only {} in tokenizer_config.json",
                       listed(others, quoted, kShown));
  }
  fail<ConfigError>("chat", "{} {}: set {} to {}", folder.string(), what, option,
                    fmt::join(chat_template_names(), ", "));
}

}  // namespace

std::optional<TemplateFile> read_template_file(const std::filesystem::path& folder) {
  TemplateFile out{.path = (folder / "chat_template.jinja").string()};
  if (is_there(out.path)) {
    out.jinja = read_file(out.path);
  } else {
    out.path = (folder / kConfig).string();
    const std::map<std::string, std::string> templates = templates_in(folder);
    const auto found = templates.find(kDefault);
    if (found == templates.end()) return std::nullopt;
    out.jinja = found->second;
  }
  out.style = recognise_chat_template(out.jinja);
  return out;
}

ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& folder,
                                  std::string_view option) {
  if (name != "auto") return chat_template_named(name);
  const std::optional<TemplateFile> file = read_template_file(folder);
  if (!file) refuse_absent(folder, option);
  if (!file->style) {
    fail<ConfigError>("chat",
                      "the chat template of {} is not one of the supported templates ({}): set {} to the "
                      "equivalent one, or render conversations into prompt_completion with another tool",
                      file->path, fmt::join(chat_template_names(), ", "), option);
  }
  return *file->style;
}

}  // namespace ottava::data
