#include "apps/config/chat_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "apps/config/training_config.h"
#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/error.h"

namespace ottava {

void declare(config::Section& s, ChatConfig& c) {
  s.meaning("conversations, where training.format says messages, sharegpt or prompt_completion");
  s.field("template", c.style,
          fmt::format("how conversations are written: auto: as the files of model.hf_assets_path say; {}",
                      fmt::join(data::chat_template_names(), ", ")));
  using data::TrainOn;
  s.choice("train_on", c.train_on,
           {{"assistant", TrainOn::assistant}, {"last", TrainOn::last}, {"all", TrainOn::all}},
           "what the loss counts: content and end of every turn of the assistant, of the last one, or "
           "everything; \"train\": true or false of a message goes before");
  s.field("system", c.system, "system message of conversations that have none; empty: as the template does");
  s.field("date", c.date, "of \"Today Date\" in the templates llama3.1 and llama3.2");
}

void validate(const ChatConfig& c, config::Problems& problems) {
  if (c.style == "auto") return;
  try {
    data::chat_template_named(c.style);
  } catch (const ConfigError& error) {
    problems.add("chat.template", error);
  }
}

bool reads_chats(const TrainingConfig& c) {
  const auto is_chat = [](const std::string& format) { return data::chat_format_named(format).has_value(); };
  return is_chat(c.format) || std::ranges::any_of(c.mixture, [&](const MixtureSourceConfig& source) {
           return is_chat(source.format);
         });
}

}  // namespace ottava
