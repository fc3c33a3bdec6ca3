#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "apps/commands/bench_command.h"
#include "apps/commands/bench_kernels_command.h"
#include "apps/commands/checkpoint_command.h"
#include "apps/commands/config_command.h"
#include "apps/commands/data_command.h"
#include "apps/commands/generate_command.h"
#include "apps/commands/plan_command.h"
#include "apps/commands/tokenizer_command.h"
#include "apps/commands/train_command.h"
#include "core/config/nearest.h"
#include "core/error.h"
#include "core/log.h"

namespace {

using namespace ottava;

// A command that takes a configuration file and `--section.key value` for any of its keys. The file is no
// option of the parser, which would take the value of a key that it does not know for it.
CLI::App* add_experiment_command(CLI::App& app, const char* name, const char* meaning) {
  CLI::App* command = app.add_subcommand(name, meaning);
  command->allow_extras();
  command->footer(
      "CONFIG, the YAML or TOML file of the experiment, comes first; without one all keys have their "
      "defaults.\n"
      "Every key of the file can be given as --section.key value, for example --training.steps 100;\n"
      "`ottava config --comments` lists them all.");
  return command;
}

// What remains of the command line, into the file and the keys.
template <class Options>
void take_experiment(const CLI::App& command, Options& options) {
  options.overrides = command.remaining();
  if (options.overrides.empty() || options.overrides.front().starts_with("-")) return;
  options.file = options.overrides.front();
  options.overrides.erase(options.overrides.begin());
}

void add_train(CLI::App& app, int& code) {
  static TrainCommand options;
  CLI::App* command =
      add_experiment_command(app, "train", "train a model; continues from the newest checkpoint");
  command->add_flag("--redecide", options.redecide,
                    "decide again what the checkpoint's run had decided (decisions.json)");
  command->callback([command, &code] {
    take_experiment(*command, options);
    code = run_train_command(options);
  });
}

void add_bench(CLI::App& app, int& code) {
  static BenchCommand options;
  CLI::App* bench = app.add_subcommand("bench", "measure");
  bench->require_subcommand(1);
  CLI::App* command = add_experiment_command(
      *bench, "train", "tokens per second, time per operation and utilization of a training step");
  command->add_option("--steps", options.steps, "steps that are measured, after a few that are not")
      ->capture_default_str();
  command
      ->add_option("--weights", options.weights,
                   "drawn, or repeated: a few values again and again, which large models have sooner")
      ->capture_default_str();
  command->callback([command, &code] {
    take_experiment(*command, options);
    code = run_bench_command(options, std::cout);
  });
  static BenchKernelsCommand kernels;
  static bool json = false;
  CLI::App* alone = bench->add_subcommand(
      "kernels", "each operation alone, against what a copy and a matrix product reach");
  alone
      ->add_option("--device", kernels.device,
                   "auto, cpu or cuda; meta counts bytes and FLOPs and runs nothing")
      ->capture_default_str();
  alone->add_option("--shapes", kernels.shapes, "8B or small")->capture_default_str();
  alone->add_option("--seconds", kernels.seconds, "spent on each")->capture_default_str();
  alone->add_flag("--json", json, "for programs");
  alone->callback([&code] {
    if (json) kernels.print = BenchKernelsCommand::Print::json;
    code = run_bench_kernels_command(kernels, std::cout);
  });
}

void add_plan(CLI::App& app) {
  static PlanCommand options;
  CLI::App* command = add_experiment_command(
      app, "plan", "memory, compute and traffic of a training step for any number of ranks; needs no GPU");
  command
      ->add_option("--world-size", options.world_size,
                   "ranks to plan for (default: the fewest that the file's degrees make)")
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--compute-capability", options.compute_capability,
                   "of the GPUs to plan for, such as 100 for 10.0 (default: of this machine's, or 90)")
      ->check(CLI::Range(80, 199));
  command->callback([command] {
    take_experiment(*command, options);
    run_plan_command(options, std::cout);
  });
}

void add_config(CLI::App& app) {
  static ConfigCommand options;
  static bool schema = false, fates = false, comments = false;
  CLI::App* command = add_experiment_command(app, "config", "print the resolved configuration");
  command->add_flag("--schema", schema, "print the JSON schema, for editors");
  command->add_flag("--fates", fates, "print what becomes of every key, also those of other trainers");
  command->add_flag("--comments", comments, "explain every key");
  command->callback([command] {
    take_experiment(*command, options);
    options.print = schema     ? ConfigCommand::Print::schema
                    : fates    ? ConfigCommand::Print::fates
                    : comments ? ConfigCommand::Print::explained_tree
                               : ConfigCommand::Print::tree;
    run_config_command(options, std::cout, std::cerr);
  });
}

