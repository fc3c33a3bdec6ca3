// Chats: the first byte of the input chooses what the rest is: a line of conversations in one of the formats,
// or the template of a model's files.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/data/chat/chat_template.h"
#include "core/data/chat/conversation.h"
#include "core/data/chat/template_file.h"
#include "core/error.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/written_folder.h"

namespace {

using namespace ottava;
using namespace ottava::data;

// What is trained lies within its text, in order; no span is empty.
void check(const std::vector<ChatRun>& runs) {
  for (const ChatRun& run : runs) {
    size_t end = 0;
    for (const ChatRun::Span& span : run.trained) {
      if (span.begin < end || span.end <= span.begin || span.end > run.text.size()) std::abort();
      end = span.end;
    }
  }
}

void render_everywhere(const Conversation& conversation) {
  for (const std::string& name : chat_template_names()) {
    for (TrainOn train_on : {TrainOn::assistant, TrainOn::last, TrainOn::all}) {
      const ChatOptions options{.style = chat_template_named(name), .train_on = train_on, .system = "s"};
      check(render_chat(conversation, options));
    }
  }
}

void read(std::string_view line, ChatFormat format) {
  Conversation conversation;
  if (read_conversation(line, format, conversation)) return;
  test::is_accepted = true;
  if (conversation.is_completion) {
    if (conversation.messages.size() != 2) std::abort();
    return;
  }
  if (order_problem(conversation)) std::abort();
  render_everywhere(conversation);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static test::WrittenFolder folder;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'm':
      read(rest, ChatFormat::messages);
      break;
    case 's':
      read(rest, ChatFormat::sharegpt);
      break;
    case 'p':
      read(rest, ChatFormat::prompt_completion);
      break;
    case 'c':  // tokenizer_config.json
      try {
        folder.write("tokenizer_config.json", rest);
        test::is_accepted = read_template_file(folder.path).has_value();
      } catch (const Error&) {
      }
      break;
  }
  return 0;
}
