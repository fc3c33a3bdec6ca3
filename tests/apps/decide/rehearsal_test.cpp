#include "apps/decide/rehearsal.h"
#include "apps/step/training_engine.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

#include "apps/decide/device_peaks.h"
#include "apps/decide/gemm_cache.h"
#include "apps/decide/workbench.h"
#include "apps/devices/available_memory.h"
#include "apps/predict/measured_operations.h"
#include "apps/report/startup_report.h"
#include "core/cuda/blas_plans.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/temporary_folder.h"

// Before the first step of a GPU everything is planned: after a rehearsal no product is planned any more, and
// memory is the plan's block.
// Cases tagged [alone] weigh the GPU's memory: no other process may use it meanwhile (scripts/gpu_check).

// In a test that is linked with the host execution layer, whose cuBLASLt counts.
namespace ottava::cuda_host {
__attribute__((weak)) int matmuls_on_dull_numbers();
}

using namespace ottava;
using namespace ottava::test;

namespace {

Experiment experiment_of(DType compute) {
  Experiment e{.config = {},
               .tokenizer = nullptr,
               .mesh = Mesh({.dp_shard = 1}, 1),
               .shape = tiny_shape(tiny_llama(), 1, 16),
               .decisions = {}};
  e.config.training.gemm_cache = "off";
  e.shape.parameters.compute = compute;
  e.shape.micro_batches = 2;
  e.shape.validation_batch = 2;
  e.shape.validation_sequence = 12;
  return e;
}

// Catch's assertions belong to one thread, ranks are several.
void require(bool holds, const char* text) {
  if (!holds) throw std::runtime_error(text);
}

bool is_host_layer() { return cuda::device_name(0) == "host execution layer"; }

struct Trained {
  std::vector<double> loss;
  int64_t besides_bytes = 0;  ///< taken of the GPU, less the plan
  size_t plans = 0;
};

/// Four steps with graphs and validations between them, after a rehearsal.
Trained rehearse_and_train(Experiment& e, RankGroups& ranks, Device device) {
  Stream stream = Stream::cuda(device.index);
  const StepPlan plan = record_step(e.shape, device, ranks);
  const int64_t before = gpu_bytes_in_use(device);
  rehearse(e, plan, stream, ranks);
  // A real GPU keeps the kernels that were loaded.
  const int64_t kernels = is_host_layer() ? 0 : kGpuLibraryBytes;
  require(gpu_bytes_in_use(device) - before <= kernels, "the rehearsal keeps memory");
  Trained out;
  out.plans = stream.blas_plans().size();
  Arena arena(plan.memory, device);
  TrainingEngine engine(e.shape, stream, arena, ranks, plan.matmul_workspace_bytes);
  engine.parameters().initialise(3);
  engine.graphs().enable(*ranks.world);
  const int64_t count = e.shape.micro_batches * e.shape.batch * e.shape.sequence;
  const auto tokens = random_tokens(std::max<int64_t>(count, 24), e.shape.model.vocab_size, 1);
  const HostTokens host{.inputs = tokens, .targets = tokens, .document_start = {}, .positions = {}};
  for (int step = 1; step <= 4; ++step) {
    out.loss.push_back(
        engine.train_step(host, {.learning_rate = 1e-3, .optimizer_step = step, .valid_tokens = count})
            .loss_sum);
    out.loss.push_back(engine.validate(host));
  }
  require(stream.blas_plans().size() == out.plans, "a product was planned after the rehearsal");
  out.besides_bytes = gpu_bytes_in_use(device) - before - plan.memory.total_bytes();
  return out;
}

size_t gemm_entries(const Experiment& e) {
  return static_cast<size_t>(std::ranges::count_if(
      e.decisions.entries, [](const auto& x) { return x.name.starts_with(kGemmDecisions); }));
}

/// What two ranks over NCCL decide, the same on both, where rank 1 begins with `of_rank_1`.
Decisions decided_by_two(const Decisions& of_rank_1) {
  std::vector<Decisions> decided(2);
  std::vector<double> besides(2);
  run_nccl_mesh({.dp_shard = 2}, [&](std::unique_ptr<RankGroups> groups, int rank) {
    Experiment e = experiment_of(DType::bf16);
    if (rank == 1) e.decisions = of_rank_1;
    besides[static_cast<size_t>(rank)] =
        static_cast<double>(rehearse_and_train(e, *groups, {DeviceType::cuda, rank}).besides_bytes);
    decided[static_cast<size_t>(rank)] = e.decisions;
  });
  CHECK(decided[0] == decided[1]);
  CHECK(besides[1] <= static_cast<double>(kGpuLibraryBytes));
  return decided[0];
}

}  // namespace

