#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "apps/config/experiment.h"
#include "core/data/chat/chat_encoder.h"

namespace ottava {

/// How the run writes conversations; nothing where it reads none, or only prompts and completions and no
/// template is to be had. Throws ConfigError for a template that is not known or not there.
std::optional<data::ChatOptions> chat_options(const Experiment& experiment);

/// What makes tokens of files of this training.format; null where they are no conversations. Throws
/// ConfigError.
std::shared_ptr<const data::ChatEncoder> chat_encoder(const Experiment& experiment,
                                                      const std::string& format);

/// The first document of a row as text, [[what counts towards the loss]] in brackets, not longer than `limit`
/// bytes.
std::string marked_text(const Tokenizer& tokenizer, std::span<const int32_t> inputs,
                        std::span<const int32_t> targets, std::span<const int32_t> document_start,
                        size_t limit = 2000);

}  // namespace ottava
