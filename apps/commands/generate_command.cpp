#include "apps/commands/generate_command.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include "apps/commands/command_line.h"
#include "apps/commands/compute_dtype.h"
#include "apps/commands/encoded_segment.h"
#include "apps/commands/given_output.h"
#include "apps/commands/given_prompts.h"
#include "apps/commands/given_text.h"
#include "apps/config/limits.h"
#include "apps/devices/too_large.h"
#include "apps/generate/chat_session.h"
#include "apps/generate/prompt_tokens.h"
#include "apps/generate/saved_model.h"
#include "apps/generate/stop_tokens.h"
#include "apps/generate/text_stream.h"
#include "core/data/chat/template_file.h"
#include "core/io/json.h"
#include "core/io/output_file.h"
#include "core/io/utf8.h"
#include "core/stopwatch.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using fmt::print;

void check(const GenerateCommand& c) {
  compute_dtype("generate", c.dtype);
  if (!c.is_chat && (!c.system.empty() || c.chat_template != "auto" || c.context))
    fail<ConfigError>("generate",
                      "--system, --chat-template and --context are only for conversations: add --chat");
  const bool has_text_key = c.text_key != GenerateCommand{}.text_key;
  if (c.is_chat && (c.samples > 1 || !c.prompt_file.empty() || !c.prompt_source.empty() || has_text_key ||
                    !c.json.empty()))
    fail<ConfigError>("generate",
                      "--samples, --prompt-file, --prompts, --text-key and --json cannot be combined with "
                      "--chat: remove them, or --chat");
  if (c.is_chat && c.prompts.size() > 1)
    fail<ConfigError>("generate",
                      "--chat takes one --prompt, got {}: pipe in a conversation, a message a line",
                      c.prompts.size());
  if (c.prompt_source.empty() && has_text_key)
    fail<ConfigError>(
        "generate",
        "--text-key {} is given without --prompts, whose JSON lines it is for: add them, or remove it",
        c.text_key);
  if (!c.prompt_file.empty() && !(c.prompts.empty() && c.prompt_source.empty()))
    fail<ConfigError>("generate",
                      "--prompt-file {} is given beside --prompt or --prompts: give only one of them",
                      c.prompt_file);
  if (!(c.sampling.top_p > 0 && c.sampling.top_p <= 1))
    fail<ConfigError>("generate", "--top-p is {}, expected a number in (0, 1]", c.sampling.top_p);
}

void remove_byte_order_mark(std::string& text) {
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());  // as of a text to train on
}

/// Lines that end in CRLF are read like those of training, which mostly end in LF.
std::string with_line_feeds(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at)
    if (!text.substr(at).starts_with("\r\n")) out += text[at];
  return out;
}

