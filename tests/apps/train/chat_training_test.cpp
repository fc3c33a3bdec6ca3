#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "apps/commands/data_command.h"
#include "apps/commands/generate_command.h"
#include "apps/generate/chat_session.h"
#include "apps/train/chat_data.h"
#include "apps/train/training_data.h"
#include "core/data/chat/masked_token.h"
#include "core/data/chat/template_file.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/gzip.h"
#include "core/log.h"
#include "tests/apps/train/training_runs.h"
#include "tests/core/data/compress.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/thread_ranks.h"

// From lines of conversations to a model that holds one.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kTokenizer = OTTAVA_SOURCE_DIR "/tests/golden/chat/llama";
constexpr int64_t kSequence = 160;

std::string repeated(std::string_view word, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format(" {}{}", word, i % 7);
  return text;
}

/// Conversations of one to three turns, of which the longest fit no window.
std::string conversations(int count) {
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

}  // namespace

TEST_CASE("sets of validation say for themselves what their files hold") {
  ChatTraining chats;
  std::ofstream texts(chats / "texts.jsonl");
  for (int i = 0; i < 50; ++i)
    texts << fmt::format("{{\"body\": \"{}\"}}\n", generated_text(1, static_cast<uint32_t>(i)).substr(0, 80));
  texts.close();
  const auto sets = [&](const std::string& of_chats) {
    return Overrides{"--validation.enable",
                     "true",
                     "--validation.seq_len",
                     std::to_string(kSequence),
                     "--validation.local_batch_size",
                     "2",
                     "--training.steps",
                     "1",
                     "--validation.datasets",
                     "[{name: chats, path: " + chats.path + of_chats + "}, {name: texts, path: " +
                         (chats / "texts.jsonl") + ", format: json_lines, text_key: body}]"};
  };
  TinyTraining::Run run = chats.start("of chats", chats.of(sets("")));
  const auto opened = open_validation_data(run->experiment(), *run.ranks);
  REQUIRE(opened.size() == 2);
  const auto options = [&](int i) { return opened[i].data->loader().sources()[0].loader->options(); };
  CHECK(options(0).encoder.chat != nullptr);
  CHECK(options(0).text_key == "text");
  CHECK(options(1).encoder.chat == nullptr);
  CHECK(options(1).text_key == "body");
  CHECK(run->run() == Trainer::End::completed);
  for (const char* name : {"chats", "texts"})
    CHECK(logged(chats / "of chats", fmt::format("validation_metrics/{}/loss", name)).size() == 1);

  // Training on text: its attention is not changed for what it validates on.
  const Overrides on_text = Overrides{"--model.hf_assets_path", kTokenizer, "--chat.template", "llama3"} +
                            sets(", format: messages");
  CHECK_THAT(message_of([&] { chats.config("on text", on_text); }),
             Contains("validation reads conversations, which must not see each other") &&
                 Contains("set block_causal"));
  finish(chats, "on text", on_text + Overrides{"--model.attn_mask_type", "block_causal"});
  CHECK(logged(chats / "on text", "validation_metrics/chats/loss").size() == 1);
  CHECK_FALSE(fs::exists(chats / "on text/checkpoint"));
}

