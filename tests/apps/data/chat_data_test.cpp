#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "apps/commands/data_command.h"
#include "apps/commands/generate_command.h"
#include "apps/data/training_data.h"
#include "core/io/gzip.h"
#include "core/log.h"
#include "tests/apps/train/chat_training.h"
#include "tests/core/data/compress.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// From lines of conversations to what ranks read.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE("sets of validation say for themselves what their files hold") {
  ChatTraining chats;
  std::ofstream texts(chats / "texts.jsonl");
  for (int i = 0; i < 50; ++i)
    texts << fmt::format("{{\"body\": \"{}\"}}\n", generated_text(1, static_cast<uint32_t>(i)).substr(0, 80));
  texts.close();
  const auto sets = [&](const std::string& of_chats) {
    return words("--validation.enable true --validation.local_batch_size 2 --training.steps 1") +
           Overrides{"--validation.seq_len", std::to_string(kSequence), "--validation.datasets",
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
  CHECK_THAT(
      message_of([&] { chats.config("on text", on_text); }),
      Contains("validation reads conversations, and conversations in the same sequence must not attend") &&
          Contains("set block_causal"));
  finish(chats, "on text", on_text + Overrides{"--model.attn_mask_type", "block_causal"});
  CHECK(logged(chats / "on text", "validation_metrics/chats/loss").size() == 1);
  CHECK_FALSE(fs::exists(chats / "on text/checkpoint"));
}

TEST_CASE(
    "sources of a mixture are read as training.format and training.text_key say, or as they say themselves") {
  ChatTraining chats;
  std::ofstream texts(chats / "texts.jsonl");
  for (int i = 0; i < 50; ++i)
    texts << fmt::format("{{\"body\": \"{}\"}}\n", generated_text(1, static_cast<uint32_t>(i)).substr(0, 80));
  texts.close();
  Overrides mixed = chats.of({"--training.text_key", "body", "--training.mixture",
                              "[{name: chats, path: " + chats.path + ", weight: 1}, {name: texts, path: " +
                                  (chats / "texts.jsonl") + ", weight: 1, format: json_lines}]"});
  mixed[1] = "[]";  // the mixture is in place of dataset_path
  const TinyTraining::Run run = chats.start("mixed", mixed);
  RankGroups solo = solo_rank_groups();
  const data::MixedLoader loader = open_training_data(run.trainer->experiment(), solo);
  const auto options = [&](int i) { return loader.sources()[i].loader->options(); };
  CHECK(options(0).encoder.chat != nullptr);
  CHECK(options(1).encoder.chat == nullptr);
  CHECK(options(1).text_key == "body");
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
  CHECK(read("messages", "packed.jsonl.gz", gzip(messages, "x")) == plain);
  CHECK(read("messages", "packed.jsonl.zst", data::test::zstd(messages)) == plain);
  CHECK(read("sharegpt", "gpt.jsonl", sharegpt) == plain);
  CHECK(read("sharegpt", "gpt.jsonl.zst", data::test::zstd(sharegpt)) == plain);
  CHECK(read("prompt_completion", "prompts.jsonl", prompts) == plain);
  CHECK(read("prompt_completion", "prompts.jsonl.gz", gzip(prompts, "x")) == plain);
}

TEST_CASE("a run shows its first conversation, with what counts in brackets") {
  ChatTraining chats;
  log::set_level(log::Level::info);
  const CapturedOutput captured;
  chats.start("shown", chats.of({"--training.steps", "1"}))->run();
  log::set_level(log::Level::warning);
  CHECK_THAT(captured.text(),
             Contains("First conversation; the loss counts the text in [[double brackets]]:\n"
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
      RankGroups ranks = groups_over(world, e.mesh);
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
  CHECK_THAT(mixed, Contains("First conversation of chats; the loss") && Contains("[[it is w0"));
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
             Contains(place + "message 2 is from the user, expected one from the assistant"));
  CHECK_THAT(message(R"({"messages": [{"role": "user", "content": "x"}]})"),
             Contains(place) && Contains("no assistant message"));
  CHECK_THAT(
      message(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [1]}]})"),
      Contains(place) && Contains("training on tool calls is not supported"));
  CHECK_THAT(
      message(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "train": false}]})"),
      Contains(place + "the loss counts no token"));
  CHECK_THAT(message("{\"messages\": ["), Contains(place + "malformed JSON"));
  const std::string packed = chats / "bad.jsonl.gz";
  std::ofstream(packed, std::ios::binary) << gzip(conversations(5) + "{\"messages\": [\n", "x");
  Overrides of_packed = chats.of();
  of_packed[1] = packed;
  CHECK_THAT(message_of([&] { chats.start("packed", of_packed); }),
             Contains("'" + packed + "' line 6: malformed JSON"));
  CHECK(message("{\"messages\": [", {"--training.bad_records", "skip"}) == "no error");
  Overrides mixed = chats.of(
      {"--training.mixture", "[{name: chats, path: " + chats.path +
                                 ", weight: 1}, {name: prose, path: " + chats.text_path() + ", weight: 1}]"});
  mixed[1] = "[]";
  CHECK_THAT(message_of([&] { chats.start("mixed", mixed); }),
             Contains("'" + chats.text_path() + "' line 1: ") &&
                 Contains("need a format of their own, such as text or json_lines: format of the source"));
  CHECK_THAT(message("", {"--chat.template", "gemma"}),
             Contains("chat.template") && Contains("byte fallback"));
  CHECK_THAT(message("", {"--chat.template", "qwen3"}),
             Contains("no special tokens <|im_start|>, <|im_end|>, which"));
  CHECK_THAT(message("", {"--chat.template", "auto"}),
             Contains("has no chat template") && Contains("set chat.template to llama3"));
  CHECK_THAT(message("", {"--model.attn_mask_type", "causal"}), Contains("must not attend to each other"));
  CHECK_THAT(message("", {"--training.format", "auto"}),
             Contains("if the lines are conversations, set training.format"));
  std::ofstream(chats / "long.jsonl")
      << R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ")"
      << repeated("long", 200) << "\"}]}\n";
  Overrides overrides = chats.of({"--training.epochs", "1"});
  overrides[1] = chats / "long.jsonl";
  CHECK_THAT(message_of([&] { chats.start("long", overrides); }),
             Contains("no conversation of") &&
                 Contains("fits a window of seq_len + 1 = 161 tokens, 1 conversation is longer"));
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
  // The tokenizer may be given as its file, beside which the template lies.
  fs::copy(kTokenizer, chats / "assets");
  std::ofstream(chats / "assets/chat_template.jinja") << data::jinja_of(data::ChatTemplate::llama3);
  options.tokenizer = chats / "assets/tokenizer.json";
  options.chat_template = "auto";
  std::ostringstream by_file;
  inspect_data(options, by_file);
  CHECK_THAT(by_file.str(), Contains("\033[32mit is w0<|eot_id|>\033[0m\n"));
  std::ofstream pairs(chats / "pairs.jsonl");
  for (const char* prompt : {"It is:", "It is ", "So is "})
    pairs << fmt::format(R"({{"prompt": "{}", "completion": "the end"}})", prompt) << "\n";
  pairs.close();
  std::ostringstream of_pairs;
  inspect_data({.sources = {chats / "pairs.jsonl"}, .tokenizer = kTokenizer, .format = "prompt_completion"},
               of_pairs);
  CHECK_THAT(of_pairs.str(), Contains("\nin 2 completions the first token begins in the prompt, as where"));
  options.tokenizer.clear();
  CHECK_THAT(message_of([&] { inspect_data(options, out); }), Contains("add --tokenizer"));
  DataPrepareOptions prepare{
      .sources = {chats.path}, .tokenizer = kTokenizer, .output = chats / "shards", .format = "messages"};
  CHECK_THAT(message_of([&] { prepare_data(prepare, out); }),
             Contains("shards cannot store which tokens the loss counts"));
}
