#include <fstream>

#include "core/data/chat/chat_encoder.h"
#include "core/data/chat/masked_token.h"
#include "core/data/chat/template_file.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using namespace ottava::data;

namespace {

const std::string kFolder = OTTAVA_SOURCE_DIR "/tests/golden/chat/";

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
    REQUIRE(encoder.append(line.dump(), tokens).problem == std::nullopt);
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
  CHECK(recognise_chat_template("") == std::nullopt);
  for (const std::string& name : chat_template_names()) {
    INFO(name);
    const ChatTemplate style = chat_template_named(name);
    CHECK(name_of(style) == name);
    CHECK(recognise_chat_template(jinja_of(style)) == style);
    const std::string theirs = golden.at("templates", "golden").at(name, "templates").as_string(name);
    CHECK(theirs != jinja_of(style));
    CHECK(recognise_chat_template(theirs) == style);
    CHECK(recognise_chat_template(theirs + "\n") == style);
    CHECK(recognise_chat_template("{# changed #}" + theirs) == std::nullopt);
  }
}

TEST_CASE("a template is read from its own file, else from the tokenizer's configuration") {
  const TemporaryFolder folder;
  const Json golden = Json::parse(read_file(kFolder + "golden.json"), "golden.json");
  const Json& templates = golden.at("templates", "golden");
  const Json llama3 = templates.at("llama3", "t"), qwen3 = templates.at("qwen3", "t");
  const auto entry = [](const char* name, const Json& text) {
    return Json().set("name", name).set("template", text);
  };
  const auto style_with = [&](const Json& chat_template) -> std::optional<ChatTemplate> {
    Json config;
    config.set("chat_template", chat_template);
    std::ofstream(folder / "tokenizer_config.json") << config.dump();
    const std::optional<TemplateFile> file = read_template_file(folder.path());
    return file ? file->style : std::nullopt;
  };
  CHECK_FALSE(read_template_file(folder.path()));
  CHECK(style_with(llama3) == ChatTemplate::llama3);
  CHECK(style_with(Json()) == std::nullopt);
  CHECK(style_with(Json::Array{entry("tool_use", qwen3), entry("default", llama3)}) == ChatTemplate::llama3);
  CHECK(style_with(Json::Array{entry("tool_use", qwen3)}) == std::nullopt);
  CHECK_THROWS_WITH(
      choose_chat_template("auto", folder.path(), "chat.template"),
      Catch::Matchers::Contains("has no default chat template, only 'tool_use' in tokenizer_config.json: set "
                                "chat.template to llama3, "));
  CHECK(style_with(Json()) == std::nullopt);
  CHECK_THROWS_WITH(
      choose_chat_template("auto", folder.path(), "chat.template"),
      Catch::Matchers::Contains("has no chat template (neither chat_template.jinja nor one in"));
  std::ofstream(folder / "chat_template.jinja") << qwen3.as_string("qwen3");
  CHECK(style_with(llama3) == ChatTemplate::qwen3);
  CHECK(choose_chat_template("auto", folder.path(), "chat.template") == ChatTemplate::qwen3);
  CHECK(choose_chat_template("llama3.1", folder.path(), "chat.template") == ChatTemplate::llama3_1);
  std::ofstream(folder / "chat_template.jinja") << "{{ messages }}";
  CHECK_THROWS_WITH(choose_chat_template("auto", folder.path(), "chat.template"),
                    Catch::Matchers::Contains(
                        "chat_template.jinja is not one of the supported templates (llama3, llama3.1") &&
                        Catch::Matchers::Contains("set chat.template to the equivalent one"));
}