TEST_CASE("packed conversations have the loss that each has by itself") {
  ChatTraining chats;
  TinyTraining::Run run = chats.start(
      "packed",
      chats.of({"--validation.enable", "true", "--validation.dataset_path", chats.path,
                "--validation.seq_len", std::to_string(kSequence), "--validation.local_batch_size", "1"}));
  const Experiment& e = run->experiment();
  CHECK(e.shape.block_causal);
  auto sets = open_validation_data(e, *run.ranks);
  data::TokenLoader& loader = *sets[0].data->loader().sources()[0].loader;
  double packed = 0, count = 0;
  const int64_t windows = loader.count_samples();
  for (int64_t w = 0; w < windows; ++w) {
    packed += run->engine().validate(sets[0].data->read(w));
    count += static_cast<double>(sets[0].data->valid_tokens());
  }
  CHECK(loader.known().too_long == 3);
  CHECK(loader.known().documents == 57);

  // Each of them in a row of its own, and pads behind.
  const auto encoder = chat_encoder(e, "messages");
  double alone = 0, alone_count = 0;
  std::istringstream lines(conversations(60));
  std::vector<int32_t> inputs(kSequence), targets(kSequence), starts(kSequence), positions(kSequence);
  int64_t rows = 0;
  for (std::string line; std::getline(lines, line);) {
    std::vector<int32_t> tokens;
    REQUIRE(encoder->append(line, tokens) == std::nullopt);
    if (std::ssize(tokens) > kSequence + 1) continue;
    ++rows;
    for (size_t i = 0; i < kSequence; ++i) {
      const bool is_pad = i + 1 >= tokens.size();
      inputs[i] = is_pad ? 0 : data::id_of(tokens[i]);
      targets[i] = is_pad || data::is_masked(tokens[i + 1]) ? data::kNoTarget : tokens[i + 1];
      starts[i] = is_pad ? static_cast<int32_t>(tokens.size() - 1) : 0;
      positions[i] = static_cast<int32_t>(i) - starts[i];
      alone_count += targets[i] != data::kNoTarget;
    }
    alone += run->engine().validate({inputs, targets, starts, positions});
  }
  CHECK(rows == 57);
  CHECK(count == alone_count);
  CHECK(windows < 40);
  CHECK(std::abs(packed / alone - 1) < 1e-5);
}

TEST_CASE("the same conversations are read from every form and from packed files") {
  ChatTraining chats;
  std::string messages, sharegpt, prompts;
  for (int i = 0; i < 200; ++i) {
    const std::string user = fmt::format("what is {}?", i), answer = "it is" + repeated("w", 1 + i * 5 % 11);
    messages += fmt::format(
        R"({{"messages": [{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "{}"}}]}})"
        "\n",
        user, answer);
    sharegpt += fmt::format(
        R"({{"conversations": [{{"from": "human", "value": "{}"}}, {{"from": "gpt", "value": "{}"}}]}})"
        "\n",
        user, answer);
    prompts += fmt::format(
        R"({{"prompt": [{{"role": "user", "content": "{}"}}], "completion": [{{"role": "assistant", "content": "{}"}}]}})"
        "\n",
        user, answer);
  }
  struct Read {
    std::vector<int32_t> inputs, targets, starts;
    int64_t windows;
    bool operator==(const Read&) const = default;
  };
  const auto read = [&](const std::string& format, const std::string& name, const std::string& content) {
    std::ofstream(chats / name, std::ios::binary) << content;
    Overrides overrides = chats.of({"--training.format", format});
    overrides[1] = chats / name;
    const TinyTraining::Run run = chats.start("run of " + name, overrides);
    RankGroups solo = solo_rank_groups();
    data::MixedLoader loader = open_training_data(run.trainer->experiment(), solo);
    Read out{.windows = loader.sources()[0].loader->count_samples()};
    for (auto* all : {&out.inputs, &out.targets, &out.starts})
      all->resize(static_cast<size_t>(out.windows * kSequence));
    loader.read(0, out.windows, {out.inputs.data(), out.targets.data(), out.starts.data()});
    return out;
  };
  const Read plain = read("messages", "plain.jsonl", messages);
  CHECK(plain.windows > 10);
  CHECK(std::ranges::count(plain.targets, data::kNoTarget) > plain.windows * kSequence / 4);
  CHECK(read("messages", "packed.jsonl.gz", gzip(messages)) == plain);
  CHECK(read("messages", "packed.jsonl.zst", data::test::zstd(messages)) == plain);
  CHECK(read("sharegpt", "gpt.jsonl", sharegpt) == plain);
  CHECK(read("sharegpt", "gpt.jsonl.zst", data::test::zstd(sharegpt)) == plain);
  CHECK(read("prompt_completion", "prompts.jsonl", prompts) == plain);
  CHECK(read("prompt_completion", "prompts.jsonl.gz", gzip(prompts)) == plain);
}

