#include "parallel/sharding/muon_update.h"

#include <bit>
#include <cmath>
#include <map>
#include <mutex>

#include "core/cost.h"
#include "core/ops/matmul/matmul.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "parallel/sharding/mesh.h"
#include "parallel/sharding/rank_groups.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

// Two blocks: a fused matrix whose key/value heads four tensor-parallel ranks share, one cut by columns, a
// norm.
std::vector<ParameterSpec> two_blocks() {
  std::vector<ParameterSpec> specs;
  for (int unit = 0; unit < 2; ++unit) {
    const std::string at = "layers." + std::to_string(unit);
    specs.push_back(
        {.name = at + ".wqkv",
         .parts = {{"wq", at + ".q", 32, 4, {}}, {"wk", at + ".k", 16, 2, {}}, {"wv", at + ".v", 16, 2, {}}},
         .columns = 20,
         .tensor_parallel = TensorParallel::rows,
         .unit = unit,
         .rule = UpdateRule::muon});
    specs.push_back({.name = at + ".norm",
                     .parts = {{"norm", at + ".norm", 20, 1, {}}},
                     .columns = 1,
                     .is_vector = true,
                     .role = ParameterRole::norm,
                     .unit = unit});
    specs.push_back({.name = at + ".wo",
                     .parts = {{"wo", at + ".o", 20, 20, {}}},
                     .columns = 32,
                     .tensor_parallel = TensorParallel::columns,
                     .unit = unit,
                     .rule = UpdateRule::muon});
  }
  return specs;
}

ShardCoordinates shards(int count) { return {.shard_size = count}; }

struct Layout {
  int replicas = 1, shards = 1, tp = 1;
};
/// Masters and momenta after three steps by HF name, whole; bytes sent, planned and counted, of all ranks.
struct Result {
  std::map<std::string, std::vector<float>> weights, momenta;
  int64_t planned = 0, counted = 0;
  int64_t differing = 0;  ///< elements that two ranks hold with different bits
};

float number(size_t name, int64_t element, int salt) {
  return std::sin(static_cast<float>((element + 1) * (salt * 7 + static_cast<int64_t>(name) + 3) % 9973));
}

/// Calls body(run, offset in the HF tensor, offset in the shard) for every row that a rank holds.
template <class Body>
void for_each_row(const ParameterSpec& spec, const ShardCoordinates& at, Body&& body) {
  for (const ShardRun& run : shard_runs(spec, at)) {
    const int64_t width = run.column_end - run.column_begin;
    for (int64_t r = run.row_begin; r < run.row_end; ++r)
      body(run, r * spec.columns + run.column_begin, (run.local_row + r - run.row_begin) * width, width);
  }
}

void three_steps(Stream& stream, Arena& arena, RankGroups& ranks, const std::vector<ParameterSpec>& specs,
                 MuonOptions options, int64_t workspace_bytes, Result* result, std::mutex* mutex) {
  Fsdp fsdp(stream, arena, ranks, specs, {.compute = DType::f32});
  MuonUpdate muon(stream, arena, *ranks.stage, fsdp, options);
  const Tensor scalars = arena.persistent("scalars", DType::f32, {kStepScalars}, MemoryCategory::data),
               workspace =
                   arena.persistent("workspace", DType::u8, {workspace_bytes}, MemoryCategory::workspace);
  const bool is_real = stream.type() != DeviceType::meta;
  if (is_real) set_matmul_workspace(stream, workspace);
  auto fill = [&](const Tensor& shard, size_t p, int salt) {
    for_each_row(
        specs[p], fsdp.coordinates(), [&](const ShardRun& run, int64_t global, int64_t local, int64_t width) {
          for (int64_t i = 0; i < width; ++i)
            shard.as<float>()[local + i] = number(10 * p + static_cast<size_t>(run.part), global + i, salt);
        });
  };
  if (is_real) {
    for (size_t p = 0; p < specs.size(); ++p) fill(fsdp.shard(static_cast<int>(p)).master, p, 0);
    fsdp.clear_moments();
  }
  std::vector<MuonUpdate::Training> training(specs.size(),
                                             {.weight_decay = 0.1f, .lr_factor = 1, .amax = {}});
  for (int step = 0; step < (is_real ? 3 : 1); ++step) {
    if (is_real) {
      scalars.as<float>()[kLearningRate] = 0.02f;
      scalars.as<float>()[kGradientFactor] = 0.5f;
      for (size_t p = 0; p < specs.size(); ++p) fill(fsdp.shard(static_cast<int>(p)).gradient, p, step + 1);
    }
    ranks.world->stats().reset();
    Arena::Phase phase(arena, "update");
    muon.begin(scalars);
    muon.finish(scalars, training);
  }
  const std::lock_guard lock(*mutex);
  (is_real ? result->counted : result->planned) += ranks.world->stats().sent_bytes();
  if (!is_real) return;
  for (size_t p = 0; p < specs.size(); ++p) {
    if (specs[p].rule != UpdateRule::muon) continue;
    const ParameterShard& s = fsdp.shard(static_cast<int>(p));
    for_each_row(
        specs[p], fsdp.coordinates(), [&](const ShardRun& run, int64_t global, int64_t local, int64_t width) {
          const ParameterPart& part = specs[p].parts[static_cast<size_t>(run.part)];
          for (auto [whole, shard] : {std::pair{&result->weights, &s.master},
                                      std::pair{&result->momenta, &s.moments[Moment::momentum]}}) {
            std::vector<float>& values = (*whole)[part.hf_name];
            values.resize(static_cast<size_t>(part.rows * specs[p].columns), std::nanf(""));
            for (int64_t i = 0; i < width; ++i) {
              float& value = values[static_cast<size_t>(global + i)];
              const float mine = shard->as<float>()[local + i];
              result->differing +=
                  !std::isnan(value) && std::bit_cast<uint32_t>(value) != std::bit_cast<uint32_t>(mine);
              value = mine;
            }
          }
        });
  }
}

