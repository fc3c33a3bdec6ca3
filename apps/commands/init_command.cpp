#include "apps/commands/init_command.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <ostream>
#include <system_error>
#include <utility>

#include "apps/commands/command_line.h"
#include "apps/commands/tokenizer_command.h"
#include "apps/config/config.h"
#include "apps/config/first_config.h"
#include "apps/config/installed.h"
#include "apps/decide/device_peaks.h"
#include "core/data/corpus.h"
#include "core/data/data_check.h"
#include "core/data/data_file.h"
#include "core/data/tokenizer/bpe_trainer.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/folder.h"
#include "core/text/counted.h"
#include "core/text/shell_word.h"

namespace ottava {
namespace fs = std::filesystem;

namespace {

using fmt::print;

constexpr double kLeastMinutes = 0.01, kMostMinutes = 365 * 24 * 60;

/// Looks at one block. Throws, as training would, for what training would not read.
void look_at(std::vector<data::DataFile> files, const std::string& text_key) {
  const data::Corpus corpus(std::move(files), {});
  data::DataScan(corpus, {}, text_key, data::BadRecords::error).look(0);
}

/// The share of text in JSON lines, besides keys, escapes and other fields: of 16 MiB at places spread over
/// all files, since a file's beginning may be unlike its rest. One that is compressed is read from its
/// beginning.
double share_of_text(std::vector<data::DataFile> json_lines, const std::string& text_key) {
  constexpr int64_t kPlaces = 16, kBytes = 1 << 20;
  const data::Corpus corpus(std::move(json_lines), {.block_bytes = kBytes});
  data::DataScan scan(corpus, {}, text_key, data::BadRecords::skip);
  data::DataCheck seen;
  for (int64_t i = 0; i < kPlaces && !seen.is_whole; ++i) seen = scan.look(0);
  return static_cast<double>(seen.text_bytes) / static_cast<double>(std::max<int64_t>(seen.bytes, 1));
}

/// Bytes of text, about: what is compressed grows fourfold.
int64_t text_bytes(const std::vector<data::DataFile>& files, const std::string& text_key) {
  double bytes = 0, of_json = 0;
  std::vector<data::DataFile> json_lines;
  for (const data::DataFile& file : files) {
    if (data::is_tokenized(file.format))
      fail<DataError>("init", "'{}' has the format {}, expected text", file.path, data::name_of(file.format));
    const bool is_json = file.format == data::Format::json_lines;
    (is_json ? of_json : bytes) +=
        static_cast<double>(file.bytes) * (file.compression == data::Compression::none ? 1 : 4);
    if (is_json) json_lines.push_back(file);
  }
  if (of_json > 0) {
    look_at(json_lines, text_key);
    bytes += of_json * share_of_text(std::move(json_lines), text_key);
  }
  return std::llround(bytes);
}

std::string one_path(const std::vector<std::string>& sources) {
  if (sources.size() != 1) {
    fail<ConfigError>("init", "{} are given, expected one: a file, a folder, a glob in quotes, or @FILE",
                      counted(sources.size(), "source"));
  }
  return sources[0];
}

/// Trains a tokenizer into `folder`. If the text has too few words for the vocabulary, halves it until it
/// fits.
void train_tokenizer(const InitCommand& c, const std::string& folder, int64_t vocabulary, std::ostream& out) {
  constexpr int64_t kLeast = 512;
  const auto train = [&] {
    tokenizer_train({.sources = c.sources,
                     .text_key = c.text_key,
                     .output_folder = folder,
                     .vocab_size = static_cast<int32_t>(vocabulary),
                     .max_bytes = 100'000'000},
                    out);
  };
  try {
    return train();
  } catch (const tokenizer::TooLittleText& error) {
    const int64_t wanted = vocabulary;
    while (vocabulary > error.largest) vocabulary /= 2;
    if (vocabulary < kLeast) throw;
    print(out, "a vocabulary of {} tokens is too large for this text: it gets {}\n", wanted, vocabulary);
  }
  train();
}

}  // namespace

void run_init_command(const InitCommand& c, std::ostream& out) {
  const std::string source = one_path(c.sources), config = (fs::path(c.output) / "ottava.yaml").string();
  std::error_code error;
  if (fs::exists(config, error)) {
    fail<FileError>("init", "{} already exists: choose another --output, or train with it: ottava train {}",
                    config, shell_word(config));
  }
  const std::string own = (fs::path(c.output) / "tokenizer").string();
  if (const fs::path made = fs::path(own) / "tokenizer.json";
      c.tokenizer.empty() && fs::exists(made, error)) {
    fail<FileError>("init",
                    "{} already exists: choose another --output, or remove {} to make a new tokenizer there, "
                    "or keep that one with --tokenizer {}",
                    made.string(), shell_word(own), shell_word(own));
  }
  std::vector<data::DataFile> files = data::find_data_files(c.sources);
  FirstConfigInputs inputs{.text_bytes = text_bytes(files, c.text_key), .minutes = c.minutes};
  look_at(std::move(files), c.text_key);
  const Device device = parse_device(TrainingConfig{}.device);  // which the configuration leaves as it is
  const DevicePeaks peaks = find_device_peaks(device, {.uses_fp32 = false});
  inputs.flops_per_second = peaks.bf16;
  print(out, "{}: {:.1f} MB of text; {}: {:.2f} TFLOP/s in bf16 ({})\n", source, inputs.text_bytes * 1e-6,
        to_string(device), inputs.flops_per_second * 1e-12, peaks.source);
  choose_first_config(inputs);  // refuses what cannot be trained on before anything is made
  std::string tokenizer = c.tokenizer;
  if (const std::string reason = make_writable_folder(c.output); !reason.empty())
    fail<FileError>("init", "cannot write into {}: {}; choose another --output", c.output, reason);
  if (tokenizer.empty()) {
    tokenizer = own;
    train_tokenizer(c, tokenizer, first_vocabulary(inputs.text_bytes), out);
  }
  inputs.vocabulary = Tokenizer::load(here_or_installed(tokenizer))->vocab_size();
  const FirstConfig first = choose_first_config(inputs);
  write_file_atomically(config, to_yaml(first, {.text = source,
                                                .tokenizer = tokenizer,
                                                .output = (fs::path(c.output) / "run").string(),
                                                .text_key = c.text_key}));
  load_config(config);  // what was written loads
  print(out, "{}: {:.1f}M parameters, {} of {} tokens, {}\n\nNext: ottava train {}\n", config,
        first.parameters * 1e-6, counted(first.steps, "step"), first.global_batch * first.sequence,
        minutes_text(first.minutes), shell_word(config));
  print(out, "The text as training sees it: ottava data inspect {} --tokenizer {} --seq-len {}{}\n",
        shell_word(source), shell_word(tokenizer), first.sequence,
        c.text_key == "text" ? "" : " --text-key " + shell_word(c.text_key));
}

void add_init_command(Command& commands) {
  auto options = std::make_shared<InitCommand>();
  Command command = commands.subcommand(
      "init", "prepare a first training run on a text: make a tokenizer and a commented configuration");
  command.required("text", options->sources,
                   "one file, folder, glob in quotes or @FILE with a list of these, as for "
                   "training.dataset_path");
  command.option("--output", options->output,
                 "folder to create with ottava.yaml and the tokenizer, and for the output of the run");
  command.option("--text-key", options->text_key, "key that holds the text in JSON lines");
  command.option("--minutes", options->minutes, "minutes that training should take on this machine")
      .within(kLeastMinutes, kMostMinutes);
  command.option("--tokenizer", options->tokenizer,
                 "folder of an existing tokenizer to use instead of training one");
  command.run(options, run_init_command);
}

}  // namespace ottava