TEST_CASE("the loss of a source of conversations is the mean over what counts") {
  ChatTraining chats;
  Overrides overrides = chats.of();
  overrides.erase(overrides.begin(), overrides.begin() + 4);
  overrides = overrides + Overrides{"--training.dataset_path",
                                    "[]",
                                    "--training.mixture",
                                    fmt::format("[{{name: chats, path: {}, format: messages, weight: 1}}, "
                                                "{{name: text, path: {}, weight: 0}}]",
                                                chats.path, chats.text_path()),
                                    "--training.mixture_stages",
                                    "[{from_step: 3, weights: [1, 1]}]",
                                    "--training.steps",
                                    "6"};
  chats.start("mixed", overrides)->run();
  const std::vector<double> own = logged(chats / "mixed", "mixture/chats/loss"),
                            text = logged(chats / "mixed", "mixture/text/loss"),
                            all = logged(chats / "mixed", "loss_metrics/global_avg_loss");
  REQUIRE(own.size() == 6);
  REQUIRE(text.size() == 4);
  for (size_t step = 0; step < 2; ++step) CHECK(std::abs(own[step] / all[step] - 1) < 1e-6);
  // One window of each: their mean by tokens, of which text has more.
  for (size_t step = 2; step < 6; ++step) {
    const double of_text = (all[step] - own[step]) / (text[step - 2] - own[step]);
    INFO("step " << step + 1 << ": " << of_text << " of the tokens are of the text");
    CHECK(of_text > 0.5);
    CHECK(of_text < 1);
  }
}

TEST_CASE("a run shows its first conversation, with what counts in brackets") {
  ChatTraining chats;
  log::set_level(log::Level::info);
  const CapturedOutput captured;
  chats.start("shown", chats.of({"--training.steps", "1"}))->run();
  log::set_level(log::Level::warning);
  CHECK_THAT(captured.text(),
             Contains("First conversation, the loss counts what is in [[double brackets]]:\n"
                      "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nwhat is ") &&
                 Contains("<|end_header_id|>\n\n[[it is w0") && Contains("<|eot_id|>]]"));
}

TEST_CASE(
    "the first conversation is shown whole where ranks share sequences, and where other sources come first") {
  ChatTraining chats;
  const auto shown = [](const std::function<void()>& work) {
    log::set_level(log::Level::info);
    const CapturedOutput captured;
    work();
    log::set_level(log::Level::warning);
    const std::string text = captured.text(), end = "<|eot_id|>]]";
    const size_t first = text.find("First conversation");
    return first == text.npos ? "" : text.substr(first, text.find(end, first) + end.size() - first);
  };
  // A multiple of what two ranks share.
  const Overrides all = chats.of({"--training.seq_len", "512", "--training.steps", "1"});
  const std::string alone = shown([&] { chats.start("alone", all)->run(); });
  CHECK_THAT(alone,
             Contains("what is ") && Contains("[[it is w0") && Catch::Matchers::EndsWith("<|eot_id|>]]"));
  const std::string shared = shown([&] {
    const Config c = chats.config("shared", all + Overrides{"--parallelism.context_parallel_degree", "2"});
    run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
      const Experiment e = resolve_experiment(c, load_tokenizer(c), 2);
      RankGroups ranks(world.split("world", {0, 1}), world.split("world", {0, 1}), e.mesh);
      log::set_rank({world.rank(), 2, world.rank() != 0});
      Trainer(e, ranks, {DeviceType::cpu, 0}, nullptr).run();
    });
  });
  CHECK(shared == alone);
  Overrides mixture = all;
  mixture.erase(mixture.begin(), mixture.begin() + 4);
  const std::string mixed = shown([&] {
    chats
        .start("mixed",
               mixture + Overrides{"--training.dataset_path", "[]", "--training.mixture",
                                   fmt::format("[{{name: text, path: {}, weight: 3}}, "
                                               "{{name: chats, path: {}, format: messages, weight: 1}}]",
                                               chats.text_path(), chats.path)})
        ->run();
  });
  CHECK_THAT(mixed, Contains("First conversation of chats, the loss") && Contains("[[it is w0"));
  CHECK(mixed.substr(mixed.find('\n')) == alone.substr(alone.find('\n')));
}