Result update_on(const Layout& layout, MuonOptions options) {
  const std::vector<ParameterSpec> specs = two_blocks();
  const int size = layout.replicas * layout.shards * layout.tp;
  const Mesh mesh({.dp_replicate = layout.replicas, .dp_shard = layout.shards, .tp = layout.tp}, size);
  Result result;
  std::mutex mutex;
  run_thread_ranks({.ranks = size}, [&](Communicator& world) {
    RankGroups ranks = groups_over(world, mesh);
    CostRecorder recorder;
    Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0}), cpu = Stream::cpu();
    Arena recording;
    three_steps(meta, recording, ranks, specs, options, 0, &result, &mutex);
    MemoryPlan plan = recording.plan();
    plan.resize_persistent("workspace", recorder.workspace_bytes());
    Arena arena(plan, {DeviceType::cpu, 0});
    three_steps(cpu, arena, ranks, specs, options, recorder.workspace_bytes(), &result, &mutex);
  });
  CHECK(result.differing == 0);
  return result;
}

}  // namespace

TEST_CASE("muon: every matrix has one owner, the largest first and the work even") {
  const std::vector<ParameterSpec> specs = two_blocks();
  const std::vector<MuonBucket> one = muon_buckets(specs, shards(1)), three = muon_buckets(specs, shards(3)),
                                eight = muon_buckets(specs, shards(8)),
                                many = muon_buckets(specs, shards(100));
  CHECK(one.size() == 2);
  CHECK(three.size() == 2);
  REQUIRE(eight.size() == 1);
  CHECK(many == eight);
  std::map<int, int> owned;
  for (const MuonMatrix& m : eight[0]) ++owned[m.owner];
  CHECK(owned.size() == 8);
  CHECK(eight[0][0].owner == 0);  // wq: 32 x 20, before wo of as many FLOPs
  CHECK(eight[0][0].flops() == 3.0 * 32 * 20 * 20 + 20 * 20 * 20);
  std::vector<double> load(3, 0.0);
  for (const MuonBucket& bucket : three) {
    for (const MuonMatrix& m : bucket) load[static_cast<size_t>(m.owner)] += m.flops();
  }
  CHECK(*std::ranges::max_element(load) < 1.5 * *std::ranges::min_element(load));

  std::vector<ParameterSpec> wrong = specs;
  wrong[1].rule = UpdateRule::muon;
  CHECK_THROWS_WITH(
      muon_buckets(wrong, shards(1)),
      "[muon] layers.0.norm is a vector of 20: only matrices can be orthogonalised; leave it to AdamW");
  CHECK(muon_buckets({specs[1]}, shards(4)).empty());
  // A pipeline's stage works on what it holds.
  const std::vector<MuonBucket> second = muon_buckets(specs, {.shard_size = 8, .units = {false, true}});
  REQUIRE(second.size() == 1);
  CHECK(second[0].size() == 4);
  for (const MuonMatrix& m : second[0]) CHECK(specs[static_cast<size_t>(m.parameter)].unit == 1);
}

