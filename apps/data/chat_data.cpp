#include "apps/data/chat_data.h"

#include <algorithm>

#include "core/data/chat/template_file.h"
#include "core/data/packing.h"

namespace ottava {

std::optional<data::ChatOptions> chat_options(const Experiment& e) {
  const Config& c = e.config;
  if (!reads_chats(c.training) && !validates_chats(c.training, c.validation)) return std::nullopt;
  data::ChatOptions options{.train_on = c.chat.train_on, .system = c.chat.system, .date = c.chat.date};
  const bool needs_template = std::ranges::any_of(
      formats_of(c.training, c.validation),
      [](const std::string& format) { return format == "messages" || format == "sharegpt"; });
  if (c.chat.style == "auto" && !needs_template) {
    const std::optional<data::TemplateFile> file = data::read_template_file(find_assets(c));
    if (!file || !file->style) return std::nullopt;
    options.style = *file->style;
    return options;
  }
  options.style = data::choose_chat_template(c.chat.style, find_assets(c), "chat.template");
  return options;
}

std::shared_ptr<const data::ChatEncoder> chat_encoder(const Experiment& e, const std::string& format) {
  const std::optional<data::ChatFormat> form = data::chat_format_named(format);
  if (!form) return nullptr;
  return std::make_shared<data::ChatEncoder>(e.tokenizer,
                                             data::ChatEncoder::Options{.format = *form,
                                                                        .chat = chat_options(e),
                                                                        .bos = e.config.training.add_bos,
                                                                        .eos = e.config.training.add_eos});
}

void check_chats(const Experiment& e) {
  for (const std::string& format : formats_of(e.config.training, e.config.validation))
    chat_encoder(e, format);
}

std::string marked_text(const Tokenizer& tokenizer, std::span<const int32_t> inputs,
                        std::span<const int32_t> targets, std::span<const int32_t> document_start) {
  constexpr size_t kMostBytes = 2000;
  std::string text;
  bool counts = false;
  for (size_t i = 0; i < inputs.size() && document_start[i] == 0; ++i) {
    const bool now = i > 0 && targets[i - 1] != data::kNoTarget;
    if (now != counts) text += (counts = now) ? "[[" : "]]";
    if (text.size() > kMostBytes) return text + " ...";
    text += tokenizer.decode(inputs.subspan(i, 1));
  }
  return text + (counts ? "]]" : "");
}

}  // namespace ottava
