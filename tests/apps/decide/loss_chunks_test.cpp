#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "apps/decide/decide.h"
#include "apps/devices/available_memory.h"
#include "apps/step/step_plan.h"
#include "core/cuda/runtime.h"
#include "core/log.h"
#include "tests/support/devices.h"
#include "tests/support/overrides.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"

// How many tokens' logits exist at once on a GPU: as many as its memory allows. Only `meta` runs.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

constexpr const char* kKey = "model.loss_chunk_tokens";
const Device kGpu{DeviceType::cuda, 0};

class Job {
 public:
  Job() { log::set_level(log::Level::warning); }
  Experiment open(int64_t vocabulary, const std::vector<std::string>& more = {},
                  std::optional<int> capability = 90) const {
    const Overrides options = model_of({.dim = 16, .layers = 1, .heads = 1, .kv_heads = 1, .ffn = 16}) +
                              Overrides{"--job.dump_folder",           folder_.path(),
                                        "--checkpoint.enable",         "true",
                                        "--model.vocab_size",          std::to_string(vocabulary),
                                        "--training.seq_len",          "4096",
                                        "--training.local_batch_size", "1",
                                        "--attention.backend",         "flash",
                                        "--metrics.peak_tflops_bf16",  "1",
                                        "--metrics.peak_tflops_fp8",   "1"} +
                              more;
    return resolve_experiment(load_config("", options), nullptr, 1, capability);
  }
  Experiment settle(int64_t vocabulary, const std::vector<std::string>& more = {}) const {
    Experiment e = open(vocabulary, more);
    RankGroups ranks = solo_rank_groups();
    settle_decisions(e, ranks, kGpu, DecisionSource::checkpoint);
    const Decisions::Entry* entry = e.decisions.find(kKey);
    if (entry) CHECK(entry->value == std::to_string(e.shape.model_options.loss_chunk_rows));
    return e;
  }
  void save(const Experiment& like, const std::string& value) const {
    const std::string path = folder_ / "checkpoint/step-4";
    std::filesystem::create_directories(path);
    std::ofstream(path + "/decisions.json")
        << to_json({.made_for = like.decisions.made_for, .entries = {{kKey, value, "before"}}});
  }

 private:
  TemporaryFolder folder_;
};

/// Memory of the GPU that is taken meanwhile.
struct Held {
  explicit Held(int64_t bytes)
      : data(bytes > 0 ? cuda::allocate(kGpu.index, static_cast<size_t>(bytes)) : nullptr) {}
  Held(const Held&) = delete;
  ~Held() {
    if (data) cuda::release(kGpu.index, data);
  }
  void* data;
};

}  // namespace

TEST_CASE("the logits of as many tokens exist at once as a GPU has memory for", "[alone]") {
  if (!has_gpu()) return skip(kNoGpu);
  const Job job;
  const Experiment small = job.settle(320);
  REQUIRE(small.decisions.find(kKey));
  CHECK(small.decisions.find(kKey)->value == "4096");
  CHECK_THAT(small.decisions.find(kKey)->reason,
             Contains("fewer passes over the output layer's gradient, and ") && Contains(" MiB of ") &&
                 Contains(" MiB free suffice"));
  // 4096 tokens of this vocabulary need 1.4 times the memory that is free, 2048 some 0.7 times; of twice as
  // many words only 1024 are to be had. A vocabulary has an upper limit, so of a large GPU most is held.
  RankGroups ranks = solo_rank_groups();
  const auto free_bytes = [&] { return memory_for_rank(kGpu, *ranks.control); };
  const int64_t most = int64_t{32} << 30;
  const Held held(free_bytes() > most ? free_bytes() - most : 0);
  const int64_t vocabulary = static_cast<int64_t>(1.4 * static_cast<double>(free_bytes())) / (4096 * 6);
  CHECK(job.settle(vocabulary).shape.model_options.loss_chunk_rows == 2048);
  const Experiment large = job.settle(2 * vocabulary);
  CHECK(large.shape.model_options.loss_chunk_rows == 1024);
  CHECK_THAT(large.decisions.find(kKey)->reason, Contains("logits of more tokens would take "));
  SECTION("a checkpoint's decision is followed, where it can be") {
    job.save(small, "2048");
    CHECK(job.settle(320).shape.model_options.loss_chunk_rows == 2048);
    CHECK(job.settle(320).decisions.find(kKey)->reason == "before");
    CHECK_THROWS_WITH(
        job.settle(4 * vocabulary),
        Contains("[decisions] the checkpoint's run used model.loss_chunk_tokens = 2048, which needs ") &&
            Contains("or start with --redecide, which changes the order of gradient sums"));
    job.save(small, "3000");
    CHECK_THROWS_WITH(job.settle(320), Contains("= '3000', expected one of 4096, 2048, 1024: start with"));
  }
}

