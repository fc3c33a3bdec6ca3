#include "apps/config/resolved_layout.h"

#include "core/error.h"
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
  model = {.heads = 3, .kv_heads = 3};
  CHECK_THAT(complaint("", model), Contains("n_heads 3 (remainder 1): set model.n_heads to 4"));
  model = {.ffn_dim = 33};
  CHECK_THAT(complaint("", model), Contains("ffn_dim 33 (remainder 1): set model.ffn_dim to 34"));
  CHECK_THAT(complaint("training: {local_batch_size: 1, seq_len: 65}"),
             Contains("training.local_batch_size x seq_len = 65 (remainder 1): set training.seq_len to 66"));
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
