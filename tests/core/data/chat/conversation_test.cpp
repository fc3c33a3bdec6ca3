#include "core/data/chat/conversation.h"

#include <fmt/core.h>

#include "tests/support/catch.h"

using namespace ottava::data;

namespace {

std::string problem_of(std::string_view line, ChatFormat format = ChatFormat::messages) {
  Conversation c;
  return read_conversation(line, format, c).value_or("");
}

Conversation read(std::string_view line, ChatFormat format = ChatFormat::messages) {
  Conversation c;
  INFO(line);
  REQUIRE(read_conversation(line, format, c) == std::nullopt);
  return c;
}

std::string text_of(const Conversation& c) {
  std::string text;
  for (const Message& m : c.messages) {
    text += std::string(name_of(m.role)) + ":" + m.content;
    text += m.train ? (*m.train ? "+ " : "- ") : " ";
  }
  return text;
}

}  // namespace

TEST_CASE("the three forms of conversations are read") {
  CHECK(text_of(read(
            R"({"id": 7, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u",
                        "name": "x"}, {"role": "assistant", "content": "a\nb", "train": false}]})")) ==
        "system:s user:u assistant:a\nb- ");
  CHECK(text_of(read(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a",
                        "weight": 1, "tool_calls": null}]})")) == "user:u assistant:a+ ");
  CHECK(text_of(read(R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "u"},
                        {"from": "gpt", "value": "a"}]})",
                     ChatFormat::sharegpt)) == "system:s user:u assistant:a ");
  const Conversation plain =
      read(R"({"prompt": "2 + 2 =", "completion": " 4"})", ChatFormat::prompt_completion);
  CHECK(plain.is_completion);
  CHECK(text_of(plain) == "user:2 + 2 =- assistant: 4 ");
  const Conversation lists =
      read(R"({"prompt": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
              {"role": "user", "content": "v"}], "completion": [{"role": "assistant", "content": "b"}]})",
           ChatFormat::prompt_completion);
  CHECK_FALSE(lists.is_completion);
  CHECK(text_of(lists) == "user:u- assistant:a- user:v- assistant:b ");
  CHECK(chat_format_named("sharegpt") == ChatFormat::sharegpt);
  CHECK(chat_format_named("json_lines") == std::nullopt);
}

TEST_CASE("thoughts beside the content are read, and a system message beside the messages") {
  const Conversation c = read(R"({"messages": [{"role": "user", "content": "u", "reasoning_content": null},
      {"role": "assistant", "content": "a", "reasoning_content": "t", "thinking": "", "reasoning": null},
      {"role": "user", "content": "v", "reasoning_content": ""}, {"role": "assistant", "content": "b"}],
      "tools": null, "system": "s"})");
  CHECK(text_of(c) == "system:s user:u assistant:a user:v assistant:b ");
  CHECK(c.messages[2].thoughts == "t");
  CHECK(c.messages[4].thoughts == std::nullopt);
  CHECK(text_of(read(R"({"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}],
                         "system": "s", "tools": "[]"})",
                     ChatFormat::sharegpt)) == "system:s user:u assistant:a ");
  CHECK(text_of(read(R"({"conversations": [{"from": "system", "value": "x"}, {"from": "human", "value": "u"},
                         {"from": "gpt", "value": "a"}], "system": "", "tools": ""})",
                     ChatFormat::sharegpt)) == "system:x user:u assistant:a ");
  // What stands before a completion does not count, whatever chat.train_on says.
  CHECK(text_of(read(R"({"prompt": [{"role": "user", "content": "u"}], "system": "s", "tools": [],
                         "completion": [{"role": "assistant", "content": "a"}]})",
                     ChatFormat::prompt_completion)) == "system:s- user:u- assistant:a ");
}

