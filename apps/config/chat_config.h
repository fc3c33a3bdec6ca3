#pragma once

#include <string>
#include <vector>

#include "core/config/declare.h"
#include "core/data/chat/chat_template.h"

namespace ottava {

struct TrainingConfig;
struct ValidationConfig;

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

/// Whether any data that the run trains on, or any that it validates on, are conversations.
bool reads_chats(const TrainingConfig& c);
bool validates_chats(const TrainingConfig& t, const ValidationConfig& v);
/// The formats of all data that the run trains on, and of all that it reads.
std::vector<std::string> formats_of(const TrainingConfig& t);
std::vector<std::string> formats_of(const TrainingConfig& t, const ValidationConfig& v);

}  // namespace ottava
