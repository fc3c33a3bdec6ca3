#include "apps/commands/eval_command.h"

#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/commands/command_line.h"
#include "apps/commands/compute_dtype.h"
#include "apps/commands/encoded_segment.h"
#include "apps/commands/given_output.h"
#include "apps/config/limits.h"
#include "apps/devices/too_large.h"
#include "apps/evaluate/choice_scores.h"
#include "apps/evaluate/evaluator.h"
#include "apps/evaluate/text_loss.h"
#include "apps/generate/saved_model.h"
#include "core/data/corpus.h"
#include "core/data/packing.h"
#include "core/error.h"
#include "core/io/json.h"
#include "core/io/output_file.h"

namespace ottava {
namespace {

Json to_json(const ChoiceScores& s) {
  Json out, likelihoods(Json::Array{});
  out.set("name", s.name).set("items", s.items).set("not_finite", s.not_finite);
  const auto add = [&](const std::string& name, const Accuracy& a) {
    out.set(name, a.value).set(name + "_stderr", a.standard_error);
  };
  add("acc", s.acc), add("acc_norm", s.acc_norm), add("acc_bytes", s.acc_bytes);
  for (const std::vector<double>& item : s.log_likelihoods)
    likelihoods.push(Json::Array(item.begin(), item.end()));
  return out.set("log_likelihoods", std::move(likelihoods));
}

Json to_json(const TextLoss& l) {
  Json out;
  out.set("name", l.name).set("loss", l.loss()).set("perplexity", l.perplexity());
  out.set("bits_per_byte", l.bits_per_byte()).set("tokens", l.tokens).set("bytes", l.bytes);
  return out.set("documents", l.documents);
}

/// With a leading token, whether the tokenizer adds BOS or not.
data::TextEncoder text_encoder(const std::shared_ptr<const Tokenizer>& tokenizer) {
  data::TextEncoder encoder = data::make_text_encoder(tokenizer, {.bos = false, .eos = false});
  encoder.bos_id = leading_token(*tokenizer);
  return encoder;
}

TextLoss text_loss(const std::string& source, const data::Corpus& corpus,
                   const data::DocumentEncoder& encoder, int64_t window, const TokenLosses& losses) {
  TextLoss out{.name = source};
  for_each_encoded_segment(corpus, encoder, [&](const EncodedSegment& encoded) {
    out.bytes += encoded.text_bytes;
    add_documents(encoded.tokens, window, losses, out);
  });
  if (out.tokens == 0) fail<DataError>("eval", "there is no text in '{}'", source);
  return out;
}

/// Tasks of equal names get those of their paths.
void tell_apart(std::vector<ChoiceTask>& tasks, const std::vector<std::string>& paths) {
  std::map<std::string, int> tasks_named, tasks_at;
  for (const ChoiceTask& task : tasks) ++tasks_named[task.name];
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks_named[tasks[i].name] > 1) tasks[i].name = without_endings(paths[i]);
    if (++tasks_at[tasks[i].name] > 1)
      fail<ConfigError>("eval", "two of the --tasks are named '{}': remove or rename one of them",
                        tasks[i].name);
  }
}

/// RoPE is defined past the model's length, but the model was not trained there. Positions begin anew with
/// each choice.
void note_length(const SavedModel& model, const std::vector<ChoiceTokens>& tokens, std::ostream& notes) {
  int64_t longest = 0;
  for (const ChoiceTokens& task : tokens)
    for (const std::vector<int32_t>& choice : task.documents)
      longest = std::max<int64_t>(longest, std::ssize(choice) - 1);
  if (longest <= model.positions.most) return;
  notes << fmt::format(
      "questions with a choice make up to {} tokens, but the model supports {} ({} in config.json): their "
      "scores may mean little; --seq-len {} leaves out the beginning of such questions\n",
      longest, model.positions.most, model.positions.limit, model.positions.most);
}

/// Attention within a window is not supported.
int64_t longest_pass(const EvalCommand& c, const SavedModel& model) {
  return std::min(c.seq_len, model.config.sliding_window.value_or(c.seq_len));
}

void note_cut(const std::vector<ChoiceTokens>& tokens, int64_t window, std::ostream& notes) {
  if (std::ranges::none_of(tokens, [](const ChoiceTokens& task) { return task.cut > 0; })) return;
  notes << fmt::format(
      "the beginning of questions that with a choice make more than {} tokens is left out: the model "
      "supports no more (sliding_window in config.json)\n",
      window);
}

}  // namespace

