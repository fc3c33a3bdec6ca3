#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "apps/commands/generate_command.h"
#include "apps/data/chat_data.h"
#include "apps/data/training_data.h"
#include "apps/generate/chat_session.h"
#include "apps/generate/saved_model.h"
#include "apps/generate/stop_tokens.h"
#include "core/data/chat/masked_token.h"
#include "core/data/chat/template_file.h"
#include "core/io/file.h"
#include "parallel/checkpoint/folder.h"
#include "tests/apps/train/chat_training.h"
#include "tests/support/message_of.h"

// From lines of conversations to a model that holds one.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

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
  sets[0].data->read(0);
  CHECK(loader.stats().too_long == 3);  // known with the first window, not at the end of the block
  double packed = 0, count = 0;
  const int64_t windows = loader.count_samples();
  for (int64_t w = 0; w < windows; ++w) {
    packed += run->engine().validate(sets[0].data->read(w));
    count += static_cast<double>(sets[0].data->valid_tokens());
  }
  CHECK(loader.known().too_long == 3);
  CHECK(loader.known().documents == 57);
  for (int64_t w = windows; w <= 2 * windows; ++w) sets[0].data->read(w);
  CHECK(loader.stats().too_long == 3);  // though every epoch leaves them out

  // Each of them in a row of its own, and pads behind.
  const auto encoder = chat_encoder(e, "messages");
  double alone = 0, alone_count = 0;
  std::istringstream lines(conversations(60));
  std::vector<int32_t> inputs(kSequence), targets(kSequence), starts(kSequence), positions(kSequence);
  int64_t rows = 0;
  for (std::string line; std::getline(lines, line);) {
    std::vector<int32_t> tokens;
    REQUIRE(encoder->append(line, tokens).problem == std::nullopt);
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

TEST_CASE("epochs end at the same sample whatever the batches were before") {
  ChatTraining chats;
  const auto of = [&](const std::string& batch, const Overrides& more = {}) {
    return chats.of({"--training.local_batch_size", batch, "--training.epochs", "2", "--checkpoint.enable",
                     "true", "--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "0",
                     "--checkpoint.last_save_model_only", "false"}) +
           more;
  };
  TinyTraining::Run run = chats.start("run", of("2"));
  const int64_t end = 2 * *run->data().loader().sources()[0].loader->samples_per_epoch();
  REQUIRE(run->run() == Trainer::End::completed);
  const auto remove_after = [&](int64_t step) {
    for (const checkpoint::SavedStep& saved : checkpoint::list_steps(chats / "run/checkpoint"))
      if (saved.step > step) fs::remove_all(saved.path);
  };
  for (const auto& [batch, step] : {std::pair{3, 5}, {8, 7}, {1, 8}}) {
    INFO("steps of " << batch << " after step " << step);
    remove_after(step);
    TinyTraining::Run resumed = chats.start("run", of(std::to_string(batch)));
    const int64_t before = resumed->state().data_position;
    CHECK(resumed->state().step == step);
    CHECK(resumed->experiment().config.training.steps == step + (end - before + batch - 1) / batch);
    REQUIRE(resumed->run() == Trainer::End::completed);
    CHECK(resumed->state().data_position >= end);
    CHECK(resumed->state().data_position < end + batch);
    for (const char* now : {"1", "16"}) {
      std::string why;
      try {
        chats.start("run", of(now));
      } catch (const NothingToTrain& nothing) {
        why = nothing.why;
      }
      CHECK_THAT(why, Contains("This run is finished"));
    }
  }
  // From a step whose successor is broken, the batches are those up to it.
  remove_after(8);
  std::fstream(chats / "run/checkpoint/step-8/model.safetensors", std::ios::in | std::ios::out)
      .seekp(-100, std::ios::end)
      .write("broken", 6);
  TinyTraining::Run earlier = chats.start("run", of("2"));
  REQUIRE(earlier->state().step == 7);
  CHECK(earlier->experiment().config.training.steps == 7 + (end - earlier->state().data_position + 1) / 2);
  CHECK_THAT(message_of([&] {
               chats.start("run", of("2", {"--training.epochs", "0.1", "--checkpoint.exclude_from_loading",
                                           "train_state"}));
             }),
             Contains("[training.epochs] 0.1 epochs of ") && Contains(" windows end before sample "));
}

TEST_CASE("epochs of more steps than a run may have are refused") {
  ChatTraining chats;
  for (const char* epochs : {"1e9", "1e300"}) {
    CHECK_THAT(message_of([&] {
                 chats.start("long", chats.of({"--training.epochs", epochs}));
               }),
               Contains(fmt::format("[training.epochs] {:g} epochs of ", std::stod(epochs))) &&
                   Contains(" steps of 2 sequences; expected at most 1073741824"));
  }
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
  std::ostringstream notes;
  const auto converse_by = [&](std::istream* in) {
    std::ostringstream out;
    run_generate_command({.checkpoint = folder,
                          .input = in,
                          .max_tokens = 12,
                          .sampling = {.temperature = 0},
                          .is_chat = true,
                          .system = "be brief",
                          .context = 200,
                          .dtype = "float32"},
                         out, notes);
    return out.str();
  };
  const auto converse = [&](const std::string& said) {
    std::istringstream in(said);
    return converse_by(&in);
  };
  const std::string two = converse("what is 3 of 0?\nand 4 of 1?\n");
  const std::string first = converse("what is 3 of 0?\n");
  CHECK(two.starts_with(first));
  CHECK(converse("\xef\xbb\xbfwhat is 3 of 0?\r\n") == first);
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
  std::ostringstream out;
  run_generate_command({.checkpoint = folder,
                        .prompts = {prompt},
                        .max_tokens = 12,
                        .sampling = {.temperature = 0},
                        .dtype = "float32"},
                       out, notes);
  CHECK(out.str() == prompt + second);

  CHECK_THAT(
      message_of([&] { converse(repeated("word", 200) + "\n"); }),
      Contains("exceed the context of 200: shorten the message, lower --max-tokens, or raise --context"));
  CHECK_THAT(message_of([&] { converse("what is 3 of 0?\n" + repeated("word", 200) + "\n"); }),
             Contains("exceed the context of 200: shorten the message, start a new conversation, lower "));

  // At a terminal it goes on without that message.
  std::istringstream typed(repeated("word", 200) + "\nwhat is 3 of 0?\n" + repeated("word", 200) +
                           "\nand 4 of 1?\n");
  std::streambuf* const standard = std::cin.rdbuf(typed.rdbuf());
  notes.str("");
  const std::string shown = converse_by(nullptr);
  std::cin.rdbuf(standard);
  std::cin.clear();
  CHECK(shown == "> > " + first + "> > " + second + "> \n");
  CHECK_THAT(notes.str(),
             Contains("of 200: shorten the message, lower --max-tokens, or raise --context; this "
                      "message is left out of the conversation\n") &&
                 Contains("of 200: shorten the message, start a new conversation, lower "));

  // What was refused is no part of the conversation.
  const SavedModel model = open_saved_model("chat", folder);
  Generator generator({.model = model.config, .compute = DType::f32, .capacity = 200}, {DeviceType::cpu, 0});
  load_weights(model, generator.parameters(), generator.stream());
  ChatSession session(encoder, *tokenizer, generator, "be brief");
  AnswerOptions options{
      .sampling = {.temperature = 0}, .max_tokens = 12, .stop_tokens = stop_tokens(folder, *tokenizer)};
  options.stop_tokens.push_back(encoder.end_of_turn());
  std::ostringstream answers;
  const std::string too_long = repeated("word", 200);
  for (const char* said : {"what is 3 of 0?", "and 4 of 1?"}) {
    CHECK_THAT(message_of([&] { session.say(too_long, options, answers); }), Contains("exceed the context"));
    session.say(said, options, answers);
    ++options.stream;
  }
  CHECK(answers.str() == two);

  // Past the length that the model is meant for one is told, and by default one does not go there.
  const std::string short_folder = chats / "short";
  fs::copy(folder, short_folder);
  std::string config_json = read_file(folder + "/config.json");
  const std::string key = "\"max_position_embeddings\": ";
  const size_t at = config_json.find(key) + key.size();
  config_json.replace(at, config_json.find_first_not_of("0123456789", at) - at, "64");
  std::ofstream(short_folder + "/config.json") << config_json;
  fs::remove(short_folder + "/manifest.json");  // changed on purpose
  const auto noted = [&](GenerateCommand command) {
    std::ostringstream said, told;
    command.checkpoint = short_folder;
    command.dtype = "float32";
    run_generate_command(command, said, told);
    return told.str();
  };
  const std::string meant = "but the model supports 64 (max_position_embeddings in config.json)";
  CHECK_THAT(noted({.prompts = {"what"}, .max_tokens = 80}),
             Contains("the prompt and --max-tokens make up to ") && Contains(meant));
  CHECK_THAT(noted({.prompts = {"what"}, .max_tokens = 8}), !Contains(meant));
  // A prompt that alone is longer is refused, before anything is computed.
  CHECK_THAT(
      message_of([&] { noted({.prompts = {repeated("what ", 100000)}, .max_tokens = 1}); }),
      Contains("[generate] the prompt has ") && Contains(" tokens, " + meant + ": shorten the prompt"));
  CHECK_THAT(noted({.prompts = {"what is 3 of 0?"}, .max_tokens = 8, .is_chat = true, .context = 100}),
             Contains("conversations of this --context make up to 100 tokens, " + meant));
  CHECK(noted({.prompts = {"what is 3 of 0?"}, .max_tokens = 8, .is_chat = true}).empty());
  CHECK_THAT(message_of([&] { noted({.prompts = {"what"}, .max_tokens = 1 << 30}); }),
             Contains("[memory] the model with 10737418") &&
                 Contains(" are free for this rank; largest items: ") && Contains(". Lower --max-tokens"));
  CHECK_THAT(
      message_of([&] { noted({.prompts = {"what"}, .max_tokens = 8, .is_chat = true, .context = 1 << 30}); }),
      Contains("the model with 1073741824 tokens needs ") && Contains(". Lower --context"));
  CHECK_THAT(message_of([&] { noted({.prompts = {"what is 3 of 0?"}, .max_tokens = 64, .is_chat = true}); }),
             Contains("--max-tokens 64 leaves no room for a question in a context of 64 tokens"));
}
