#pragma once

#include <string>

#include "core/config/declare.h"
#include "core/data/chat/chat_template.h"

namespace ottava {

struct TrainingConfig;

/// Section `chat`: how conversations become tokens (core/data/chat/README.md). What keys mean:
/// chat_config.cpp.
struct ChatConfig {
  std::string style = "auto";  ///< key `template`
  data::TrainOn train_on = data::TrainOn::assistant;
  std::string system;
  std::string date = data::ChatOptions{}.date;
  bool operator==(const ChatConfig&) const = default;
};

void declare(config::Section& s, ChatConfig& c);
void validate(const ChatConfig& c, config::Problems& problems);

/// Whether any text of the run is conversations.
bool reads_chats(const TrainingConfig& c);

}  // namespace ottava
