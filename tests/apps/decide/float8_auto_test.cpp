#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/commands/plan_command.h"
#include "apps/config/float8_ratios.h"
#include "apps/decide/decide.h"
#include "apps/decide/float8_speedup.h"
#include "core/log.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/overrides.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// quantize.linear.float8.auto: FP8 where it was measured to be faster, as a recorded decision that rank 0
// takes from a file, from a checkpoint or from its GPU.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr DecisionSource kSaved = DecisionSource::checkpoint, kAfresh = DecisionSource::afresh;
constexpr int64_t kTokens = 64;

/// The four shapes of the debug model and how many times faster FP8 is in each.
struct Ratios {
  std::string wqkv = "1.500", wo = "0.800", w13 = "1.000", w2 = "0.990";
  std::vector<Decisions::Entry> entries() const {
    auto entry = [](int64_t rows, int64_t columns, const std::string& value) {
      return Decisions::Entry{decision_name({kTokens, rows, columns, fp8::RecipeName::tensorwise}), value,
                              "measured"};
    };
    return {entry(768, 256, wqkv), entry(256, 256, wo), entry(1536, 256, w13), entry(256, 768, w2)};
  }
};

class Job {
 public:
  Job() { log::set_level(log::Level::warning); }

  std::string write(const std::string& name, const std::vector<Decisions::Entry>& entries) const {
    return write_text(name, to_json({.made_for = "a GPU", .entries = entries}));
  }
  std::string write_text(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

  std::vector<std::string> options(const std::string& decisions,
                                   const std::vector<std::string>& more = {}) const {
    Overrides all =
        words(
            "--checkpoint.enable true --training.local_batch_size 1 "
            "--model.converters [quantize.linear.float8] --quantize.linear.float8.auto true") +
        Overrides{"--job.dump_folder", folder_.path(), "--training.seq_len", std::to_string(kTokens)};
    if (!decisions.empty()) all.insert(all.end(), {"--quantize.linear.float8.auto_decisions", decisions});
    return all + more;
  }
  Config config(const std::string& decisions, const std::vector<std::string>& more = {}) const {
    return load_config("", options(decisions, more));
  }

  /// What two ranks settle, which must be one policy; `of_rank_1` where its machine has another
  /// configuration's file.
  Experiment settle(const Config& config, DecisionSource source = kSaved, const Config* of_rank_1 = nullptr,
                    std::optional<int> compute_capability = {}) const {
    std::array<std::unique_ptr<Experiment>, 2> settled;
    std::array<std::string, 2> refusals;
    run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
      const auto rank = static_cast<size_t>(world.rank());
      const Config& mine = rank == 1 && of_rank_1 ? *of_rank_1 : config;
      settled[rank] = std::make_unique<Experiment>(resolve_experiment(mine, nullptr, 2, compute_capability));
      RankGroups ranks = groups_over(world, settled[rank]->mesh);
      refusals[rank] = message_of([&] {
        settle_decisions(*settled[rank], ranks, {DeviceType::cpu, 0}, source);
      });
    });
    CHECK(refusals[0] == refusals[1]);
    if (refusals[0] != "no error") fail<ConfigError>("both ranks", "{}", refusals[0]);
    CHECK(settled[0]->decisions == settled[1]->decisions);
    CHECK(fp8::policy_table(settled[0]->shape.float8_policy) ==
          fp8::policy_table(settled[1]->shape.float8_policy));
    CHECK(settled[0]->shape.float8.weights.specs.size() == settled[1]->shape.float8.weights.specs.size());
    return std::move(*settled[0]);
  }

 private:
  TemporaryFolder folder_;
};

std::string runs_in(const Experiment& e, const std::string& layer) {
  const fp8::GemmDecision* d = e.shape.float8_policy.find("layers.3." + layer);
  REQUIRE(d != nullptr);
  return fmt::format("{}: {}", d->recipe ? fp8::name_of(d->recipe->name) : "bf16", d->reason);
}

}  // namespace

