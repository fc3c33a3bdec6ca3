#include <cmath>
#include <fstream>
#include <sstream>

#include "apps/commands/eval_command.h"
#include "core/io/file.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/message_of.h"

// What a run says of its model besides the loss.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;

namespace {

const Overrides kValidating{"--validation.enable",
                            "true",
                            "--validation.freq",
                            "4",
                            "--validation.steps",
                            "3",
                            "--validation.seq_len",
                            "32",
                            "--validation.local_batch_size",
                            "2"};

}  // namespace

TEST_CASE("validation says perplexity and bits per byte, of bytes that are text") {
  TinyTraining tiny;
  std::ofstream documents(tiny / "documents.txt");
  for (uint32_t i = 0; i < 40; ++i) documents << "document " << i << " of forty <|endoftext|>\n";
  documents.close();
  const Overrides text{"--validation.dataset_path", tiny / "documents.txt"};
  const auto checked = [&](const std::string& run, const Overrides& more) {
    TinyTraining::Run r = tiny.start(run, kValidating + text + more);
    const Experiment& e = r->experiment();
    auto sets = open_validation_data(e, *r.ranks);
    double bytes = 0, tokens = 0, specials = 0;
    for (int64_t i = 0; i < 3; ++i) {
      for (int32_t target : sets[0].data->read(i * 2).targets) {
        ++tokens;
        e.tokenizer->is_special(target)
            ? ++specials
            : bytes += static_cast<double>(e.tokenizer->decode({&target, 1}).size());
      }
    }
    r->run();
    const double loss = logged(tiny / run, "validation_metrics/loss").back(),
                 bits = logged(tiny / run, "validation_metrics/bits_per_byte").back();
    CHECK(logged(tiny / run, "validation_metrics/perplexity").back() == Approx(std::exp(loss)));
    if (specials == 0) CHECK(bits == Approx(loss * tokens / (std::log(2.0) * bytes)).epsilon(1e-6));
    // Otherwise their losses are in neither sum: less than all, more than what a special token costs at most.
    if (specials > 0) CHECK(bits < loss * tokens / (std::log(2.0) * bytes));
    return specials;
  };
  CHECK(checked("bare", {"--training.add_bos", "false", "--training.add_eos", "false"}) == 0);
  CHECK(checked("marked", {}) > 0);
}

TEST_CASE("tasks are scored during training as ottava eval scores the checkpoint") {
  TinyTraining tiny;
  std::ofstream items(tiny / "items.jsonl");
  for (int i = 0; i < 30; ++i)
    items
        << fmt::format(
               R"({{"query": "item {} of many", "choices": ["one {}", "two", "three and four"], "gold": {}}})",
               i, i, i % 3)
        << "\n";
  items.close();
  const Overrides asking{"--evaluation.enable",
                         "true",
                         "--evaluation.tasks",
                         "[{name: items, path: " + tiny / "items.jsonl" + "}]",
                         "--validation.seq_len",
                         "48",
                         "--validation.local_batch_size",
                         "2"};
  for (const char* mask : {"causal", "block_causal"}) {
    INFO(mask);
    finish(tiny, mask,
           kSaving + asking + Overrides{"--model.attn_mask_type", mask, "--evaluation.freq", "4"});
    // At steps 1, 4 and 8.
    REQUIRE(logged(tiny / mask, "evaluation_metrics/items/acc").size() == 3);
    std::ostringstream out;
    const std::string json = tiny / (std::string(mask) + ".json");
    run_eval_command({.model = tiny / (std::string(mask) + "/checkpoint/step-8"),
                      .tasks = {tiny / "items.jsonl"},
                      .seq_len = 48,
                      .json = json,
                      .dtype = "float32"},
                     out);
    const Json scores = Json::parse(read_file(json), json);
    for (const char* metric : {"acc", "acc_norm", "acc_bytes", "acc_stderr"})
      CHECK(logged(tiny / mask, std::string("evaluation_metrics/items/") + metric).back() ==
            Approx(scores.as_array("")[0].at(metric, "").as_number("")));
  }
  CHECK_THAT(message_of([&] {
               tiny.config("none", {"--evaluation.enable", "true"});
             }),
             Contains("there is no task to evaluate"));
}
