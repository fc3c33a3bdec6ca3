#include "core/data/chat/chat_encoder.h"
#include "core/data/chat/masked_token.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::data;

namespace {

const std::string kFolder = OTTAVA_SOURCE_DIR "/tests/golden/chat/";

std::vector<int32_t> ids_of(const Json& array) {
  std::vector<int32_t> ids;
  for (const Json& id : array.as_array("ids")) ids.push_back(static_cast<int32_t>(id.as_integer("id")));
  return ids;
}

}  // namespace

TEST_CASE("ids and masks of conversations equal those of HF with the models' own templates") {
  const Json golden = Json::parse(read_file(kFolder + "golden.json"), "golden.json");
  const auto llama = Tokenizer::load(kFolder + "llama"), qwen = Tokenizer::load(kFolder + "qwen");
  const auto& cases = golden.at("cases", "golden").as_array("cases");
  REQUIRE(cases.size() == 78);
  int64_t counted = 0;
  for (const Json& one : cases) {
    const std::string& name = one.at("template", "case").as_string("template");
    Json line;
    line.set("messages", one.at("messages", "case"));
    INFO(name << " " << line.dump());
    const ChatEncoder encoder(name.starts_with("llama") ? llama : qwen,
                              {.chat = ChatOptions{.style = chat_template_named(name)}});
    std::vector<int32_t> tokens;
    REQUIRE(encoder.append(line.dump(), tokens) == std::nullopt);
    std::string mask;
    for (int32_t& token : tokens) {
      mask += is_masked(token) ? '0' : '1';
      token = id_of(token);
    }
    CHECK(tokens == ids_of(one.at("ids", "case")));
    CHECK(mask == one.at("mask", "case").as_string("mask"));
    counted += std::count(mask.begin(), mask.end(), '1');

    Conversation conversation;
    REQUIRE(read_conversation(line.dump(), ChatFormat::messages, conversation) == std::nullopt);
    if (conversation.messages.back().role == Role::assistant) conversation.messages.pop_back();
    CHECK(encoder.prompt(conversation) == ids_of(one.at("prompt", "case")));
  }
  CHECK(counted > 1000);
}

TEST_CASE("templates are recognised by what they say") {
  const Json golden = Json::parse(read_file(kFolder + "golden.json"), "golden.json");
  const std::string llama3 = golden.at("llama3", "golden").as_string("llama3");
  CHECK(recognise_chat_template(llama3) == ChatTemplate::llama3);
  CHECK(recognise_chat_template(llama3 + "\n") == ChatTemplate::llama3);
  CHECK(recognise_chat_template("{# changed #}" + llama3) == std::nullopt);
  CHECK(recognise_chat_template("") == std::nullopt);
  for (const std::string& name : chat_template_names()) {
    const ChatTemplate style = chat_template_named(name);
    CHECK(name_of(style) == name);
    CHECK(recognise_chat_template(jinja_of(style)) == style);
  }
}
