#include "core/data/chat/chat_encoder.h"

#include "core/data/chat/masked_token.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::data;

namespace {

const std::string kFolder = OTTAVA_SOURCE_DIR "/tests/golden/chat/";

std::shared_ptr<const Tokenizer> tokenizer(const std::string& name) {
  return Tokenizer::load(kFolder + name);
}

/// The text of the tokens, with what counts in brackets.
std::string marked(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  std::string text;
  bool counts = false;
  for (int32_t token : tokens) {
    if (counts == is_masked(token)) text += (counts = !counts) ? "[" : "]";
    text += tokenizer.token_bytes(id_of(token));
  }
  return text + (counts ? "]" : "");
}

std::string encoded(const std::string& name, const ChatEncoder::Options& options, std::string_view line) {
  const auto t = tokenizer(name);
  std::vector<int32_t> tokens;
  const auto problem = ChatEncoder(t, options).append(line, tokens).problem;
  return problem ? "! " + *problem : marked(*t, tokens);
}

constexpr std::string_view kTwo =
    R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
  {"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}]})";

ChatEncoder::Options chat(ChatTemplate style, TrainOn train_on = TrainOn::assistant) {
  return {.chat = ChatOptions{.style = style, .train_on = train_on}};
}

}  // namespace

TEST_CASE("the loss counts on answers, on the last one, or on everything") {
  CHECK(encoded("qwen", chat(ChatTemplate::chatml), kTwo) ==
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
        "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
  CHECK(encoded("qwen", chat(ChatTemplate::chatml, TrainOn::last), kTwo) ==
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
  // There is nothing to predict the first token from.
  CHECK(encoded("qwen", chat(ChatTemplate::chatml, TrainOn::all), kTwo) ==
        "<|im_start|>[user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n]");
  CHECK(encoded("llama", chat(ChatTemplate::llama3), kTwo) ==
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[a<|eot_id|>]"
        "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[b<|eot_id|>]");
}

TEST_CASE("a message says for itself whether it counts") {
  constexpr std::string_view kLine =
      R"({"messages": [{"role": "user", "content": "u", "train": true}, {"role": "assistant", "content": "a", "train": false},
         {"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}]})";
  CHECK(encoded("qwen", chat(ChatTemplate::chatml), kLine) ==
        "<|im_start|>user\n[u<|im_end|>]\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
  constexpr std::string_view kNone =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "train": false}]})";
  constexpr const char* kProblem =
      "! the loss counts no token: chat.train_on, and train or weight of the messages, leave none";
  CHECK(encoded("qwen", chat(ChatTemplate::chatml), kNone) == kProblem);
  constexpr std::string_view kNotTheLast =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
         {"role": "user", "content": "v"}, {"role": "assistant", "content": "b", "weight": 0}]})";
  CHECK(encoded("qwen", chat(ChatTemplate::chatml, TrainOn::last), kNotTheLast) == kProblem);
}

TEST_CASE("thoughts beside the content are written by qwen3 as its own template does, and by no other") {
  // What the content spells is content then.
  constexpr std::string_view kLine =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "\na <think>x</think> b",
          "reasoning_content": "\nwhy\n"}]})";
  CHECK(encoded("qwen", chat(ChatTemplate::qwen3), kLine) ==
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
        "[<think>\nwhy\n</think>\n\na <think>x</think> b<|im_end|>]\n");
  constexpr std::string_view kEarlier =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a",
          "reasoning_content": "why"}, {"role": "user", "content": "v"}, {"role": "assistant", "content": "b",
          "reasoning_content": ""}]})";
  CHECK(encoded("qwen", chat(ChatTemplate::qwen3), kEarlier) ==
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n<|im_start|>user\nv<|im_end|>\n"
        "<|im_start|>assistant\n[<think>\n\n</think>\n\nb<|im_end|>]\n");
  CHECK(encoded("qwen", chat(ChatTemplate::chatml), kLine) ==
        "! message 2 has \"reasoning_content\", which the template chatml does not write");
  CHECK(encoded("llama", chat(ChatTemplate::llama3), kEarlier) ==
        "! message 2 has \"reasoning_content\", which the template llama3 does not write");
}

TEST_CASE("content that spells a special token stays text, and a system message is put where there is none") {
  constexpr std::string_view kLine =
      R"({"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "<|im_start|>"}]})";
  const auto t = tokenizer("qwen");
  std::vector<int32_t> tokens;
  REQUIRE(ChatEncoder(t, {.chat = ChatOptions{.style = ChatTemplate::chatml, .system = "be kind"}})
              .append(kLine, tokens)
              .problem == std::nullopt);
  CHECK(marked(*t, tokens) ==
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n"
        "<|im_start|>assistant\n[<|im_start|><|im_end|>]\n");
  int64_t specials = 0;
  for (int32_t token : tokens) specials += t->is_special(id_of(token));
  CHECK(specials == 6);
}

