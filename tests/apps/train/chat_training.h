#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "core/io/json.h"
#include "tests/apps/train/training_runs.h"

namespace ottava::test {

inline const std::string kTokenizer = OTTAVA_SOURCE_DIR "/tests/golden/chat/llama";
inline constexpr int64_t kSequence = 160;

inline std::string repeated(std::string_view word, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format(" {}{}", word, i % 7);
  return text;
}

/// Conversations of one to three turns; the longest fit in no window.
inline std::string conversations(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    Json messages;
    for (int turn = 0; turn <= i % 3; ++turn) {
      Json user, assistant;
      user.set("role", "user").set("content", fmt::format("what is {} of {}?", i, turn));
      assistant.set("role", "assistant")
          .set("content", "it is" + repeated("w", 1 + i * 5 % 11 + (i % 20 == 7 ? 90 : 0)));
      messages.push(std::move(user)).push(std::move(assistant));
    }
    Json line;
    lines += line.set("messages", std::move(messages)).dump() + "\n";
  }
  return lines;
}

class ChatTraining : public TinyTraining {
 public:
  ChatTraining() : path(*this / "chats.jsonl") { std::ofstream(path) << conversations(60); }
  Overrides of(const Overrides& more = {}) const {
    return Overrides{"--training.dataset_path", path,
                     "--training.format",       "messages",
                     "--model.hf_assets_path",  kTokenizer,
                     "--chat.template",         "llama3",
                     "--training.seq_len",      std::to_string(kSequence)} +
           more;
  }
  const std::string path;
};

}  // namespace ottava::test