TEST_CASE("every layout reads the same conversations with the same masks") {
  ChatTraining chats;
  const TinyTraining::Run run = chats.start("layouts", chats.of());
  const Experiment& e = run.trainer->experiment();
  auto step_of = [&](int64_t batch, int64_t micro_batches, int ranks, int64_t position) {
    std::vector<int32_t> all(8 * 3 * kSequence);
    for (int rank = 0; rank < ranks; ++rank) {
      RankGroups solo = solo_rank_groups();
      BatchSource source(open_training_data(e, solo), {.batch = batch,
                                                       .micro_batches = micro_batches,
                                                       .data_rank = rank,
                                                       .data_size = ranks,
                                                       .documents = true});
      const HostTokens& tokens = source.read(position);
      for (int64_t here = 0; here < batch * micro_batches; ++here) {
        const int64_t sample = (here / batch * ranks + rank) * batch + here % batch;
        int64_t part = 0;
        for (const auto& list : {tokens.inputs, tokens.targets, tokens.document_start})
          std::copy_n(list.begin() + here * kSequence, kSequence,
                      all.begin() + (3 * sample + part++) * kSequence);
      }
    }
    return all;
  };
  // Ranks that share sequences have chunks of all three, in two halves.
  auto shared_step = [&](int ranks, int64_t position) {
    std::vector<int32_t> all(8 * 3 * kSequence);
    const int64_t chunk = kSequence / (2 * ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      RankGroups solo = solo_rank_groups();
      BatchSource source(open_training_data(e, solo),
                         {.batch = 8, .documents = true, .context_rank = rank, .context_size = ranks});
      const HostTokens& tokens = source.read(position);
      for (int64_t here = 0; here < 16; ++here) {
        const int64_t sample = here % 8, k = here < 8 ? rank : 2 * ranks - 1 - rank;
        int64_t part = 0;
        for (const auto& list : {tokens.inputs, tokens.targets, tokens.document_start})
          std::copy_n(list.begin() + here * chunk, chunk,
                      all.begin() + (3 * sample + part++) * kSequence + k * chunk);
      }
    }
    return all;
  };
  for (int64_t position : {0, 8, 160}) {
    const std::vector<int32_t> alone = step_of(8, 1, 1, position);
    CHECK(shared_step(2, position) == alone);
    CHECK(shared_step(4, position) == alone);
    CHECK(step_of(2, 4, 1, position) == alone);
    CHECK(step_of(2, 1, 4, position) == alone);
    CHECK(step_of(1, 2, 4, position) == alone);
  }
  CHECK(step_of(8, 1, 1, 0) != step_of(8, 1, 1, 8));
}

TEST_CASE("fine-tuning goes on from any step bit for bit, and epochs say how many there are") {
  ChatTraining chats;
  const Overrides all =
      chats.of({"--training.epochs", "2", "--checkpoint.enable", "true", "--checkpoint.interval", "5"});
  TinyTraining::Run straight = chats.start("straight", all);
  const int64_t windows = *straight->data().loader().sources()[0].loader->samples_per_epoch();
  const int64_t steps = straight->experiment().config.training.steps;
  CHECK(steps == windows);  // two epochs of two samples a step
  CHECK(straight->run() == Trainer::End::completed);
  const Everything whole = everything_of(*straight.trainer);
  CHECK(whole.state.step == steps);

  const std::string from = chats / "straight/checkpoint/step-5";
  for (const auto& entry : fs::directory_iterator(chats / "straight/checkpoint"))
    if (entry.path() != from) fs::remove_all(entry.path());
  TinyTraining::Run resumed = chats.start("straight", all);
  CHECK(resumed->state().step == 5);
  resumed->run();
  CHECK(everything_of(*resumed.trainer) == whole);
}

