#include "apps/data/training_data.h"

#include <filesystem>
#include <fstream>

#include "tests/core/data/shards.h"
#include "tests/core/data/tokenizer/small_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/tiny_training.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

constexpr int32_t kGpt2Bos = 50256;

/// A file of llm.c's for GPT-2: documents of `first` and ids that every vocabulary has.
std::string llmc_file(const std::string& path, int32_t first) {
  data::test::Tokens documents;
  for (int32_t d = 0; d < 200; ++d) {
    documents.push_back({first});
    for (int32_t i = 0; i < 20; ++i) documents.back().push_back((d * 7 + i) % 200);
  }
  std::ofstream(path, std::ios::binary) << data::test::llmc<uint16_t>(20240520, 1, documents);
  return path;
}

/// A tokenizer whose BOS and EOS is GPT-2's.
std::string write_gpt2_tokenizer(const std::string& folder) {
  std::filesystem::create_directory(folder);
  SmallTokenizer gpt2;
  gpt2.merges = "[]";
  gpt2.more.clear();
  for (int32_t id = 256; id < kGpt2Bos; ++id) gpt2.more += fmt::format(R"(,"t{}":{})", id, id);
  gpt2.added = fmt::format(R"([{{"id":{},"content":"<|endoftext|>","special":true}}])", kGpt2Bos);
  std::ofstream(folder + "/tokenizer.json") << gpt2.json();
  std::ofstream(folder + "/tokenizer_config.json")
      << R"({"bos_token":"<|endoftext|>","eos_token":"<|endoftext|>"})";
  return folder;
}

}  // namespace

TEST_CASE("llm.c's files of another tokenizer are refused where their documents are to be kept apart") {
  const TinyTraining tiny;
  const Overrides apart{"--model.attn_mask_type", "block_causal"},
      own{"--training.dataset_path", llmc_file(tiny / "own.bin", 2)};
  const auto expect_refused = [&](const char* run, const Overrides& overrides) {
    CHECK_THAT(message_of([&] { tiny.start(run, overrides); }),
               Contains("own.bin' has llm.c's format, in which token 50256 begins every document, but this "
                        "tokenizer's BOS is 2254 and its EOS 2255") &&
                   Contains("data prepare, or set causal"));
  };
  CHECK(tiny.start("causal", own)->run() == Trainer::End::completed);
  expect_refused("apart", own + apart);
  const Overrides validated{
      "--validation.enable",           "true", "--validation.dataset_path", tiny / "own.bin",
      "--validation.seq_len",          "32",   "--validation.steps",        "1",
      "--validation.local_batch_size", "2"};
  CHECK(tiny.start("validated", validated)->run() == Trainer::End::completed);
  expect_refused("validated apart", validated + apart);

  const Overrides gpt2{"--training.dataset_path", llmc_file(tiny / "gpt2.bin", kGpt2Bos),
                       "--model.hf_assets_path",  write_gpt2_tokenizer(tiny / "tokenizer"),
                       "--training.steps",        "1"};
  CHECK(tiny.start("gpt2", gpt2 + apart)->run() == Trainer::End::completed);
  std::ofstream(tiny / "tokenizer/tokenizer_config.json") << "{}";
  CHECK_THAT(message_of([&] { tiny.start("nameless", gpt2 + apart); }),
             Contains("this tokenizer's BOS is none and its EOS none") &&
                 Contains("cannot know them: name that token bos_token in tokenizer_config.json if it "));
}