TEST_CASE("ranks that share a GPU have an even share of its free memory, and ranks with one each all of it",
          "[alone]") {
  if (!has_gpu()) return skip(kNoGpu);
  RankGroups solo = solo_rank_groups();
  const int64_t alone = memory_for_rank(kGpu, *solo.control) + kGpuLibraryBytes;
  const int gpus = std::min(cuda::device_count(), 2);
  std::array<int64_t, 2> shared{}, own{};
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    shared[rank] = memory_for_rank(kGpu, world) + kGpuLibraryBytes;
    if (gpus == 2) own[rank] = memory_for_rank({DeviceType::cuda, world.rank()}, world) + kGpuLibraryBytes;
  });
  for (const size_t rank : {0u, 1u}) {
    CHECK(shared[rank] <= alone / 2);
    CHECK(shared[rank] > alone / 3);  // other work of this process may have taken some
    if (gpus == 2) CHECK(own[rank] > alone / 2);
  }
}

TEST_CASE("what the configuration says of logits, or what makes no difference, is not decided") {
  const Job job;
  const auto rows = [](const Experiment& e) {
    CHECK(open_decisions(e).empty());
    return e.shape.model_options.loss_chunk_rows;
  };
  CHECK(rows(job.open(320, {"--model.loss_chunk_tokens", "512"})) == 512);
  CHECK(rows(job.open(320, {"--training.seq_len", "1024"})) == 1024);
  CHECK(rows(job.open(320, {}, std::nullopt)) == 1024);  // a CPU
  // Validation has logits too.
  CHECK(open_decisions(job.open(320, {"--training.seq_len", "1024", "--validation.enable", "true",
                                      "--validation.seq_len", "1024", "--validation.local_batch_size", "2"}))
            .size() == 1);
}

TEST_CASE("a plan shows the step with the fewest and with the most logits, and is the one with the fewest") {
  const Experiment e = Job().open(320);
  const std::vector<OpenDecision> open = open_decisions(e);
  REQUIRE(open.size() == 1);
  CHECK(open[0].name == kKey);
  REQUIRE(open[0].outcomes.size() == 3);
  CHECK(open[0].outcomes[0].value == "1024");
  CHECK(open[0].outcomes[2].value == "4096");
  CHECK(e.shape.model_options.loss_chunk_rows == 1024);
  const auto bytes = [&](size_t i) {
    return record_first_rank(open[0].outcomes[i].shape, kGpu, e.mesh).memory.total_bytes();
  };
  CHECK(bytes(2) - bytes(0) >= int64_t{3072} * 320 * 4);
}

TEST_CASE("mode auto recomputes norms and activations rather than make the loss of fewer tokens at a time") {
  const std::vector<std::string> keys{"--activation_checkpoint.mode", "auto", "--model.n_layers", "8"};
  // A block takes 10, 7, 4 or 1 by what it recomputes, the logits of 1024 tokens 4, kept codes 5.
  const auto need = [](const TrainingShape& shape) {
    int64_t bytes = shape.model_options.loss_chunk_rows / 256 + 5 * shape.parameters.keeps_float8_codes;
    for (const Recompute r : shape.model_options.recompute) bytes += 10 - 3 * static_cast<int64_t>(r);
    return bytes;
  };
  const auto decided = [&](const Experiment& open, int64_t available) {
    const Experiment e = decided_by_memory(open, [&](const TrainingShape& shape) {
      return std::vector{MemoryNeed{.bytes = need(shape), .available = available, .share = 1}};
    });
    CHECK(e.shape.model_options.loss_chunk_rows == std::stoll(e.decisions.find(kKey)->value));
    return e.decisions.find("activation_checkpoint.mode")->value + ", " + e.decisions.find(kKey)->value;
  };
  const Experiment open = Job().open(320, keys);
  CHECK(decided(open, 80 + 16) == "none, 4096");
  CHECK(decided(open, 80 + 15) == "op of 1 in 4 blocks, 4096");
  CHECK(decided(open, 56 + 16) == "op, 4096");
  CHECK(decided(open, 56 + 15) == "op of 3 in 4 blocks, 2048");
  CHECK(decided(open, 56 + 3) == "op, all but attention of 1 in 8 blocks, 1024");
  CHECK(decided(open, 32) == "full, 4096");  // by chance there is room
}