TEST_CASE("what is wrong with conversations is said before training, with file and line") {
  ChatTraining chats;
  const auto message = [&](const std::string& line, const Overrides& more = {}) {
    const std::string path = chats / "bad.jsonl";
    std::ofstream(path) << conversations(3) << line << "\n";
    Overrides overrides = chats.of(more);
    overrides[1] = path;
    return message_of([&] { chats.start("bad", overrides); });
  };
  const std::string place = "'" + (chats / "bad.jsonl") + "' line 4: ";
  CHECK_THAT(message(R"({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]})"),
             Contains(place + "message 2 is of the user, expected one of the assistant"));
  CHECK_THAT(message(R"({"messages": [{"role": "user", "content": "x"}]})"),
             Contains(place) && Contains("no turn of the assistant"));
  CHECK_THAT(
      message(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [1]}]})"),
      Contains(place) && Contains("tool calls cannot be trained on"));
  CHECK_THAT(
      message(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "train": false}]})"),
      Contains(place + "no token counts towards the loss"));
  CHECK_THAT(message("{\"messages\": ["), Contains(place + "malformed JSON"));
  const std::string packed = chats / "bad.jsonl.gz";
  std::ofstream(packed, std::ios::binary) << gzip(conversations(5) + "{\"messages\": [\n");
  Overrides of_packed = chats.of();
  of_packed[1] = packed;
  CHECK_THAT(message_of([&] { chats.start("packed", of_packed); }),
             Contains("'" + packed + "' line 6: malformed JSON"));
  CHECK(message("{\"messages\": [", {"--training.bad_records", "skip"}) == "no error");
  CHECK_THAT(message("", {"--chat.template", "gemma"}),
             Contains("chat.template") && Contains("byte fallback"));
  CHECK_THAT(message("", {"--chat.template", "qwen3"}), Contains("no special token <|im_start|>"));
  CHECK_THAT(message("", {"--chat.template", "auto"}),
             Contains("has no chat template") && Contains("set chat.template to llama3"));
  CHECK_THAT(message("", {"--model.attn_mask_type", "causal"}), Contains("must not see each other"));
  CHECK_THAT(message("", {"--training.format", "auto"}),
             Contains("if its lines are conversations, set training.format"));
  std::ofstream(chats / "long.jsonl")
      << R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ")"
      << repeated("long", 200) << "\"}]}\n";
  Overrides overrides = chats.of({"--training.epochs", "1"});
  overrides[1] = chats / "long.jsonl";
  CHECK_THAT(message_of([&] { chats.start("long", overrides); }),
             Contains("no conversation of") &&
                 Contains("fits a window of seq_len + 1 = 161 tokens, 1 conversation is longer"));
}

