#include "apps/commands/tokenizer_command.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <iostream>

#include "apps/commands/command_line.h"
#include "apps/commands/given_text.h"
#include "apps/config/installed.h"
#include "core/data/corpus.h"
#include "core/data/data_file.h"
#include "core/data/json_line.h"
#include "core/data/tokenizer/bpe_trainer.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/attempts.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/stopwatch.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using fmt::print;

constexpr std::string_view kTrain = "tokenizer train";

/// Calls visit(text) for every document until it returns false.
template <class Visit>
void each_document(const TokenizerTrainOptions& options, Visit visit) {
  auto files = data::find_data_files(options.sources);
  for (const auto& file : files) {
    if (data::is_tokenized(file.format)) {
      fail<DataError>(kTrain, "{} has the format {}, but a tokenizer is trained on text", file.path,
                      data::name_of(file.format));
    }
  }
  data::Corpus corpus(std::move(files), {.max_text_bytes = 4 << 20});
  data::Segment segment;
  for (int64_t block = 0; block < corpus.blocks(); ++block) {
    for (data::BlockReader reader(corpus, block); !reader.finished();) {
      reader.next(segment);
      for (const auto& document : segment.documents) {
        std::string_view text(segment.bytes.data() + document.begin, document.end - document.begin);
        std::string unescaped;
        if (document.kind == data::Document::Kind::json_line) {
          if (auto problem = data::append_json_string(text, options.text_key, unescaped)) {
            fail<DataError>(kTrain, "{}:{}:{}: {}", corpus.files()[document.file].path,
                            corpus.line_number(document.file, document.offset), problem->column,
                            problem->what);
          }
          text = unescaped;
        }
        if (!visit(text)) return;
      }
    }
  }
}

/// What would end the writing, before the training, which would be for nothing.
void require_output(const std::string& folder, const std::vector<std::string>& files) {
  in_three_attempts({.complaint = fmt::format("the folder {} could not be looked at", folder)}, [&] {
    if (const std::string reason = why_not_writable(folder); !reason.empty())
      fail<FileError>(kTrain, "cannot write into {}: {}; choose another --output", folder, reason);
    for (const std::string& file : files) {
      if (is_folder(file))
        fail<FileError>(kTrain, "cannot write {}: it is a folder; choose another --output", file);
    }
  });
}

std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find_first_of(" \t\r\n,[]", at), text.size());
    std::string_view word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    bool digits = word.size() <= 9 && word.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits) fail<DataError>("tokenizer decode", "'{}' is not a token id", word.substr(0, 40));
    ids.push_back(std::stoi(std::string(word)));
  }
  return ids;
}

}  // namespace

void tokenizer_train(const TokenizerTrainOptions& options, std::ostream& out) {
  if (options.output_folder.empty()) fail<ConfigError>(kTrain, "no output folder is given");
  const std::string definition = options.output_folder + "/tokenizer.json",
                    settings = options.output_folder + "/tokenizer_config.json";
  require_output(options.output_folder, {definition, settings});
  if (!options.overwrites && is_there(definition)) {
    fail<ConfigError>(kTrain,
                      "{} already exists, and models that were trained with it need it: choose another "
                      "--output, or add --overwrite to replace it",
                      definition);
  }
  const Stopwatch watch;
  tokenizer::BpeTrainer trainer({.vocab_size = options.vocab_size,
                                 .rules = tokenizer::word_rules(options.rules),
                                 .special_tokens = options.special_tokens,
                                 .bos_token = options.bos_token,
                                 .eos_token = options.eos_token});
  each_document(options, [&](std::string_view text) {
    trainer.add(text);
    return options.max_bytes <= 0 || trainer.bytes() < options.max_bytes;
  });
  auto texts = tokenizer::write_definition(trainer.train());
  const FileToWrite files[] = {{settings, texts.config_json}, {definition, texts.tokenizer_json}};
  in_three_attempts(
      {.complaint = fmt::format("the tokenizer could not be written into {}", options.output_folder)}, [&] {
        require_folder(kTrain, options.output_folder);
        write_files_atomically(files);
      });
  double seconds = watch.seconds();
  print(out, "read {:.1f} MB of text, {}, in {:.1f} s\nwrote {} ({} tokens)\n", trainer.bytes() / 1e6,
        counted(trainer.distinct_words(), "different word"), seconds, definition, options.vocab_size);
}

void tokenizer_encode(const TokenizerEncodeOptions& options, std::ostream& out) {
  auto tokenizer = Tokenizer::load(here_or_installed(options.tokenizer));
  bool wrap = options.wrap == TokenizerEncodeOptions::Wrap::as_the_files_say;
  auto ids =
      tokenizer->encode(given_text("tokenizer encode", options.text, options.file, options.input),
                        {.add_bos = wrap && tokenizer->adds_bos(), .add_eos = wrap && tokenizer->adds_eos()});
  if (options.print == TokenizerEncodeOptions::Print::pieces) {
    for (int32_t id : ids) {
      std::string quoted;
      append_json_string(quoted, tokenizer->token_bytes(id));
      print(out, "{:>8}  {}\n", id, quoted);
    }
    return;
  }
  for (size_t i = 0; i < ids.size(); ++i) out << (i ? " " : "") << ids[i];
  out << '\n';
}