std::string only_prompt(const GenerateCommand& c) {
  if (c.prompt_file.empty() && !c.input) return {};
  std::string text = given_text("generate", {}, c.prompt_file, c.input);
  remove_byte_order_mark(text);
  text = with_line_feeds(text);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

struct Prompt {
  std::string text;
  std::vector<int32_t> tokens = {};
};

/// Before a model is read. `source` is that of --prompts, if there is one.
void require_own_output(const GenerateCommand& c, const std::optional<data::Corpus>& source) {
  namespace fs = std::filesystem;
  std::vector<std::string> read{c.prompt_file};
  if (source)
    for (const data::DataFile& file : source->files()) read.push_back(file.path);
  require_named_output(c.json, read);
  std::error_code none;
  if (c.json.empty() || !fs::is_directory(c.prompt_source, none)) return;
  const fs::path file = fs::weakly_canonical(fs::absolute(c.json)),
                 inside = file.lexically_relative(fs::canonical(c.prompt_source));
  if (*inside.begin() != "..")
    fail<FileError>("file",
                    "cannot write {}: a later run may read it, since it is in {}, the folder of --prompts; "
                    "name a file outside",
                    c.json, c.prompt_source);
}

std::vector<Prompt> prompts_of(const GenerateCommand& c, const std::optional<data::Corpus>& source,
                               const SavedModel& model, std::ostream& notes) {
  std::vector<Prompt> prompts;
  for (const std::string& text : c.prompts) prompts.push_back({text});
  if (source) {
    GivenPrompts given = given_prompts(*source, c.prompt_source, c.text_key);
    for (std::string& text : given.texts) prompts.push_back({std::move(text)});
    if (given.left_out > 0)
      notes << fmt::format("left out of '{}': {} without a visible character\n", c.prompt_source,
                           counted(given.left_out, "line"));
  }
  if (prompts.empty()) prompts.push_back({only_prompt(c)});
  for (size_t i = 0; i < prompts.size(); ++i) {
    Prompt& prompt = prompts[i];
    const std::string which = prompts.size() == 1 ? "the prompt" : fmt::format("prompt {}", i + 1);
    prompt.tokens = prompt_tokens(*model.tokenizer, prompt.text, model.tokenizer->adds_bos());
    if (prompt.tokens.empty())
      fail<ConfigError>("generate", "{} is empty and the tokenizer has no BOS token: give one with some text",
                        which);
    // What the model has never seen it cannot continue, and attention to it may take hours.
    if (const auto length = std::ssize(prompt.tokens); length > model.positions.most)
      fail<ConfigError>("generate",
                        "{} has {} tokens, but the model supports {} ({} in config.json): shorten the prompt",
                        which, length, model.positions.most, model.positions.limit);
  }
  return prompts;
}

AnswerOptions answer_options(const GenerateCommand& c, const SavedModel& model) {
  return {.sampling = c.sampling,
          .repetition_penalty = c.repetition_penalty,
          .max_tokens = c.max_tokens,
          .stop_tokens = stop_tokens(model.folder, *model.tokenizer),
          .stops = c.stops,
          .seed = c.seed};
}

/// What makes a plan smaller whose weights fit. Besides them, what stays grows with the capacity: keys and
/// values of all tokens are taken before the first one.
std::string advice(const GenerateCommand& c, const Generator::Options& o, const MemoryPlan& plan,
                   int64_t available) {
  if (c.is_chat) return "Lower --context";
  const double of_token = static_cast<double>(plan.persistent_bytes - weight_bytes(plan)) / o.capacity,
               of_prompt = plan.total_bytes() - of_token * (o.capacity - o.longest_prompt());
  return of_prompt < available ? "Lower --max-tokens" : "Shorten the prompt";
}

/// A model that is ready to be asked.
std::unique_ptr<Generator> loaded_generator(const GenerateCommand& c, const SavedModel& model,
                                            std::vector<int64_t> prompt_lengths, int64_t capacity) {
  const Generator::Options options{.model = model.config,
                                   .compute = compute_dtype("generate", c.dtype),
                                   .prompt_lengths = std::move(prompt_lengths),
                                   .capacity = capacity};
  const Device device = parse_device(c.device);
  auto generator = std::make_unique<Generator>(options, device, [&](const MemoryPlan& plan) {
    require_memory_for_model(fmt::format("the model with {}", counted(capacity, "token")), plan, device,
                             [&](int64_t available) { return advice(c, options, plan, available); });
  });
  load_weights(model, generator->parameters(), generator->stream());
  return generator;
}

/// RoPE is defined past the model's length, but the model was not trained there.
void note_length(const SavedModel& model, int64_t tokens, std::string_view of, std::ostream& notes) {
  if (tokens <= model.positions.most) return;
  notes << fmt::format(
      "{} make up to {} tokens, but the model supports {} (max_position_embeddings in config.json): text "
      "beyond them may be nonsense\n",
      of, tokens, model.positions.most);
}

/// Attention within a window is not supported.
void require_within_window(const SavedModel& model, int64_t tokens, std::string_view of,
                           std::string_view advice) {
  if (!model.config.sliding_window || tokens <= *model.config.sliding_window) return;
  fail<ConfigError>("generate",
                    "{} make up to {} tokens, but the model supports {} (sliding_window in config.json): {}",
                    of, tokens, *model.config.sliding_window, advice);
}

constexpr std::string_view kConversations = "conversations of this --context",
                           kTexts = "the prompt and --max-tokens";

/// Tokens of a conversation.
int64_t context_of(const GenerateCommand& c, const SavedModel& model) {
  constexpr int64_t kUsual = 4096;
  const int64_t context = c.context.value_or(std::min(kUsual, model.positions.most));
  if (c.max_tokens >= context) {
    fail<ConfigError>("generate",
                      "--max-tokens {} leaves no room for a question in a context of {} tokens: lower it, or "
                      "raise --context (the model supports up to {})",
                      c.max_tokens, context, model.positions.most);
  }
  require_within_window(model, context, kConversations, "lower --context");
  return context;
}

/// A line is what the user says; the end of the input ends the conversation. --prompt is the only turn there
/// is. Who sits at a terminal may say it again shorter; what is piped in was written for a whole
/// conversation.
void converse(const GenerateCommand& c, const SavedModel& model, std::ostream& out, std::ostream& notes) {
  const int64_t context = context_of(c, model);
  constexpr std::string_view kTemplate = "--chat-template";
  const data::ChatEncoder encoder(model.tokenizer,
                                  {.chat = data::ChatOptions{.style = data::choose_chat_template(
                                                                 c.chat_template, model.folder, kTemplate)},
                                   .settings = {.style = kTemplate, .choose_tokenizer = false}});
  AnswerOptions options = answer_options(c, model);
  options.stop_tokens.push_back(encoder.end_of_turn());
  const std::unique_ptr<Generator> generator = loaded_generator(c, model, {1}, context);
  note_length(model, context, kConversations, notes);
  ChatSession session(encoder, *model.tokenizer, *generator, c.system);
  if (!c.prompts.empty()) {
    session.say(c.prompts[0], options, out);
    return;
  }
  const bool is_terminal = !c.input;
  std::istream& in = is_terminal ? std::cin : *c.input;
  bool is_first = true;
  std::string line;
  while ((is_terminal ? out << "> " << std::flush : out) && std::getline(in, line)) {
    if (std::exchange(is_first, false)) remove_byte_order_mark(line);
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      session.say(line, options, out);
      ++options.stream;
    } catch (const TooLong& error) {
      if (!is_terminal) throw;
      notes << error.what() << "; this message is left out of the conversation\n";
    }
  }
  if (is_terminal) out << std::endl;
}