void add_generate(CLI::App& app) {
  static GenerateCommand options;
  CLI::App* command = app.add_subcommand("generate", "continue a prompt with a trained model");
  command
      ->add_option("--checkpoint", options.checkpoint, "step folder of a run, or a Hugging Face model folder")
      ->required();
  command->add_option("--prompt", options.prompt, "text to continue");
  command->add_option("--max-tokens", options.max_tokens, "tokens to add at most")->capture_default_str();
  command->add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->capture_default_str();
  command->add_option("--top-k", options.top_k, "sample among the k likeliest only; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", options.top_p, "sample among the likeliest that together have this probability")
      ->capture_default_str();
  command->add_option("--seed", options.seed, "of the sampling")->capture_default_str();
  command->add_option("--device", options.device, "auto, cpu or cuda")->capture_default_str();
  command->add_option("--dtype", options.dtype, "bfloat16 or float32")->capture_default_str();
  command->callback([] { run_generate_command(options, std::cout); });
}

void add_checkpoint(CLI::App& app, int& code) {
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint", "look at checkpoints; PATH is a step-N folder or a run's folder of them");
  checkpoint->require_subcommand(1);
  {
    static CheckpointInspectOptions options;
    static bool list = false;
    CLI::App* command = checkpoint->add_subcommand("inspect", "what a checkpoint is");
    command->add_option("path", options.path, "")->required();
    command->add_flag("--tensors", list, "list every tensor");
    command->callback([] {
      if (list) options.tensors = CheckpointInspectOptions::Tensors::list;
      inspect_checkpoint(options, std::cout);
    });
  }
  {
    static CheckpointVerifyOptions options;
    CLI::App* command = checkpoint->add_subcommand(
        "verify", "read every byte and compare checksums; exit code 1 if anything differs");
    command->add_option("path", options.path, "")->required();
    command->callback([&code] { code = verify_checkpoint(options, std::cout) ? 0 : 1; });
  }
  {
    static CheckpointDiffOptions options;
    static bool model_only = false;
    CLI::App* command =
        checkpoint->add_subcommand("diff", "which tensors differ and by how much; exit code 1 if any does");
    command->add_option("a", options.a, "")->required();
    command->add_option("b", options.b, "")->required();
    command->add_option("--largest", options.largest, "how many tensors are listed; 0: all")
        ->capture_default_str();
    command->add_flag("--model-only", model_only, "leave the optimizer's state out");
    command->callback([&code] {
      if (model_only) options.what = CheckpointDiffOptions::What::weights;
      code = diff_checkpoints(options, std::cout) ? 0 : 1;
    });
  }
}

