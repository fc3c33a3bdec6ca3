#include "apps/commands/generate_command.h"

#include <chrono>
#include <iostream>

#include "apps/commands/command_line.h"
#include "apps/commands/given_text.h"
#include "apps/generate/generator.h"
#include "apps/generate/text_stream.h"
#include "apps/train/checkpoints.h"
#include "core/counted.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/philox.h"
#include "models/llama/read_hf_config.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/huggingface.h"

namespace ottava {
namespace {

void check(const GenerateCommand& c) {
  auto at_least = [](std::string_view option, auto value, auto least) {
    if (!(value >= least))
      fail<ConfigError>("generate", "{} is {}, expected at least {}", option, value, least);
  };
  at_least("--max-tokens", c.max_tokens, 1);
  at_least("--samples", c.samples, 1);
  at_least("--temperature", c.sampling.temperature, 0);
  at_least("--top-k", c.sampling.top_k, 0);
  if (!(c.sampling.top_p > 0 && c.sampling.top_p <= 1))
    fail<ConfigError>("generate", "--top-p is {}, expected a number in (0, 1]", c.sampling.top_p);
  if (!(c.repetition_penalty > 0)) {
    fail<ConfigError>("generate", "--repetition-penalty is {}, expected a number above 0 (1: none)",
                      c.repetition_penalty);
  }
}

std::string prompt_of(const GenerateCommand& c) {
  if (!c.prompt && c.prompt_file.empty() && !c.input) return {};
  std::string text = given_text("generate", c.prompt, c.prompt_file, c.input);
  if (!c.prompt && text.ends_with('\n')) text.pop_back();
  return text;
}

/// Continues the prompt once; returns how many tokens were added.
int64_t print_sample(const GenerateCommand& c, const Tokenizer& tokenizer, Generator& generator,
                     std::vector<int32_t> tokens, uint64_t sample, std::ostream& out) {
  const PhiloxStream random{.seed = c.seed, .stream = sample};
  TextStream text(c.stops);
  std::span<const float> logits = generator.prompt(tokens);
  int64_t added = 0;
  while (!text.stopped()) {
    std::vector<float> likely(logits.begin(), logits.begin() + tokenizer.vocab_size());
    if (c.repetition_penalty != 1) penalise_repetition(likely, tokens, c.repetition_penalty);
    const int32_t token = sample_token(likely.data(), tokenizer.vocab_size(), c.sampling,
                                       random.uniform(static_cast<uint64_t>(added)));
    ++added;
    if (token == tokenizer.eos_id()) break;
    tokens.push_back(token);
    out << text.take(
               tokenizer.decode(std::span(&token, 1), {.special_tokens = DecodeOptions::SpecialTokens::drop}))
        << std::flush;
    if (added == c.max_tokens) break;
    if (!text.stopped()) logits = generator.next(token);
  }
  out << text.rest() << std::endl;
  return added;
}

}  // namespace

void run_generate_command(const GenerateCommand& c, std::ostream& out, std::ostream& notes) {
  check(c);
  TextStream{c.stops};
  const std::string folder = checkpoint::newest_step_or_itself(c.checkpoint);
  const LlamaConfig model = read_hf_config(folder);
  std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::load(folder);
  if (tokenizer->vocab_size() > model.vocab_size) {
    fail<ConfigError>("generate", "the tokenizer in {} has {} ids, the model {}", folder,
                      tokenizer->vocab_size(), model.vocab_size);
  }
  const std::string prompt = prompt_of(c);
  const std::vector<int32_t> tokens = tokenizer->encode(prompt, {.add_bos = true});
  if (tokens.empty())
    fail<ConfigError>("generate",
                      "the prompt is empty and the tokenizer has no BOS token: give --prompt some text");

  const auto length = static_cast<int64_t>(tokens.size());
  Generator generator({.model = model,
                       .compute = parse_dtype(c.dtype),
                       .prompt_tokens = length,
                       .capacity = length + c.max_tokens},
                      parse_device(c.device));
  checkpoint::RankGroup alone;
  checkpoint::load_huggingface(folder, trained_parameters(generator.parameters(), generator.stream(), false),
                               alone);
  generator.parameters().refresh_compute_copies();

  const auto start = std::chrono::steady_clock::now();
  int64_t added = 0;
  for (int64_t sample = 0; sample < c.samples; ++sample) {
    if (c.samples > 1)
      out << fmt::format("{}==> sample {} of {} <==\n", sample > 0 ? "\n" : "", sample + 1, c.samples);
    out << prompt << std::flush;
    added += print_sample(c, *tokenizer, generator, tokens, static_cast<uint64_t>(sample), out);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  notes << fmt::format("{} after a prompt of {} in {:.2f} s: {:.1f} tokens/s\n", counted(added, "token"),
                       length, seconds, static_cast<double>(added) / seconds);
}

void add_generate_command(Command& commands) {
  auto o = std::make_shared<GenerateCommand>();
  commands.subcommand("generate", "continue a prompt with a trained model")
      .required("--checkpoint", &o->checkpoint, "step folder of a run, or a Hugging Face model folder")
      .option("--prompt", &o->prompt, "text to continue; without it and --prompt-file: what is piped in")
      .option("--prompt-file", &o->prompt_file, "file with the text to continue")
      .option("--max-tokens", &o->max_tokens, "tokens to add at most")
      .option("--samples", &o->samples, "how many continuations")
      .option("--stop", &o->stops, "end before this text; may be given several times")
      .option("--temperature", &o->sampling.temperature, "0: always the likeliest token")
      .option("--top-k", &o->sampling.top_k, "sample among the k likeliest only; 0: all")
      .option("--top-p", &o->sampling.top_p, "sample among the likeliest that together have this probability")
      .option("--repetition-penalty", &o->repetition_penalty,
              "makes tokens less likely that are there already; 1: none")
      .option("--seed", &o->seed, "of the sampling")
      .option("--device", &o->device, "auto, cpu or cuda")
      .option("--dtype", &o->dtype, "bfloat16 or float32")
      .run([o] {
        o->input = piped_input();
        run_generate_command(*o, std::cout, std::cerr);
        return 0;
      });
}

}  // namespace ottava