TEST_CASE("after a rehearsal nothing is planned any more, memory is the plan, and decisions repeat the run",
          "[alone]") {
  if (!has_gpu()) return skip(kNoGpu);
  const Device gpu{DeviceType::cuda, 0};
  for (DType compute : {DType::f32, DType::bf16}) {
    RankGroups ranks = solo_rank_groups();
    Experiment e = experiment_of(compute);
    e.decisions.entries = {{"parallelism.fsdp_reduce_every_microbatch", "false", "stays"}};
    const Trained first = rehearse_and_train(e, ranks, gpu);
    CHECK(first.plans > 10);
    CHECK(gemm_entries(e) == first.plans + 1);
    CHECK(e.decisions.entries[0].reason == "stays");
    CHECK(first.besides_bytes <= kGpuLibraryBytes);
    if (is_host_layer()) CHECK(first.besides_bytes == 0);  // its libraries take nothing
    const Decisions::Entry& library = *e.decisions.find("gemm library");
    CHECK(library.value.starts_with("cuBLASLt "));
    CHECK(e.decisions.entries.back().reason.find("the fastest of") != std::string::npos);

    // Followed: nothing is measured, and every bit is the same.
    const uint64_t hash = e.decisions.hash();
    const Trained again = rehearse_and_train(e, ranks, gpu);
    CHECK(again.loss == first.loss);
    CHECK(e.decisions.hash() == hash);
    CHECK(e.decisions.entries.back().reason == "as decided before");

    for (Decisions::Entry& entry : e.decisions.entries) {
      if (entry.name == "gemm library") entry.value = "cuBLASLt 1.2.3 on another GPU";
    }
    CHECK_THROWS_WITH(rehearse_and_train(e, ranks, gpu),
                      Catch::Contains("[decisions] the checkpoint's run chose matrix product algorithms with "
                                      "cuBLASLt 1.2.3 on another GPU") &&
                          Catch::Contains("--redecide"));
  }
}

TEST_CASE("what is measured before the first step multiplies numbers like those of training, not zeros") {
  if (!has_gpu() || !cuda_host::matmuls_on_dull_numbers)
    return skip("products are looked at on the host execution layer only");
  const Device gpu{DeviceType::cuda, 0};
  RankGroups ranks = solo_rank_groups();
  cuda_host::matmuls_on_dull_numbers();
  for (DType compute : {DType::f32, DType::bf16}) {
    Experiment e = experiment_of(compute);
    Stream stream = Stream::cuda(0);
    rehearse(e, record_step(e.shape, gpu, ranks), stream, ranks);
    CHECK(gemm_entries(e) > 10);
  }
  CHECK(cuda_host::matmuls_on_dull_numbers() == 0);
  Stream stream = Stream::cuda(0);
  for (Precision precision : {Precision::fp32, Precision::bf16, Precision::fp8})
    CHECK(measure_peak(stream, precision, 0) > 0);
  CHECK(cuda_host::matmuls_on_dull_numbers() == 0);
}

TEST_CASE("the numbers that memory is filled with are read before they are gone") {
  if (!has_gpu()) return skip(kNoGpu);
  for_each_device([](Stream& stream) {
    DeviceBuffer memory(stream, DType::bf16, {100000});
    fill_with_numbers(stream, memory, 2);
    const std::vector<float> values = memory.floats();
    CHECK(std::ranges::all_of(values, [](float x) { return std::abs(x) <= 2; }));
    CHECK(std::ranges::count(values, values[0]) < 1000);
  });
}