void add_tokenizer(CLI::App& app) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "train and use tokenizers");
  tokenizer->require_subcommand(1);
  {
    static TokenizerTrainOptions options;
    CLI::App* command = tokenizer->add_subcommand("train", "make a byte-level BPE tokenizer from text");
    command->add_option("sources", options.sources, "text or JSON lines: files, folders, globs")->required();
    command->add_option("--output", options.output_folder, "folder for tokenizer.json")->required();
    command->add_option("--vocab-size", options.vocab_size, "tokens, special ones included")->required();
    command->add_option("--rules", options.rules, "llama3, gpt2 or qwen2: how text is cut into words")
        ->capture_default_str();
    command->add_option("--special-tokens", options.special_tokens, "")->capture_default_str();
    command->add_option("--bos-token", options.bos_token, "")->capture_default_str();
    command->add_option("--eos-token", options.eos_token, "")->capture_default_str();
    command->add_option("--text-key", options.text_key, "key of the text in JSON lines")
        ->capture_default_str();
    command->add_option("--max-bytes", options.max_bytes, "stop after so much text; 0: all")
        ->capture_default_str();
    command->callback([] { tokenizer_train(options, std::cout); });
  }
  {
    static TokenizerEncodeOptions options;
    static bool pieces = false, wrap = false;
    CLI::App* command = tokenizer->add_subcommand("encode", "text to ids");
    command->add_option("tokenizer", options.tokenizer, "folder or tokenizer.json")->required();
    command->add_option("text", options.text, "");
    command->add_option("--file", options.file, "read the text from a file");
    command->add_flag("--pieces", pieces, "one line per token");
    command->add_flag("--special", wrap, "add BOS and EOS as the tokenizer's files say");
    command->callback([] {
      if (pieces) options.print = TokenizerEncodeOptions::Print::pieces;
      if (wrap) options.wrap = TokenizerEncodeOptions::Wrap::as_the_files_say;
      tokenizer_encode(options, std::cout);
    });
  }
  {
    static TokenizerDecodeOptions options;
    CLI::App* command = tokenizer->add_subcommand("decode", "ids to text");
    command->add_option("tokenizer", options.tokenizer, "folder or tokenizer.json")->required();
    static std::vector<std::string> ids;
    command->add_option("ids", ids, "as many as there are");
    command->add_option("--file", options.file, "read the ids from a file");
    command->callback([] {
      for (const std::string& id : ids) options.ids += id + " ";
      tokenizer_decode(options, std::cout);
    });
  }
  {
    static TokenizerInspectOptions options;
    CLI::App* command = tokenizer->add_subcommand("inspect", "what a tokenizer's files say");
    command->add_option("tokenizer", options.tokenizer, "folder or tokenizer.json")->required();
    command->add_option("--text", options.text_file, "also report bytes per token on this text");
    command->callback([] { tokenizer_inspect(options, std::cout); });
  }
}

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "prepare and look at training data");
  data->require_subcommand(1);
  {
    static DataPrepareOptions options;
    CLI::App* command = data->add_subcommand("prepare", "text to token shards");
    command->add_option("sources", options.sources, "files, folders, globs")->required();
    command->add_option("--tokenizer", options.tokenizer, "folder or tokenizer.json")->required();
    command->add_option("--output", options.output, "folder for the shards; must not exist or be empty")
        ->required();
    command->add_option("--text-key", options.text_key, "key of the text in JSON lines")
        ->capture_default_str();
    command->add_option("--tokens-per-shard", options.tokens_per_shard, "")->capture_default_str();
    command->callback([] { prepare_data(options, std::cout); });
  }
  {
    static DataInspectOptions options;
    static bool verify = false;
    CLI::App* command = data->add_subcommand("inspect", "what sources hold and what training makes of them");
    command->add_option("sources", options.sources, "files, folders, globs")->required();
    command->add_option("--tokenizer", options.tokenizer, "count tokens with this");
    command->add_option("--text-key", options.text_key, "key of the text in JSON lines")
        ->capture_default_str();
    command->add_option("--seq-len", options.seq_len, "")->capture_default_str();
    command->add_option("--documents", options.documents, "how many to show")->capture_default_str();
    command->add_flag("--verify", verify, "read shards whole and compare checksums");
    command->callback([] {
      if (verify) options.verify = DataInspectOptions::Verify::contents;
      inspect_data(options, std::cout);
    });
  }
}

/// What is wrong with a command line, and what may stand there.
std::string command_line_failure(const CLI::App* at, const CLI::Error& error,
                                 const std::vector<std::string>& words) {
  auto word = words.begin();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    word = std::find(word, words.end(), at->get_name());
    if (word != words.end()) ++word;
  }
  std::vector<std::string> names;
  for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (names.empty()) return fmt::format("{}; see {} --help", error.what(), at->get_name());
  if (word == words.end() || word->starts_with('-')) {
    return fmt::format("{} needs a subcommand: {}", at->get_name(), config::one_of_text(names));
  }
  const std::string meant = config::nearest(*word, names);
  return fmt::format("{} has no subcommand '{}': expected {}{}", at->get_name(), *word,
                     config::one_of_text(names), meant.empty() ? "" : "; did you mean " + meant + "?");
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  CLI::App app{
      "ottava trains Llama-family language models in FP8, BF16 and FP32, from a laptop to a GPU cluster,\n"
      "from one YAML or TOML file per experiment.",
      "ottava"};
  app.require_subcommand(1);
  app.set_version_flag("--version", OTTAVA_VERSION);
  add_train(app, code);
  add_plan(app);
  add_bench(app, code);
  add_config(app);
  add_tokenizer(app);
  add_data(app);
  add_generate(app);
  add_checkpoint(app, code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    const std::vector<std::string> words(argv + 1, argv + argc);
    std::fprintf(stderr, "ottava: [command line] %s\n", command_line_failure(&app, e, words).c_str());
    return 1;
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "ottava: %s\n", e.what());
    return 1;
  }
  return code;
}
