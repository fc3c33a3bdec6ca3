#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "apps/config/experiment.h"
#include "core/data/chat/chat_encoder.h"

namespace ottava {

/// How the run writes conversations. Nothing if it reads none, or if it reads only prompts and completions
/// and there is no template. Throws ConfigError for a template that is unknown or missing.
std::optional<data::ChatOptions> chat_options(const Experiment& experiment);

/// The encoder for files of this training.format; null if they are not conversations. Throws ConfigError.
std::shared_ptr<const data::ChatEncoder> chat_encoder(const Experiment& experiment,
                                                      const std::string& format);

/// What chat_encoder() would throw for any format that the run reads, when its data is opened.
void check_chats(const Experiment& experiment);

/// The first document of a row as text, with [[what counts towards the loss]] in brackets; past 2000 bytes
/// it ends with "...".
std::string marked_text(const Tokenizer& tokenizer, std::span<const int32_t> inputs,
                        std::span<const int32_t> targets, std::span<const int32_t> document_start);

}  // namespace ottava