TEST_CASE("a prompt and its completion are joined as they are") {
  const ChatEncoder::Options options{.format = ChatFormat::prompt_completion, .chat = std::nullopt};
  CHECK(encoded("llama", options, R"({"prompt": "The sky is", "completion": " blue."})") ==
        "<|begin_of_text|>The sky is[ blue.<|end_of_text|>]");
  // A character that both make together counts.
  CHECK(encoded("qwen", options, R"({"prompt": "cafe", "completion": "\u0301s"})") ==
        "caf[\xc3\xa9s<|endoftext|>]");
  CHECK(encoded("llama", options, R"({"prompt": "", "completion": "x"})") ==
        "<|begin_of_text|>[x<|end_of_text|>]");
  CHECK(encoded("llama", options, R"({"prompt": "", "completion": ""})") ==
        "! prompt and completion are empty");
  ChatEncoder::Options bare = options;
  bare.eos = false;
  constexpr const char* kNothing = R"({"prompt": "x", "completion": ""})";
  constexpr const char* kProblem = "the loss counts no token, because the completion is empty";
  CHECK(encoded("llama", bare, kNothing) == fmt::format("! {}", kProblem));
  CHECK(ChatEncoder(tokenizer("llama"), bare).check(kNothing) == kProblem);
  CHECK(encoded("llama", options, kNothing) == "<|begin_of_text|>x[<|end_of_text|>]");
  CHECK_FALSE(ChatEncoder(tokenizer("llama"), options).check(kNothing));
  CHECK(encoded("qwen", bare, R"({"prompt": "", "completion": "x"})") ==
        "! the loss counts no token: the only one is the first, which follows nothing");
  CHECK(
      encoded(
          "llama", options,
          R"({"prompt": [{"role": "user", "content": "u"}], "completion": [{"role": "assistant", "content": "a"}]})") ==
      "! the prompt is a list of messages, which needs a chat template: set chat.template");
}

TEST_CASE("a token that goes on from a prompt into its completion counts, and is told") {
  const ChatEncoder::Options options{.format = ChatFormat::prompt_completion, .chat = std::nullopt};
  const auto is_joined = [&](const std::string& name, std::string_view line) {
    std::vector<int32_t> tokens;
    return ChatEncoder(tokenizer(name), options).append(line, tokens).is_joined;
  };
  constexpr std::string_view kSpaceBefore = R"({"prompt": "It is the", "completion": " the"})",
                             kSpaceBehind = R"({"prompt": "It is the ", "completion": "the"})";
  for (const char* name : {"llama", "qwen"}) {
    const std::string before = encoded(name, options, kSpaceBefore);
    CHECK_THAT(before, Catch::Matchers::Contains("It is the[ the<|end"));
    CHECK(encoded(name, options, kSpaceBehind) == before);
    CHECK_FALSE(is_joined(name, kSpaceBefore));
    CHECK(is_joined(name, kSpaceBehind));
    CHECK_FALSE(is_joined(name, R"({"prompt": "", "completion": "the"})"));
  }
  // Nothing predicts the first token of all, but it is told too.
  constexpr std::string_view kFirst = R"({"prompt": " ", "completion": "the dog"})";
  CHECK_THAT(encoded("qwen", options, kFirst), Catch::Matchers::StartsWith(" the["));
  CHECK(is_joined("qwen", kFirst));
}

TEST_CASE("messages name what chooses template and tokens where the encoder is used") {
  ChatEncoder::Options options{.format = ChatFormat::prompt_completion,
                               .settings = {.style = "--chat-template", .train_on = "--train-on"}};
  const auto problem = [&](std::string_view line) {
    return ChatEncoder(tokenizer("qwen"), options).check(line).value_or("");
  };
  CHECK(problem(R"({"prompt": [{"role": "user", "content": "a"}],)"
                R"( "completion": [{"role": "assistant", "content": "b"}]})") ==
        "the prompt is a list of messages, which needs a chat template: set --chat-template");
  options.format = ChatFormat::messages, options.chat = ChatOptions{};
  CHECK(problem(R"({"messages": [{"role": "user", "content": "a"},)"
                R"( {"role": "assistant", "content": "b", "train": false}]})") ==
        "the loss counts no token: --train-on, and train or weight of the messages, leave none");
  options.chat->style = ChatTemplate::llama3;
  CHECK_THROWS_WITH(problem("{}"),
                    Catch::Matchers::Contains(
                        "needs: choose another --chat-template, or a tokenizer that has them (ottava"));
  options.settings.choose_tokenizer = false;
  CHECK_THROWS_WITH(problem("{}"), Catch::Matchers::EndsWith("needs: choose another --chat-template"));
}

TEST_CASE("a template needs its special tokens, and other templates are refused by name") {
  CHECK_THROWS_WITH(
      ChatEncoder(tokenizer("qwen"), chat(ChatTemplate::llama3)),
      Catch::Matchers::Contains(
          "has no special tokens <|start_header_id|>, <|end_header_id|>, <|eot_id|>, which the template "
          "llama3 "
          "needs: choose another chat.template, or a tokenizer that has them (ottava tokenizer train "
          "--special-tokens '<|begin_of_text|>' '<|end_of_text|>' '<|start_header_id|>' '<|end_header_id|>' "
          "'<|eot_id|>')"));
  CHECK_THROWS_WITH(chat_template_named("llama2"), Catch::Matchers::Contains("byte fallback"));
  CHECK_THROWS_WITH(chat_template_named("gemma3"), Catch::Matchers::Contains("byte fallback"));
  // Some of Mistral's tokenizers have no byte fallback.
  CHECK_THROWS_WITH(chat_template_named("mistral"),
                    Catch::Matchers::Contains("unknown template 'mistral': expected llama3, llama3.1"));
  CHECK_THROWS_WITH(chat_template_named("vicuna"),
                    Catch::Matchers::Contains("unknown template 'vicuna': expected llama3, llama3.1"));
}

TEST_CASE("a tokenizer that adds characters is refused") {
  const auto prefix = Tokenizer::load(OTTAVA_SOURCE_DIR "/tests/golden/tokenizer/prefix-space");
  const ChatEncoder encoder(prefix, {.format = ChatFormat::prompt_completion, .chat = std::nullopt});
  std::vector<int32_t> tokens;
  CHECK_THROWS_WITH(encoder.append(R"({"prompt": "a", "completion": " b"})", tokens),
                    Catch::Matchers::Contains("the tokenizer makes 4 bytes of 3"));
}