TEST_CASE("muon: the same gradients give the same bits on every layout, and planned bytes are sent") {
  for (DType precision : {DType::bf16, DType::f32}) {
    INFO(name_of(precision));
    const MuonOptions options{.precision = precision};
    const Result single = update_on({}, options);
    CHECK(single.counted == 0);
    CHECK(single.weights.size() == 8);
    for (const Layout& layout :
         {Layout{.shards = 2}, Layout{.shards = 3}, Layout{.shards = 8}, Layout{.tp = 2}, Layout{.tp = 4},
          Layout{.shards = 2, .tp = 4}, Layout{.shards = 3, .tp = 2}, Layout{.replicas = 2, .shards = 2},
          Layout{.replicas = 2, .shards = 2, .tp = 2}}) {
      INFO(layout.replicas << " x " << layout.shards << " x tp " << layout.tp);
      const Result other = update_on(layout, options);
      CHECK((other.weights == single.weights));
      CHECK((other.momenta == single.momenta));
      CHECK(other.counted == other.planned);
      if (layout.tp * layout.shards > 1) CHECK(other.counted > 0);
    }
  }
}

TEST_CASE("muon: what an owner does not hold travels to it and back, once") {
  // On 4 shards a fused matrix of 64 rows has wq on ranks 0 and 1, wk on 2, wv on 3; each has 5 rows of wo.
  const std::map<int, std::vector<int64_t>> rows_of_part{
      {0, {16, 16, 0, 0}}, {1, {0, 0, 16, 0}}, {2, {0, 0, 0, 16}}};
  int64_t elements = 0;
  for (const MuonBucket& bucket : muon_buckets(two_blocks(), shards(4))) {
    for (const MuonMatrix& m : bucket) {
      const bool is_fused = m.columns == 20;
      const int64_t held = is_fused ? rows_of_part.at(m.part)[static_cast<size_t>(m.owner)] : 5;
      elements += (m.rows - held) * m.columns;
    }
  }
  CHECK(elements > 0);
  CHECK(update_on({.shards = 4}, {}).counted == 2 * elements * 2);
  CHECK(update_on({.shards = 4}, {.precision = DType::f32}).counted == 2 * elements * 4);
  CHECK(update_on({.replicas = 2, .shards = 4}, {}).counted == 2 * 2 * elements * 2);
}

TEST_CASE("muon: what travels does so beside the work on other matrices") {
  const std::vector<ParameterSpec> specs = two_blocks();
  RankGroups ranks(make_dry_run_world(0, 2), make_dry_run_world(0, 2), Mesh({.dp_shard = 2}, 2));
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0});
  Arena recording;
  Result result;
  std::mutex mutex;
  three_steps(meta, recording, ranks, specs, {}, 0, &result, &mutex);
  const RecordedOrder& order = recorder.order();
  std::map<std::string, int> products;  // while it is under way
  for (size_t t = 0; t < order.transfers.size(); ++t) {
    bool is_under_way = false;
    int& count = products[order.transfers[t].calls.at(0).label];
    for (const RecordedEvent& event : order.events) {
      if (event.kind == RecordedEvent::Kind::operation) {
        count += is_under_way && recorder.operations()[static_cast<size_t>(event.index)].op == "matmul";
      } else if (static_cast<size_t>(event.index) == t) {
        is_under_way = event.kind == RecordedEvent::Kind::issue;
      }
    }
  }
  REQUIRE(muon_buckets(specs, shards(2)).size() == 2);
  CHECK(products.at("muon 1 to owners") > 0);
  CHECK(products.at("muon 0 to holders") > 0);
  CHECK(products.at("muon 0 to owners") == 0);  // beside what comes between begin() and finish(): AdamW
}

TEST_CASE("muon: rates of PyTorch's two rules, and FP32 beside BF16") {
  const Result rms = update_on({}, {}), original = update_on({}, {.adjust = MuonOptions::Adjust::original}),
               exact = update_on({}, {.precision = DType::f32});
  // Of what a part of the first parameter was, decay leaves (1 - 0.02 * 0.1)^3; the rest are its updates.
  auto size_of_updates = [&](const Result& r, const std::string& name, size_t part) {
    double sum = 0;
    int64_t i = 0;
    for (float w : r.weights.at(name)) sum += std::pow(w - number(part, i++, 0) * std::pow(0.998, 3), 2);
    return std::sqrt(sum);
  };
  auto ratio = [&](const std::string& name, size_t part) {
    return size_of_updates(rms, name, part) / size_of_updates(original, name, part);
  };
  CHECK(ratio("layers.0.q", 0) == Approx(0.2 * std::sqrt(32.0) / std::sqrt(32.0 / 20)).epsilon(1e-3));
  CHECK(ratio("layers.0.k", 1) == Approx(0.2 * std::sqrt(20.0)).epsilon(1e-3));
  double difference = 0, size = 0;
  for (const auto& [name, values] : exact.weights) {
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - rms.weights.at(name)[i], 2);
      size += std::pow(values[i], 2);
    }
  }
  CHECK(difference > 0);
  CHECK(std::sqrt(difference / size) < 0.02);
}