TEST_CASE("auto: a decisions file says where FP8 wins, and what was taken from it is recorded") {
  const Job job;
  std::vector<Decisions::Entry> entries = Ratios{}.entries();
  entries.push_back({"gemm library", "of another run", "does not concern us"});
  const std::string path = job.write("gpu.json", entries);
  const Experiment e = job.settle(job.config(path));
  CHECK(runs_in(e, "attention.wqkv") == "tensorwise: measured 1.50x");
  CHECK(runs_in(e, "attention.wo") == "bf16: measured 0.80x");
  CHECK(runs_in(e, "feed_forward.w13") == "tensorwise: measured 1.00x");
  CHECK(runs_in(e, "feed_forward.w2") == "bf16: measured 0.99x");
  CHECK(e.shape.float8_policy.fp8_products() == 6 * 2 * 3);
  CHECK(e.shape.float8.weights.specs.size() == 6 * 2);
  REQUIRE(e.decisions.entries.size() == 5);  // and that of the codes of gathered weights
  for (const Decisions::Entry& entry : Ratios{}.entries()) {
    REQUIRE(e.decisions.find(entry.name) != nullptr);
    CHECK(e.decisions.find(entry.name)->value == entry.value);
    CHECK_THAT(e.decisions.find(entry.name)->reason, Contains(path));
  }
}

// Copies of a file on several machines need not be equal; one that differs would make ranks wait for each
// other's collectives.
TEST_CASE("auto: rank 0's decisions file is everybody's") {
  const Job job;
  const Config first = job.config(job.write("first.json", Ratios{}.entries()));
  for (const std::string& other :
       {job.write("other.json", Ratios{"0.5", "1.5", "0.5", "1.5"}.entries()), job / "none.json"}) {
    const Config of_rank_1 = job.config(other);
    CHECK(runs_in(job.settle(first, kSaved, &of_rank_1), "attention.wo") == "bf16: measured 0.80x");
  }
}

TEST_CASE("auto: what the policy list names needs no measurement") {
  const Job job;
  std::vector<Decisions::Entry> entries = Ratios{}.entries();
  entries.erase(entries.begin() + 1);
  const std::string path = job.write("gpu.json", entries);
  const Experiment e = job.settle(
      job.config(path, {"--quantize.linear.float8.policy", "[{match: '*.wo', recipe: tensorwise}]"}));
  CHECK(runs_in(e, "attention.wo") == "tensorwise: policy \"*.wo\"");
  CHECK(e.decisions.entries.size() == 4);
}

TEST_CASE(
    "auto: a decisions file that is absent, broken or without a shape's ratio is refused by every rank") {
  const Job job;
  auto refusal = [&](const std::string& path) { return message_of([&] { job.settle(job.config(path)); }); };
  auto with_wo = [&](const std::string& value) {
    return refusal(job.write("gpu.json", Ratios{.wo = value}.entries()));
  };
  CHECK_THAT(refusal(job / "none.json"), Contains("none.json' does not exist"));
  CHECK_THAT(refusal(job.write_text("broken.json", "{\"made_for\":")), Contains("broken.json"));
  const std::string name = "quantize.linear.float8.auto 64 x 256 x 256 tensorwise";
  std::vector<Decisions::Entry> entries = Ratios{}.entries();
  entries.erase(entries.begin() + 1);
  const std::string path = job.write("less.json", entries);
  CHECK_THAT(refusal(path), Contains("there is no measurement '" + name + "' for layers.0.attention.wo") &&
                                Contains(path) && Contains("on the GPU") && !Contains("--redecide"));
  for (const char* value : {"fast", "0", "-1", "nan", "1.5x", ""}) {
    CHECK_THAT(with_wo(value),
               Contains(fmt::format("'{}' is '{}', expected how many times faster FP8 is", name, value)));
  }
}

TEST_CASE("auto: without a decisions file a CPU, or a GPU that emulates, is refused") {
  const Job job;
  const std::string advice =
      "set quantize.linear.float8.auto_decisions to the decisions.json of a run on the GPU";
  CHECK_THAT(message_of([&] { resolve_experiment(job.config(""), nullptr, 2); }), Contains(advice));
  const std::string path = job.write("gpu.json", Ratios{}.entries());
  const std::vector<std::string> emulate{"--quantize.linear.float8.emulate", "true"};
  CHECK_THAT(message_of([&] { resolve_experiment(job.config("", emulate), nullptr, 2, 80); }),
             Contains(advice));
  // Which is then done.
  const Experiment e = job.settle(job.config(path, emulate), kSaved, nullptr, 80);
  CHECK(runs_in(e, "attention.wqkv") == "tensorwise: measured 1.50x");
  CHECK(e.shape.float8_policy.find("layers.3.attention.wqkv")->is_emulated);
  CHECK(runs_in(e, "attention.wo") == "bf16: measured 0.80x");
}