TEST_CASE("what was fine-tuned on conversations is a folder that says how to hold one") {
  ChatTraining chats;
  chats.start("tuned", chats.of(kSaving + Overrides{"--training.steps", "3"}))->run();
  const std::string folder = chats / "tuned/checkpoint/step-3";
  CHECK(read_file(folder + "/chat_template.jinja") == data::jinja_of(data::ChatTemplate::llama3));
  const auto tokenizer = Tokenizer::load(folder);
  const Json generation =
      Json::parse(read_file(folder + "/generation_config.json"), "generation_config.json");
  const auto& stops = generation.at("eos_token_id", "generation").as_array("eos_token_id");
  REQUIRE(stops.size() == 2);
  CHECK(stops[0].as_integer("") == *tokenizer->token_id("<|eot_id|>"));
  CHECK(stops[1].as_integer("") == *tokenizer->eos_id());

  // Fine-tuned further, the folder keeps its template, and nothing needs to be said.
  Config c = chats.config("further",
                          chats.of(kSaving + Overrides{"--training.steps", "2", "--chat.template", "auto"}));
  c.model.hf_assets_path = folder;
  RankGroups ranks = solo_rank_groups();
  Trainer(resolve_experiment(c, load_tokenizer(c), 1), ranks, {DeviceType::cpu, 0}, nullptr).run();
  CHECK(read_file(chats / "further/checkpoint/step-2/chat_template.jinja") ==
        read_file(folder + "/chat_template.jinja"));

  // A conversation that keeps what the model has read is the same as one that reads everything again.
  const auto converse = [&](const std::string& said) {
    std::istringstream in(said);
    std::ostringstream out, notes;
    run_generate_command({.checkpoint = folder,
                          .input = &in,
                          .max_tokens = 12,
                          .sampling = {.temperature = 0},
                          .is_chat = true,
                          .system = "be brief",
                          .context = 200,
                          .dtype = "float32"},
                         out, notes);
    return out.str();
  };
  const std::string two = converse("what is 3 of 0?\nand 4 of 1?\n");
  const std::string first = converse("what is 3 of 0?\n");
  CHECK(two.starts_with(first));
  CHECK(converse("what is 3 of 0?\r\n") == first);
  const std::string second = two.substr(first.size());
  data::Conversation conversation{
      .messages = {{.role = data::Role::system, .content = "be brief"},
                   {.role = data::Role::user, .content = "what is 3 of 0?"},
                   {.role = data::Role::assistant, .content = first.substr(0, first.size() - 1)},
                   {.role = data::Role::user, .content = "and 4 of 1?"}}};
  const data::ChatEncoder encoder(tokenizer,
                                  {.chat = data::ChatOptions{.style = data::ChatTemplate::llama3}});
  std::string prompt = tokenizer->decode(encoder.prompt(conversation));
  prompt.erase(0, std::string_view("<|begin_of_text|>").size());  // generate adds it
  std::ostringstream out, notes;
  run_generate_command({.checkpoint = folder,
                        .prompt = prompt,
                        .max_tokens = 12,
                        .sampling = {.temperature = 0},
                        .dtype = "float32"},
                       out, notes);
  CHECK(out.str() == prompt + second);

  CHECK_THAT(message_of([&] { converse(repeated("word", 200) + "\n"); }),
             Contains("exceed the context of 200: lower --max-tokens, or raise --context"));
  CHECK_THAT(message_of([&] { converse("what is 3 of 0?\n" + repeated("word", 200) + "\n"); }),
             Contains("exceed the context of 200: begin another one, lower --max-tokens"));

  // Past the length that the model is meant for one is told, and by default one does not go there.
  const std::string short_folder = chats / "short";
  fs::copy(folder, short_folder);
  std::string config_json = read_file(folder + "/config.json");
  const std::string key = "\"max_position_embeddings\": ";
  const size_t at = config_json.find(key) + key.size();
  config_json.replace(at, config_json.find_first_not_of("0123456789", at) - at, "64");
  std::ofstream(short_folder + "/config.json") << config_json;
  const auto noted = [&](GenerateCommand command) {
    std::ostringstream said, told;
    command.checkpoint = short_folder;
    command.dtype = "float32";
    run_generate_command(command, said, told);
    return told.str();
  };
  const std::string meant = "and the model is meant for 64 (max_position_embeddings of config.json)";
  CHECK_THAT(noted({.prompt = "what", .max_tokens = 80}),
             Contains("the prompt and --max-tokens make up to ") && Contains(meant));
  CHECK_THAT(noted({.prompt = "what", .max_tokens = 8}), !Contains(meant));
  CHECK_THAT(noted({.prompt = "what is 3 of 0?", .max_tokens = 8, .is_chat = true, .context = 100}),
             Contains("conversations of this --context make up to 100 tokens, " + meant));
  CHECK(noted({.prompt = "what is 3 of 0?", .max_tokens = 8, .is_chat = true}).empty());
  CHECK_THAT(message_of([&] { noted({.prompt = "what is 3 of 0?", .max_tokens = 64, .is_chat = true}); }),
             Contains("--max-tokens 64 leaves no room for a question in a context of 64 tokens"));
}

TEST_CASE("data inspect shows conversations with what counts in brackets, or in colour") {
  ChatTraining chats;
  DataInspectOptions options{.sources = {chats.path}, .tokenizer = kTokenizer, .format = "messages"};
  options.chat_template = "llama3";
  options.seq_len = kSequence;
  options.documents = 1;
  std::ostringstream out;
  inspect_data(options, out);
  CHECK_THAT(out.str(),
             Contains("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nwhat is 0 of 0?<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n[[it is w0<|eot_id|>]]\n"));
  CHECK_THAT(out.str(), Contains("first block: 60 conversations") &&
                            Contains("3 conversations longer than that left out"));
  options.is_coloured = true;
  std::ostringstream coloured;
  inspect_data(options, coloured);
  CHECK_THAT(coloured.str(), Contains("\033[32mit is w0<|eot_id|>\033[0m\n"));
  options.tokenizer.clear();
  CHECK_THAT(message_of([&] { inspect_data(options, out); }), Contains("give --tokenizer"));
  DataPrepareOptions prepare{
      .sources = {chats.path}, .tokenizer = kTokenizer, .output = chats / "shards", .format = "messages"};
  CHECK_THAT(message_of([&] { prepare_data(prepare, out); }), Contains("shards keep no mask of the loss"));
}