TEST_CASE("measured algorithms are kept in a file for later runs, which follow it and measure nothing",
          "[alone]") {
  if (!has_gpu()) return skip(kNoGpu);
  const Device gpu{DeviceType::cuda, 0};
  const TemporaryFolder folder;
  RankGroups ranks = solo_rank_groups();
  auto fresh = [&] {
    Experiment e = experiment_of(DType::bf16);
    e.config.training.gemm_cache = folder.path();
    return e;
  };
  auto how_many = [](const Experiment& e, const char* reason) {
    return std::ranges::count_if(e.decisions.entries, [&](const Decisions::Entry& x) {
      return x.reason.find(reason) != std::string::npos;
    });
  };
  Experiment first = fresh();
  const Trained measured = rehearse_and_train(first, ranks, gpu);
  const auto plans = static_cast<std::ptrdiff_t>(measured.plans);
  CHECK(how_many(first, "the fastest of") == plans);
  CHECK(how_many(first, "kept from an earlier run") == 0);
  const MeasurementCache cache = gemm_cache(folder.path(), first.decisions.find("gemm library")->value);
  const Decisions kept = cache.read();
  CHECK(static_cast<std::ptrdiff_t>(kept.entries.size()) == plans);
  // Plans find what the step's products take in it.
  const MeasuredOperations products = MeasuredOperations::read({cache.file()});
  std::set<std::string> directions;
  for (const RecordedOperation& o : record_step(first.shape, gpu, ranks).operations) {
    const std::optional<PredictedTime> time = o.op == "matmul" ? products.find(o) : std::nullopt;
    if (time && time->source == TimeSource::measured) directions.insert(o.variant);
  }
  CHECK(directions == std::set<std::string>{"forward", "input gradient", "weight gradient"});

  Experiment second = fresh();
  const Trained followed = rehearse_and_train(second, ranks, gpu);
  CHECK(how_many(second, "kept from an earlier run") == plans);
  CHECK(second.decisions.hash() == first.decisions.hash());
  CHECK(followed.loss == measured.loss);

  // The file says another algorithm: it is followed, unless a checkpoint decided, or all is decided afresh.
  Decisions other = kept;
  Decisions::Entry& changed = other.entries.front();
  const std::string fastest = changed.value;
  changed.value[31] = changed.value[31] == '0' ? '1' : '0';  // of the stand-in's three; a GPU's may refuse it
  cache.write({changed});
  if (cuda_host::matmuls_on_dull_numbers) {
    Experiment third = fresh();
    rehearse_and_train(third, ranks, gpu);
    CHECK(third.decisions.find(changed.name)->value == changed.value);
  }
  Experiment resumed = fresh();
  resumed.decisions = first.decisions;
  rehearse_and_train(resumed, ranks, gpu);
  CHECK(resumed.decisions.find(changed.name)->value == fastest);
  CHECK(how_many(resumed, "as decided before") == plans);
  Experiment afresh = fresh();
  afresh.decides_afresh = true;
  rehearse_and_train(afresh, ranks, gpu);
  CHECK(how_many(afresh, "the fastest of") == plans);
  if (cuda_host::matmuls_on_dull_numbers) CHECK(cache.read().hash() == kept.hash());  // the same times there

  // Damage is said, measured around and gone.
  std::ofstream(cache.file(), std::ios::trunc) << "{\"made_for\": \"matrix";
  Experiment after_damage = fresh();
  rehearse_and_train(after_damage, ranks, gpu);
  CHECK(how_many(after_damage, "the fastest of") == plans);
  CHECK(static_cast<std::ptrdiff_t>(cache.read().entries.size()) == plans);
}

TEST_CASE("a step that does not fit a GPU is refused by its plan, before anything is allocated", "[alone]") {
  if (!has_gpu()) return skip(kNoGpu);
  const Device gpu{DeviceType::cuda, 0};
  RankGroups ranks = solo_rank_groups();
  Experiment e = experiment_of(DType::bf16);
  e.shape.model.ffn_dim = 1 << 26;  // 325 GiB
  const StepPlan plan = record_step(e.shape, gpu, ranks);
  const int64_t before = gpu_bytes_in_use(gpu);
  CHECK_THROWS_WITH(require_memory(e, plan.memory, gpu, *ranks.control),
                    Catch::Contains("[memory] the step needs ") && Catch::Contains(" on cuda:0, ") &&
                        Catch::Contains("largest items: ") && Catch::Contains("Lower training.") &&
                        Catch::Contains("activation_checkpoint.mode: full"));
  CHECK_THROWS_WITH(Arena(plan.memory, gpu),
                    Catch::Contains("[cuda] GPU 0 cannot allocate ") && Catch::Contains(" bytes are free"));
  // A driver may keep a little of what it took to find out.
  const int64_t slack = is_host_layer() ? 0 : 64 << 20;
  CHECK(gpu_bytes_in_use(gpu) - before <= slack);
}

TEST_CASE("rank 0's algorithms are everybody's") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  CHECK(decided_by_two({}).entries.size() > 10);
}