TEST_CASE("what is wrong with a conversation is said in one sentence") {
  const auto expect = [](std::string_view line, std::string_view part,
                         ChatFormat format = ChatFormat::messages) {
    const std::string problem = problem_of(line, format);
    INFO(line << " -> " << problem);
    CHECK(problem.find(part) != std::string::npos);
    CHECK(problem.find('\n') == std::string::npos);
  };
  expect(R"({"messages": [)", "malformed JSON near byte 15");
  expect("3", "the line is an integer, expected a JSON object");
  for (const char* line : {"[]", "[", " [{\"messages\": []},"})
    expect(line, "an array begins here, expected a JSON object on each line: write one for each element");
  for (const char* line : {"Once upon a time", "\"Once\" he said", R"({"text": "x"})"})
    expect(line,
           "; data that are no conversations need a format of their own, such as text or json_lines: "
           "format of the source in training.mixture or of the set in validation.datasets, or "
           "training.format");
  CHECK(problem_of(R"({"messages": [)", ChatFormat::messages).find("no conversations") == std::string::npos);
  expect(R"({"text": "x"})", "the line has no key \"messages\", it has \"text\"");
  expect(R"({"messages": "x"})", "\"messages\" is a string, expected an array of messages");
  expect(R"({"messages": []})", "the conversation has no messages");
  expect(R"({"messages": [3]})", "message 1 is an integer, expected an object");
  expect(R"({"messages": [{"role": "user"}]})", "message 1 has no key \"content\", it has \"role\"");
  expect(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
         "\"content\" of message 1 is an array, expected a string");
  expect(R"({"messages": [{"role": "narrator", "content": ""}]})",
         "message 1 has the role \"narrator\", expected system, user or assistant");
  expect(R"({"messages": [{"role": "user", "content": ""}, {"role": "tool", "content": ""}]})",
         "message 2 has the role \"tool\": training on tool calls is not supported");
  expect(
      R"({"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "tool_calls": [1]}]})",
      "message 2 has \"tool_calls\": training on tool calls is not supported");
  for (const char* tools : {"[{}]", R"("[{\"name\": \"f\"}]")", "{}", "1"})
    expect(fmt::format(R"({{"tools": {}, "messages": []}})", tools), "the line has \"tools\"");
  for (const char* key : {"thinking", "reasoning"})
    expect(fmt::format(R"({{"messages": [{{"role": "assistant", "content": "", "{}": "t"}}]}})", key),
           fmt::format("message 1 has \"{}\": put thoughts into \"reasoning_content\" instead", key));
  expect(R"({"messages": [{"role": "user", "content": "", "reasoning_content": "t"}]})",
         "message 1 has \"reasoning_content\" and is from the user");
  expect(R"({"messages": [{"role": "assistant", "content": "", "reasoning_content": ["t"]}]})",
         "\"reasoning_content\" of message 1 is an array, expected a string");
  expect(R"({"system": {"content": "s"}, "messages": [{"role": "user", "content": ""}]})",
         "\"system\" of the line is an object, expected a string");
  expect(R"({"system": "s", "messages": [{"role": "system", "content": "x"}]})",
         "the line has \"system\", and message 1 is a system message too");
  expect(R"({"system": "s", "prompt": "a", "completion": "b"})",
         "which is not possible if prompt and completion are strings", ChatFormat::prompt_completion);
  expect(R"({"messages": [{"role": "user", "content": "", "train": 1}]})",
         "\"train\" of message 1 is an integer, expected true or false");
  expect(R"({"messages": [{"role": "user", "content": "", "weight": 0.5}]})",
         "\"weight\" of message 1 is 0.5");
  expect(R"({"messages": [{"role": "assistant", "content": ""}]})",
         "message 1 is from the assistant, expected one from the user");
  expect(R"({"messages": [{"role": "user", "content": ""}, {"role": "user", "content": ""}]})",
         "message 2 is from the user, expected one from the assistant");
  expect(R"({"messages": [{"role": "user", "content": ""}, {"role": "system", "content": ""}]})",
         "message 2 is from the system, expected one from the assistant");
  expect(R"({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""}]})",
         "no assistant message");
  expect(R"({"conversations": [{"from": "observation", "value": ""}]})", "tool calls", ChatFormat::sharegpt);
  expect(R"({"conversations": [{"role": "user", "content": ""}]})", "message 1 has no key \"from\"",
         ChatFormat::sharegpt);
  expect(R"({"prompt": "a"})", "the line has no key \"completion\"", ChatFormat::prompt_completion);
  expect(R"({"prompt": "a", "completion": []})", "expected two strings or two arrays",
         ChatFormat::prompt_completion);
  expect("{\"messages\": \"\xff\"}", "malformed JSON");
  expect(R"({"messages": "\ud83d"})", "malformed JSON");
  expect(R"({"id": 1, "conversations": []})",
         "the line has no key \"messages\", it has \"id\", \"conversations\": this line has the format "
         "sharegpt; set training.format to it (or format of the source or set, or --format of data inspect)");
  expect(R"({"messages": []})", "this line has the format messages; set", ChatFormat::sharegpt);
  expect(R"({"prompt": "a", "completion": "b"})", "this line has the format prompt_completion; set");
}
