#include "apps/config/chat_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "apps/config/training_config.h"
#include "apps/config/validation_config.h"
#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/error.h"

namespace ottava {

void declare(config::Section& s, ChatConfig& c) {
  s.meaning("fine-tuning on conversations (training.format messages, sharegpt or prompt_completion)");
  s.field("template", c.style,
          fmt::format("chat template, one of {}; auto: the one in model.hf_assets_path",
                      fmt::join(data::chat_template_names(), ", ")));
  using data::TrainOn;
  s.choice(
      "train_on", c.train_on,
      {{"assistant", TrainOn::assistant}, {"last", TrainOn::last}, {"all", TrainOn::all}},
      "tokens that the loss counts; assistant: every answer with its end token; last: only the last "
      "answer; all: everything; of format prompt_completion none counts what is under prompt, but for a "
      "token that goes on into the completion; a message's own \"train\": true or false takes precedence");
  s.field("system", c.system,
          "system message for conversations without one, but not for a prompt and a completion that are "
          "strings, which no template writes; empty: the template's default");
  s.field("date", c.date, "date written as \"Today Date\" by the templates llama3.1 and llama3.2");
}

void validate(const ChatConfig& c, config::Problems& problems) {
  if (c.style == "auto") return;
  try {
    data::chat_template_named(c.style);
  } catch (const ConfigError& error) {
    problems.add("chat.template", error);
  }
}

namespace {

std::vector<std::string> formats_of_validation(const TrainingConfig& t, const ValidationConfig& v) {
  if (!v.enable) return {};
  if (v.datasets.empty()) return {t.format};
  std::vector<std::string> formats;
  for (const ValidationSetConfig& set : v.datasets) formats.push_back(set.format.value_or(t.format));
  return formats;
}
bool any_is_chat(const std::vector<std::string>& formats) {
  return std::ranges::any_of(formats,
                             [](const std::string& f) { return data::chat_format_named(f).has_value(); });
}

}  // namespace

std::vector<std::string> formats_of(const TrainingConfig& t) {
  if (t.mixture.empty()) return {t.format};
  std::vector<std::string> formats;
  for (const MixtureSourceConfig& source : t.mixture) formats.push_back(source.format.value_or(t.format));
  return formats;
}

bool reads_chats(const TrainingConfig& c) { return any_is_chat(formats_of(c)); }

bool validates_chats(const TrainingConfig& t, const ValidationConfig& v) {
  return any_is_chat(formats_of_validation(t, v));
}

std::vector<std::string> formats_of(const TrainingConfig& t, const ValidationConfig& v) {
  std::vector<std::string> formats = formats_of(t);
  std::ranges::move(formats_of_validation(t, v), std::back_inserter(formats));
  return formats;
}

}  // namespace ottava