TEST_CASE("rank 0's algorithms are everybody's, also of a rank that began with another") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  if (!cuda_host::matmuls_on_dull_numbers)
    return skip("only on the stand-in both ranks measure the same times");
  const Decisions decided = decided_by_two({});
  REQUIRE(decided.entries.size() > 10);
  Decisions other = decided;
  Decisions::Entry& changed = other.entries.back();
  const std::string fastest = changed.value;
  changed.value[31] = changed.value[31] == '0' ? '1' : '0';
  CHECK(decided_by_two(other).find(changed.name)->value == fastest);
}

TEST_CASE("products that only some ranks have are everybody's decisions too, and measured once") {
  Layout stages{.micro_batches = 2, .pp = 2}, owners{.dp_shard = 4};
  TrainingShape plain = experiment_of(DType::bf16).shape, muon = plain;
  plain.batch = 2;
  muon.batch = 4;
  give_matrices_to_muon(muon);
  for (const auto& [name, whole, layout] :
       {std::tuple("pipeline", plain, stages), std::tuple("owners of Muon's matrices", muon, owners)}) {
    INFO(name);
    const auto ranks = static_cast<size_t>(layout.world_size());
    if (nccl_ranks(layout.world_size()) < layout.world_size()) {
      skip("NCCL needs a GPU for each rank");
      continue;
    }
    const TemporaryFolder folder;
    std::vector<Decisions> decided(ranks);
    std::vector<std::vector<cuda::BlasPlans::Choice>> chosen(ranks);
    const auto rehearse_all = [&](const Decisions& before) {
      run_nccl_mesh(layout, [&](std::unique_ptr<RankGroups> groups, int rank) {
        const Device gpu{DeviceType::cuda, rank};
        Experiment e = experiment_of(DType::bf16);
        e.config.training.gemm_cache = before.entries.empty() ? folder.path() : "off";
        e.shape = shape_on(whole, layout);
        e.decisions = before;
        Stream stream = Stream::cuda(rank);
        rehearse(e, record_step(e.shape, gpu, *groups), stream, *groups);
        decided[static_cast<size_t>(rank)] = e.decisions;
        chosen[static_cast<size_t>(rank)] = stream.blas_plans().choices();
      });
    };
    const auto measured = [&] {
      int64_t count = 0;
      for (const auto& of_rank : chosen)
        count += std::ranges::count_if(of_rank, [](const auto& choice) { return choice.candidates > 0; });
      return count;
    };
    rehearse_all({});
    CHECK(measured() > 0);
    std::set<std::string> first_has, all_have;
    for (size_t rank = 0; rank < ranks; ++rank) {
      CHECK(decided[rank] == decided[0]);
      for (const auto& choice : chosen[rank]) {
        (rank == 0 ? first_has : all_have).insert(choice.problem);
        const Decisions::Entry* entry = decided[0].find(std::string(kGemmDecisions) + choice.problem);
        INFO("rank " << rank << ": " << choice.problem);
        REQUIRE(entry);
        CHECK(entry->value == choice.algorithm);
      }
    }
    all_have.merge(std::set(first_has));
    REQUIRE(all_have.size() > first_has.size());  // else this shows nothing
    CHECK(decided[0].entries.size() == all_have.size() + 1);
    const Decisions kept = gemm_cache(folder.path(), decided[0].find("gemm library")->value).read();
    CHECK(kept.entries.size() == all_have.size());
    const uint64_t hash = decided[0].hash();
    // From the file of earlier runs, and from a checkpoint.
    for (const Decisions& before : {Decisions{}, decided[0]}) {
      rehearse_all(before);
      CHECK(measured() == 0);
      CHECK(decided[0].hash() == hash);
      CHECK(decided[ranks - 1] == decided[0]);
    }
  }
}

TEST_CASE("a GPU's memory is told as plan and what came besides") {
  CHECK(gpu_memory_text({.plan_bytes = 3 << 20, .besides_bytes = 1 << 20}) ==
        "GPU memory: plan 3.0 MiB, and 1.0 MiB that libraries, connections and graphs took besides (of the "
        "1024 MiB kept for them)");
  CHECK(gpu_memory_text({.plan_bytes = 3 << 20, .besides_bytes = -(5 << 20)}) ==
        "GPU memory: plan 3.0 MiB; what libraries, connections and graphs took besides cannot be told, since "
        "other programs gave back at least 5.0 MiB of this GPU's memory meanwhile");
  CHECK(gpu_memory_text({.plan_bytes = 3 << 20, .besides_bytes = kGpuLibraryBytes + 1})
            .find("(more than the 1024 MiB kept for them)") != std::string::npos);
}
