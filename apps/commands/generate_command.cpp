#include "apps/commands/generate_command.h"

#include <algorithm>
#include <iostream>

#include "apps/commands/command_line.h"
#include "apps/generate/generator.h"
#include "apps/train/checkpoints.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/philox.h"
#include "models/llama/read_hf_config.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/huggingface.h"

namespace ottava {
namespace {

// A run's folder of checkpoints stands for its newest.
std::string model_folder(const std::string& path) {
  std::vector<checkpoint::SavedStep> steps = checkpoint::list_steps(path);
  return steps.empty() ? path : steps.back().path;
}

void check(const GenerateCommand& c) {
  if (c.max_tokens < 1)
    fail<ConfigError>("generate", "--max-tokens is {}, expected at least 1", c.max_tokens);
  if (c.temperature < 0)
    fail<ConfigError>("generate", "--temperature is {}, expected 0 or more", c.temperature);
  if (c.top_k < 0) fail<ConfigError>("generate", "--top-k is {}, expected 0 (all) or more", c.top_k);
  if (!(c.top_p > 0 && c.top_p <= 1))
    fail<ConfigError>("generate", "--top-p is {}, expected a number in (0, 1]", c.top_p);
}

// Bytes of `pending` that end at a whole UTF-8 character: the rest waits for the next token.
size_t whole_characters(const std::string& pending) {
  size_t start = pending.size();
  while (start > 0 && start + 4 > pending.size() && (pending[start - 1] & 0xc0) == 0x80) --start;
  if (start == 0) return pending.size();
  const auto lead = static_cast<unsigned char>(pending[start - 1]);
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  return start - 1 + length > pending.size() ? start - 1 : pending.size();
}

}  // namespace

void run_generate_command(const GenerateCommand& c, std::ostream& out) {
  check(c);
  const std::string folder = model_folder(c.checkpoint);
  const LlamaConfig model = read_hf_config(folder);
  std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::load(folder);
  if (tokenizer->vocab_size() > model.vocab_size) {
    fail<ConfigError>("generate", "the tokenizer in {} has {} ids, the model {}", folder,
                      tokenizer->vocab_size(), model.vocab_size);
  }
  std::vector<int32_t> tokens = tokenizer->encode(c.prompt, {.add_bos = true});
  if (tokens.empty())
    fail<ConfigError>("generate",
                      "the prompt is empty and the tokenizer has no BOS token: give --prompt some text");

  const auto prompt = static_cast<int64_t>(tokens.size());
  Generator generator({.model = model,
                       .compute = parse_dtype(c.dtype),
                       .prompt_tokens = prompt,
                       .capacity = prompt + c.max_tokens},
                      parse_device(c.device));
  checkpoint::RankGroup alone;
  checkpoint::load_huggingface(folder, trained_parameters(generator.parameters(), generator.stream(), false),
                               alone);
  generator.parameters().refresh_compute_copies();

  out << c.prompt << std::flush;
  const PhiloxStream random{.seed = c.seed, .stream = 0};
  std::string pending;
  std::span<const float> logits = generator.prompt(tokens);
  for (int64_t i = 0; i < c.max_tokens; ++i) {
    const int32_t token =
        sample_token(logits.data(), tokenizer->vocab_size(), {c.temperature, c.top_k, c.top_p},
                     random.uniform(static_cast<uint64_t>(i)));
    if (token == tokenizer->eos_id()) break;
    pending +=
        tokenizer->decode(std::span(&token, 1), {.special_tokens = DecodeOptions::SpecialTokens::drop});
    const size_t whole = whole_characters(pending);
    out << pending.substr(0, whole) << std::flush;
    pending.erase(0, whole);
    if (i + 1 < c.max_tokens) logits = generator.next(token);
  }
  out << pending << '\n';
}

void add_generate_command(Command& commands) {
  auto o = std::make_shared<GenerateCommand>();
  commands.subcommand("generate", "continue a prompt with a trained model")
      .required("--checkpoint", &o->checkpoint, "step folder of a run, or a Hugging Face model folder")
      .option("--prompt", &o->prompt, "text to continue")
      .option("--max-tokens", &o->max_tokens, "tokens to add at most")
      .option("--temperature", &o->temperature, "0: always the likeliest token")
      .option("--top-k", &o->top_k, "sample among the k likeliest only; 0: all")
      .option("--top-p", &o->top_p, "sample among the likeliest that together have this probability")
      .option("--seed", &o->seed, "of the sampling")
      .option("--device", &o->device, "auto, cpu or cuda")
      .option("--dtype", &o->dtype, "bfloat16 or float32")
      .run([o] {
        run_generate_command(*o, std::cout);
        return 0;
      });
}

}  // namespace ottava