void run_eval_command(const EvalCommand& c, std::ostream& out, std::ostream& notes) {
  if (c.max_examples == 0) fail<ConfigError>("eval", "--max-examples is 0, expected -1 (all) or at least 1");
  if (c.tasks.empty() && c.texts.empty())
    fail<ConfigError>("eval",
                      "there is nothing to score: give questions as --tasks, texts as --text, or both");
  std::vector<data::Corpus> texts;
  for (const std::string& source : c.texts) texts.push_back(open_text("eval", source));
  std::vector<std::string> inputs = c.tasks;
  for (const data::Corpus& text : texts)
    for (const data::DataFile& file : text.files()) inputs.push_back(file.path);
  require_named_output(c.json, inputs);
  const DType compute = compute_dtype("eval", c.dtype);
  std::vector<ChoiceTask> tasks;
  for (const std::string& path : c.tasks) tasks.push_back(read_choice_task(path, c.max_examples));
  tell_apart(tasks, c.tasks);
  const SavedModel model = open_saved_model("eval", c.model);
  const PassShape most{.batch = c.batch, .sequence = longest_pass(c, model)};
  std::vector<ChoiceTokens> tokens;
  for (const ChoiceTask& task : tasks)
    tokens.push_back(encode_choices(task, *model.tokenizer, most.sequence));
  note_length(model, tokens, notes);
  if (most.sequence < c.seq_len) note_cut(tokens, most.sequence, notes);
  const PassShape pass = texts.empty() ? smallest_pass(tokens, most) : most;
  const Device device = parse_device(c.device);
  Evaluator evaluator(
      {.model = model.config, .compute = compute, .batch = pass.batch, .sequence = pass.sequence}, device,
      [&](const MemoryPlan& plan) {
        require_memory_for_model("the model with a pass of questions or texts", plan, device, [&](int64_t) {
          return pass.batch > 1 ? "Lower --batch or --seq-len" : "Lower --seq-len";
        });
      });
  load_weights(model, evaluator.parameters(), evaluator.stream());
  const TokenLosses losses{
      .batch = pass.batch, .sequence = pass.sequence, .pass = [&](const HostTokens& of, std::span<float> to) {
        evaluator.losses(of, to);
      }};
  Json results(Json::Array{});
  for (size_t i = 0; i < tasks.size(); ++i) {
    const ChoiceScores scores = score_choices(tasks[i], tokens[i], losses);
    out << to_text(scores) << std::endl;
    results.push(to_json(scores));
  }
  const int64_t window = std::min(most.sequence, model.positions.most);
  if (!texts.empty() && window < c.seq_len)
    notes << fmt::format(
        "texts are predicted in windows of {} tokens, not {}: the model supports no more "
        "({} in config.json)\n",
        window, c.seq_len, model.positions.limit);
  for (size_t i = 0; i < texts.size(); ++i) {
    const data::DocumentEncoder encoder(texts[i], text_encoder(model.tokenizer), c.text_key);
    const TextLoss loss = text_loss(c.texts[i], texts[i], encoder, window, losses);
    out << to_text(loss) << std::endl;
    results.push(to_json(loss));
  }
  if (!c.json.empty()) write_output_file(c.json, results.dump() + "\n");
}

void add_eval_command(Command& commands) {
  auto o = std::make_shared<EvalCommand>();
  commands.subcommand("eval", "score a model on multiple-choice questions and texts")
      .required("model", o->model,
                "run folder (its newest checkpoint), step-N folder or Hugging Face model folder")
      .option("--tasks", o->tasks,
              "JSON lines with query, choices and gold, or in HellaSwag's or ARC's own format (also .gz and "
              ".zst)")
      .option("--text", o->texts,
              "files, folders or globs of text or JSON lines: the loss and perplexity per token and the bits "
              "per byte of each of these, by the log-likelihoods of lm-evaluation-harness; a longer plain "
              "text is documents of 4 MiB")
      .option("--text-key", o->text_key, "key that holds the text in JSON lines")
      .option("--max-examples", o->max_examples, "number of questions of each task; -1: all")
      .within(-1)
      .option(
          "--seq-len", o->seq_len,
          "length in tokens of a sequence: several choices share one, longer texts are predicted in parts")
      .within(2, kMostTokens)
      .option("--batch", o->batch, "sequences per forward pass")
      .within(1)
      .option("--json", o->json, "write the scores and the log-likelihood of every choice to this JSON file")
      .option("--device", o->device, "device to run on: auto, cpu, cuda, or cuda:N for GPU number N")
      .option("--dtype", o->dtype, "dtype of computation: bfloat16 or float32")
      .run([o] {
        run_eval_command(*o, std::cout, std::cerr);
        return 0;
      });
}

}  // namespace ottava