Json to_json(const Prompt& prompt, int64_t sample, const Answer& answer) {
  Json line;
  line.set("prompt", prompt.text).set("sample", sample).set("text", answer.text).set("tokens", answer.drawn);
  return line.set("finish_reason", answer.is_stopped ? "stop" : "length");
}

/// One after the other: a text is the same whatever stands beside it.
void write_texts(const GenerateCommand& c, const SavedModel& model, const std::vector<Prompt>& prompts,
                 Generator& generator, std::ostream& out, std::ostream& notes) {
  AnswerOptions options = answer_options(c, model);
  const Stopwatch watch;
  int64_t drawn = 0, given = 0;
  std::optional<OutputLines> lines;
  if (!c.json.empty()) lines.emplace(c.json);
  const auto nth = [](const char* what, int64_t i, int64_t of) {
    return of > 1 ? fmt::format("{} {} of {}", what, i + 1, of) : "";
  };
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Prompt& prompt = prompts[i];
    given += std::ssize(prompt.tokens);
    for (int64_t sample = 0; sample < c.samples; ++sample) {
      const std::string of_prompt = nth("prompt", i, std::ssize(prompts)),
                        of_sample = nth("sample", sample, c.samples);
      const char* const comma = of_prompt.empty() || of_sample.empty() ? "" : ", ";
      if (prompts.size() > 1 || c.samples > 1)
        print(out, "{}==> {}{}{} <==\n", i > 0 || sample > 0 ? "\n" : "", of_prompt, comma, of_sample);
      out << prompt.text << std::flush;
      options.stream = sample;
      std::vector<int32_t> text = prompt.tokens;
      const Answer answer =
          write_answer(options, *model.tokenizer, generator, generator.prompt(prompt.tokens), text, out);
      drawn += answer.drawn;
      if (lines) lines->append(to_json(prompt, sample + 1, answer).dump());
    }
  }
  const double seconds = watch.seconds();
  const std::string after = prompts.size() == 1
                                ? fmt::format("a prompt of {}", given)
                                : fmt::format("{} prompts of {} in all,", prompts.size(), given);
  notes << fmt::format("{} after {} in {:.2f} s: {:.1f} tokens/s\n", counted(drawn, "token"), after, seconds,
                       drawn / seconds);
}

}  // namespace

