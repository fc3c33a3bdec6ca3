#include "apps/config/resolved_layout.h"

#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"
#include "tests/support/message_of.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

/// What tensor parallel 2 objects to, or "no error".
std::string complaint(const std::string& text, const LlamaConfig& model = {}, int cp = 1) {
  const Config config = config_of_text(text);
  return message_of([&] { check_tensor_parallel(model, config, 2, cp); });
}

}  // namespace

TEST_CASE("what tensor parallel does not divide is named by its key, with the next value that it divides") {
  CHECK(complaint("") == "no error");
  LlamaConfig model;
  model.vocab_size = 2257;
  CHECK_THAT(complaint("", model),
             Contains("tensor_parallel_degree 2 does not divide vocab_size 2257 "
                      "(remainder 1): set model.vocab_size to 2258, or choose another degree"));
  model = {.dim = 64, .heads = 5, .kv_heads = 5, .head_dim = 8};
  CHECK_THAT(complaint("", model), Contains("n_heads 5 (remainder 1): set model.head_dim to 8 and "
                                            "model.n_heads to 6, or choose another degree"));
  model = {.heads = 3, .kv_heads = 3};
  CHECK_THAT(complaint("", model), Contains("n_heads 3 (remainder 1): set model.n_heads to 4"));
  model = {.ffn_dim = 33};
  CHECK_THAT(complaint("", model), Contains("ffn_dim 33 (remainder 1): set model.ffn_dim to 34"));
  CHECK_THAT(complaint("training: {local_batch_size: 1, seq_len: 65}"),
             Contains("training.local_batch_size x seq_len = 65 (remainder 1): set training.seq_len to 66"));
  CHECK_THAT(complaint("training: {local_batch_size: 2, seq_len: 65}\n"
                       "parallelism: {pipeline_parallel_degree: 2}"),
             Contains("2 does not divide parallelism.pipeline_parallel_microbatch_size x seq_len = 65 "
                      "(remainder 1): set training.seq_len to 66"));
}

TEST_CASE("tensor parallel divides the tokens of validation and of questions as those of training") {
  const std::string validation = "\nvalidation: {enable: true, local_batch_size: 1, seq_len: 65}";
  CHECK_THAT(complaint(validation), Contains("validation.local_batch_size x seq_len = 65 (remainder 1): set "
                                             "validation.seq_len to 66, or choose another degree"));
  CHECK(complaint("validation: {enable: false, local_batch_size: 1, seq_len: 65}") == "no error");
  CHECK(complaint("validation: {enable: true, local_batch_size: 2, seq_len: 65}") == "no error");
  CHECK_THAT(complaint("validation: {local_batch_size: 1, seq_len: 65}\n"
                       "evaluation: {enable: true, tasks: [{name: items, path: items.jsonl}]}"),
             Contains("validation.local_batch_size x seq_len = 65"));
  // Of shared sequences, what one rank holds of them.
  CHECK_THAT(complaint("training: {seq_len: 1024}\nvalidation: {enable: true, local_batch_size: 1, seq_len: "
                       "130}",
                       {}, 2),
             Contains("validation.local_batch_size x seq_len / context_parallel_degree = 65 (remainder 1): "
                      "set validation.seq_len to 512"));
}

TEST_CASE("more micro-batches of a step than a plan can record are refused, by the key that makes fewer") {
  const auto batches = [](const std::string& text, int ranks) {
    return message_of([&] { resolve_batches(config_of_text(text), Mesh({.dp_shard = ranks}, ranks)); });
  };
  CHECK(batches("training: {local_batch_size: 2, global_batch_size: 1073741822}", 1) ==
        "[training] global_batch_size 1073741822 makes 536870911 micro-batches of local_batch_size 2 on each "
        "rank, "
        "expected at most 65536: lower global_batch_size, raise local_batch_size or use more data-parallel "
        "ranks");
  CHECK(batches("training: {local_batch_size: 2, global_batch_size: 131072}", 1) == "no error");
  CHECK(batches("training: {local_batch_size: 1, global_batch_size: 131072}", 2) == "no error");
  CHECK_THAT(batches("training: {local_batch_size: 1, global_batch_size: 131074}", 2),
             Contains("makes 65537 micro-batches"));
  const auto pipeline = [](const std::string& local_batch_size) {
    TrainingShape shape;
    shape.micro_batches = 2;
    shape.model.layers = 2;
    const Config config = config_of_text("training: {local_batch_size: " + local_batch_size + "}");
    return message_of([&] { resolve_pipeline(config, 2, shape); });
  };
  CHECK(pipeline("32768") == "no error");
  CHECK(pipeline("32769") ==
        "[pipeline] pipeline_parallel_microbatch_size 1 makes 65538 micro-batches of a step on each rank, "
        "expected "
        "at most 65536: raise it, or lower global_batch_size or local_batch_size");
}

TEST_CASE("batches that do not divide are refused with the key to change and its next value") {
  const auto batches = [](const std::string& text, int ranks) {
    return message_of([&] { resolve_batches(config_of_text(text), Mesh({.dp_shard = ranks}, ranks)); });
  };
  CHECK(batches("training: {local_batch_size: 2, global_batch_size: 8}", 3) ==
        "[training] global_batch_size 8 is not a multiple of local_batch_size 2 x 3 data-parallel ranks = 6 "
        "(remainder 2): set training.global_batch_size to 12, or change one of the others");
  CHECK_THAT(batches("training: {local_batch_size: 2, global_batch_size: 2}", 4),
             Contains("set training.global_batch_size to 8,"));
  const Config config =
      config_of_text("training: {local_batch_size: 6}\nparallelism: {pipeline_parallel_microbatch_size: 4}");
  TrainingShape shape;
  CHECK(message_of([&] { resolve_pipeline(config, 2, shape); }) ==
        "[pipeline] local_batch_size 6 is not a multiple of pipeline_parallel_microbatch_size 4 (remainder "
        "2): set parallelism.pipeline_parallel_microbatch_size to 2, or change training.local_batch_size");
}