TEST_CASE(
    "auto: a checkpoint's decisions are followed whatever the file says by now, --redecide reads it again") {
  const Job job;
  const std::string path = job.write("gpu.json", Ratios{}.entries());
  const Experiment before = job.settle(job.config(path));
  job.write_text("checkpoint/step-4/decisions.json", to_json(before.decisions));
  job.write("gpu.json", Ratios{.wqkv = "0.7", .wo = "2.0"}.entries());
  const Experiment followed = job.settle(job.config(path));
  CHECK((followed.decisions == before.decisions));
  CHECK(runs_in(followed, "attention.wo") == "bf16: measured 0.80x");
  fs::remove(path);  // nor is it needed
  CHECK((job.settle(job.config(path)).decisions == before.decisions));
  job.write("gpu.json", Ratios{.wqkv = "0.7", .wo = "2.0"}.entries());
  const Experiment again = job.settle(job.config(path), kAfresh);
  CHECK(runs_in(again, "attention.wqkv") == "bf16: measured 0.70x");
  CHECK(runs_in(again, "attention.wo") == "tensorwise: measured 2.00x");
  CHECK(again.decisions.find(Ratios{}.entries()[1].name)->value == "2.0");
  // Another layout's are not followed.
  job.write("gpu.json", Ratios{.wo = "3.0"}.entries());
  CHECK(runs_in(job.settle(job.config(path, {"--training.global_batch_size", "6"})), "attention.wo") ==
        "tensorwise: measured 3.00x");
}

TEST_CASE("auto: the table of a plan has the file's ratios") {
  const Job job;
  std::ostringstream out;
  run_plan_command(
      {.file = "", .overrides = job.options(job.write("gpu.json", Ratios{}.entries())), .world_size = 2},
      out);
  CHECK_THAT(out.str(),
             Contains("measured 1.50x") && Contains("measured 0.80x") && !Contains("not measured yet"));
}

TEST_CASE("auto: what is timed is the step that is taken, also where FP8 in fewer layers changes it") {
  const Job job;
  const Experiment open =
      resolve_experiment(job.config("", {"--activation_checkpoint.mode", "auto"}), nullptr, 2, 90);
  const int all = open.shape.float8_policy.fp8_products();
  REQUIRE(all == 6 * 4 * 3);
  struct Timed {
    Recompute recompute;
    bool keeps_codes, reduces_often;
  };
  std::vector<Timed> timed;
  // With FP8 in fewer layers there is less room.
  const auto measured_where = [&](Recompute tight_recompute, bool tight_codes, bool tight_reduces,
                                  const Ratios& first, const Ratios& second) {
    timed.clear();
    return measure_as_decided(
        open,
        [&](const Experiment& given) {
          Experiment e = given;
          const bool is_tight = e.shape.float8_policy.fp8_products() < all;
          e.shape.model_options.recompute.assign(6, is_tight ? tight_recompute : Recompute::nothing);
          e.shape.parameters.keeps_float8_codes = is_tight ? tight_codes : true;
          e.shape.parameters.reduce_every_micro_batch = is_tight ? tight_reduces : false;
          return e;
        },
        [&](const Experiment& e) {
          CHECK(e.shape.float8_policy.fp8_products() == all);
          timed.push_back({e.shape.model_options.recompute[0], e.shape.parameters.keeps_float8_codes,
                           e.shape.parameters.reduce_every_micro_batch});
          return (timed.size() == 1 ? first : second).entries();
        });
  };
  const Ratios everywhere{.wqkv = "1.500", .wo = "1.500", .w13 = "1.500", .w2 = "1.500"}, some,
      none{.wqkv = "0.500", .wo = "0.500", .w13 = "0.500", .w2 = "0.500"};
  const auto nothing = Recompute::nothing, block = Recompute::block;
  // It stays as it is: once.
  CHECK(measured_where(block, false, true, everywhere, none) == everywhere.entries());
  CHECK(timed.size() == 1);
  CHECK(measured_where(nothing, true, false, some, none) == some.entries());
  CHECK(timed.size() == 1);
  // Something changes: once more, with that.
  CHECK(measured_where(block, true, false, some, everywhere) == everywhere.entries());
  REQUIRE(timed.size() == 2);
  CHECK(timed[0].recompute == nothing);
  CHECK(timed[1].recompute == block);
  CHECK(timed[1].keeps_codes);
  CHECK_FALSE(timed[1].reduces_often);
  CHECK(measured_where(nothing, false, false, some, none) == none.entries());
  REQUIRE(timed.size() == 2);
  CHECK(timed[0].keeps_codes);
  CHECK_FALSE(timed[1].keeps_codes);
  CHECK(measured_where(nothing, true, true, some, none) == none.entries());
  REQUIRE(timed.size() == 2);
  CHECK(timed[1].reduces_often);
  // Without FP8 there are no codes to keep or not to keep.
  CHECK(measured_where(nothing, false, false, none, some) == none.entries());
  CHECK(timed.size() == 1);
}