void run_generate_command(const GenerateCommand& c, std::ostream& out, std::ostream& notes) {
  check(c);
  std::optional<data::Corpus> source;
  if (!c.prompt_source.empty()) source.emplace(open_text("generate", c.prompt_source));
  require_own_output(c, source);
  TextStream{c.stops};  // refuses an empty one before the model is read
  const SavedModel model = open_saved_model("generate", c.checkpoint);
  if (c.is_chat) return converse(c, model, out, notes);
  const std::vector<Prompt> prompts = prompts_of(c, source, model, notes);

  std::vector<int64_t> lengths;
  for (const Prompt& prompt : prompts) lengths.push_back(std::ssize(prompt.tokens));
  const int64_t longest = std::ranges::max(lengths);
  const int64_t capacity = longest + c.max_tokens;
  require_within_window(model, capacity, kTexts, "lower --max-tokens, or shorten the prompt");
  const std::unique_ptr<Generator> generator = loaded_generator(c, model, lengths, capacity);
  note_length(model, capacity, kTexts, notes);
  write_texts(c, model, prompts, *generator, out, notes);
}

void add_generate_command(Command& commands) {
  constexpr double kMostPenalty = 100;  // beyond, logits of sound models leave float32
  auto o = std::make_shared<GenerateCommand>();
  commands.subcommand("generate", "generate text with a trained model")
      .required("--checkpoint", o->checkpoint,
                "run folder (its newest checkpoint), step-N folder or Hugging Face model folder")
      .option("--prompt", o->prompts,
              "text to continue; may be repeated: the texts are continued one after the other; without any "
              "prompt, what is piped in or, on a terminal, nothing: the model begins by itself")
      .or_empty()
      .one_each()
      .option("--prompts", o->prompt_source,
              "file, folder or glob with more prompts: text with one on each line, or JSON lines")
      .option("--text-key", o->text_key, "key that holds the text in JSON lines")
      .option("--prompt-file", o->prompt_file,
              "file that contains the text to continue, of any number of lines")
      .option("--max-tokens", o->max_tokens, "maximum number of tokens to generate")
      .within(1, kMostTokens)
      .option("--samples", o->samples, "number of continuations of each prompt")
      .within(1)
      .flag("--chat", o->is_chat, true,
            "hold a conversation: each line of standard input is a message of the user")
      .option("--system", o->system, "system message for --chat")
      .or_empty()
      .option("--chat-template", o->chat_template,
              "chat template for --chat; auto: the one in the checkpoint's folder")
      .option("--context", o->context,
              "maximum number of tokens in a conversation with --chat (default: 4096, or the model's context "
              "length if it is shorter)")
      .within(2, kMostTokens)
      .option("--stop", o->stops, "stop before this text; may be repeated")
      .option("--temperature", o->sampling.temperature, "sampling temperature; 0: always the likeliest token")
      .within(0)
      .option("--top-k", o->sampling.top_k, "sample only from the k likeliest tokens; 0: from all")
      .within(0)
      .option("--top-p", o->sampling.top_p,
              "sample only from the likeliest tokens whose probabilities add up to this; 1: from all")
      .option("--min-p", o->sampling.min_p,
              "sample only from tokens at least this many times as likely as the likeliest; 0: from all")
      .within(0, 1)
      .option("--repetition-penalty", o->repetition_penalty,
              "factor that makes tokens less likely that have already occurred; 1: no penalty")
      .within(1 / kMostPenalty, kMostPenalty)
      .option("--seed", o->seed,
              "random seed of the sampling; a prompt gets the same text whatever prompts stand beside it")
      .within(0)
      .option("--json", o->json,
              "write the texts to this file as they are made, a JSON object a line: prompt, sample, text, "
              "tokens, finish_reason (stop or length)")
      .option("--device", o->device, "device to run on: auto, cpu, cuda, or cuda:N for GPU number N")
      .option("--dtype", o->dtype, "dtype of computation: bfloat16 or float32")
      .run([o] {
        o->input = piped_input();
        run_generate_command(*o, std::cout, std::cerr);
        return 0;
      });
}

}  // namespace ottava