void tokenizer_decode(const TokenizerDecodeOptions& options, std::ostream& out) {
  auto tokenizer = Tokenizer::load(here_or_installed(options.tokenizer));
  if (!options.ids && options.file.empty() && options.input) {
    for (std::string line; std::getline(*options.input, line);)
      out << tokenizer->decode(parse_ids(line)) << std::flush;
    return;
  }
  out << tokenizer->decode(
      parse_ids(given_text("tokenizer decode", options.ids, options.file, options.input)));
}

void tokenizer_inspect(const TokenizerInspectOptions& options, std::ostream& out) {
  auto tokenizer = Tokenizer::load(here_or_installed(options.tokenizer));
  out << tokenizer->describe();
  if (options.text_file.empty()) return;
  std::string text = given_text("tokenizer inspect", {}, options.text_file, nullptr);
  tokenizer->encode(std::string_view(text).substr(0, 1 << 20));  // fills the caches
  const Stopwatch watch;
  auto ids = tokenizer->encode(text);
  double seconds = watch.seconds();
  print(out, "{}: {}, {}, {:.3f} bytes per token, {:.1f} MB/s on one core\n", options.text_file,
        counted(text.size(), "byte"), counted(ids.size(), "token"),
        static_cast<double>(text.size()) / std::max<size_t>(ids.size(), 1),
        text.size() / 1e6 / std::max(seconds, 1e-9));
}

namespace {

void add_train(Command& tokenizer) {
  auto o = std::make_shared<TokenizerTrainOptions>();
  tokenizer.subcommand("train", "train a byte-level BPE tokenizer on text")
      .required("sources", o->sources, "files, folders or globs of text or JSON lines")
      .required("--output", o->output_folder, "folder in which to write tokenizer.json")
      .required("--vocab-size", o->vocab_size, "number of tokens, including special tokens")
      .within(1)
      .option("--rules", o->rules, "rules by which text is split into words: llama3, gpt2 or qwen2")
      .option("--special-tokens", o->special_tokens,
              "special tokens, which ordinary text never produces, instead of the usual two")
      .option("--bos-token", o->bos_token, "special token that begins a text; \"\": none")
      .or_empty()
      .option("--eos-token", o->eos_token, "special token that ends a text; \"\": none")
      .or_empty()
      .option("--text-key", o->text_key, "key that holds the text in JSON lines")
      .option(
          "--max-bytes", o->max_bytes,
          "stop after the document that reaches this many bytes of text; without <|endoftext|>, plain text "
          "has documents of up to 4 MiB; 0: use all")
      .within(0)
      .flag("--overwrite", o->overwrites, true, "replace an existing tokenizer")
      .run(o, tokenizer_train);
}

void add_encode(Command& tokenizer) {
  auto o = std::make_shared<TokenizerEncodeOptions>();
  tokenizer.subcommand("encode", "convert text to token ids")
      .required("tokenizer", o->tokenizer, "folder with tokenizer.json, or the file itself")
      .option("text", o->text, "text to encode; without it and --file, what is piped in")
      .or_empty()
      .option("--file", o->file, "read the text from a file")
      .flag("--pieces", o->print, TokenizerEncodeOptions::Print::pieces, "print one token per line")
      .flag("--special", o->wrap, TokenizerEncodeOptions::Wrap::as_the_files_say,
            "add BOS and EOS tokens as the tokenizer's files specify")
      .run([o] {
        o->input = piped_input();
        tokenizer_encode(*o, std::cout);
        return 0;
      });
}

void add_decode(Command& tokenizer) {
  auto o = std::make_shared<TokenizerDecodeOptions>();
  auto ids = std::make_shared<std::vector<std::string>>();
  tokenizer.subcommand("decode", "convert token ids to text")
      .required("tokenizer", o->tokenizer, "folder with tokenizer.json, or the file itself")
      .option("ids", *ids, "ids to decode; without them and --file, what is piped in")
      .or_empty()
      .option("--file", o->file, "read the ids from a file")
      .run([o, ids] {
        o->input = piped_input();
        if (!ids->empty()) o->ids = fmt::format("{}", fmt::join(*ids, " "));
        tokenizer_decode(*o, std::cout);
        return 0;
      });
}

void add_inspect_tokenizer(Command& tokenizer) {
  auto o = std::make_shared<TokenizerInspectOptions>();
  tokenizer.subcommand("inspect", "show the properties of a tokenizer")
      .required("tokenizer", o->tokenizer, "folder with tokenizer.json, or the file itself")
      .option("--text", o->text_file, "file of text whose bytes per token to report, too")
      .run(o, tokenizer_inspect);
}

}  // namespace

void add_tokenizer_commands(Command& commands) {
  Command tokenizer = commands.subcommand("tokenizer", "train and use tokenizers");
  add_train(tokenizer);
  add_encode(tokenizer);
  add_decode(tokenizer);
  add_inspect_tokenizer(tokenizer);
}

}  // namespace ottava
