#include "tests/parallel/checkpoint/tiny_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/io/float_cast.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/layout.h"
#include "tests/support/thread_ranks.h"

namespace ottava::checkpoint {
namespace {

ParameterSpec make(std::string name, std::vector<ParameterPart> parts, int64_t columns,
                   TensorParallel placement) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.parts = std::move(parts);
  spec.columns = columns;
  spec.is_vector = columns == 1;
  spec.tensor_parallel = placement;
  return spec;
}

}  // namespace

std::vector<ParameterSpec> tiny_model(bool tied) {
  using enum TensorParallel;
  std::string layer = "model.layers.0.";
  std::vector<ParameterSpec> specs;
  specs.push_back(
      make("tok_embeddings", {{"tok_embeddings", "model.embed_tokens.weight", 56, 56, {}}}, 20, rows));
  specs.push_back(make("norm1", {{"norm1", layer + "input_layernorm.weight", 20, 20, {}}}, 1, replicate));
  specs.push_back(make("wqkv",
                       {{"wq", layer + "self_attn.q_proj.weight", 24, 8, {}},
                        {"wk", layer + "self_attn.k_proj.weight", 6, 2, {}},
                        {"wv", layer + "self_attn.v_proj.weight", 6, 2, {}}},
                       20, rows));
  specs.push_back(make("wqkv_bias",
                       {{"bq", layer + "self_attn.q_proj.bias", 24, 8, {}},
                        {"bk", layer + "self_attn.k_proj.bias", 6, 2, {}},
                        {"bv", layer + "self_attn.v_proj.bias", 6, 2, {}}},
                       1, rows));
  specs.push_back(make("wo", {{"wo", layer + "self_attn.o_proj.weight", 20, 20, {}}}, 24, columns));
  specs.push_back(make(
      "w13",
      {{"w1", layer + "mlp.gate_proj.weight", 40, 40, {}}, {"w3", layer + "mlp.up_proj.weight", 40, 40, {}}},
      20, rows));
  specs.push_back(make("w2", {{"w2", layer + "mlp.down_proj.weight", 20, 20, {}}}, 40, columns));
  specs.push_back(make("norm", {{"norm", "model.norm.weight", 20, 20, {}}}, 1, replicate));
  if (!tied) specs.push_back(make("output", {{"output", "lm_head.weight", 56, 56, {}}}, 20, rows));
  return specs;
}

float value_of(const std::string& name, int64_t index, int64_t version) {
  uint64_t hash = (text_checksum(name) + static_cast<uint64_t>(index + 1) * 0x9e3779b97f4a7c15u +
                   static_cast<uint64_t>(version) * 0xd1342543de82ef95u);
  hash ^= hash >> 29;
  return static_cast<float>(hash * 0xbf58476d1ce4e5b9u >> 44) / 1048576.0f - 0.5f;
}

TinyRank::TinyRank(std::vector<ParameterSpec> specs, ShardCoordinates at, DType moments)
    : specs_(std::move(specs)) {
  parameters.specs = specs_;
  parameters.at = at;
  for (const ParameterSpec& spec : specs_) {
    Shape slice = tensor_parallel_shape(spec, at.tp_size);
    int64_t rows = shard_rows(slice[0], at.shard_rank, at.shard_size).size();
    auto count = static_cast<size_t>(rows * (spec.is_vector ? 1 : slice[1]));
    auto allocate = [&](DType dtype) {
      memory_.emplace_back(count * size_of(dtype));
      return ShardMemory{dtype, count == 0 ? nullptr : memory_.back().data()};
    };
    HeldShard shard;
    shard.weight = allocate(DType::f32);
    for (const MomentTraits& m : moments_of(spec.rule)) shard.moments[m.moment] = allocate(m.dtype(moments));
    parameters.shards.push_back(shard);
  }
}

void TinyRank::for_each(const std::function<void(const std::string&, int64_t, const ShardMemory&)>& f) const {
  for (size_t s = 0; s < parameters.specs.size(); ++s) {
    const ParameterSpec& spec = parameters.specs[s];
    for (const ShardRun& run : shard_runs(spec, parameters.at)) {
      const std::string& name = spec.parts[static_cast<size_t>(run.part)].hf_name;
      int64_t columns = run.column_end - run.column_begin;
      for (int64_t r = run.row_begin; r < run.row_end; ++r) {
        for (int64_t c = run.column_begin; c < run.column_end; ++c) {
          int64_t local = (run.local_row + r - run.row_begin) * columns + c - run.column_begin;
          auto visit = [&](const std::string& stored, const ShardMemory& memory) {
            f(stored, r * spec.columns + c,
              {memory.dtype,
               static_cast<char*>(memory.data) + local * static_cast<int64_t>(size_of(memory.dtype))});
          };
          visit(name, parameters.shards[s].weight);
          for (const MomentTraits& m : moments_of(spec.rule))
            visit(stored_name(name, m), parameters.shards[s].moments[m.moment]);
        }
      }
    }
  }
}

void TinyRank::fill(int64_t version) {
  for_each([&](const std::string& name, int64_t index, const ShardMemory& at) {
    float value = value_of(name, index, version);
    cast_floats({DType::f32, &value}, {at.dtype, at.data}, 1);
  });
}

void TinyRank::clear() {
  for (std::vector<char>& memory : memory_) std::fill(memory.begin(), memory.end(), char{0x7f});
}

int64_t TinyRank::wrong(int64_t version, const std::set<std::string>& of_others, int64_t others) const {
  int64_t count = 0;
  std::set<std::string> weights;
  for (const ParameterSpec& spec : specs_)
    for (const ParameterPart& part : spec.parts) weights.insert(part.hf_name);
  for_each([&](const std::string& name, int64_t index, const ShardMemory& at) {
    if (!parameters.with_optimizer && !weights.contains(name)) return;
    float value = value_of(name, index, of_others.contains(name) ? others : version);
    char expected[4];
    cast_floats({DType::f32, &value}, {at.dtype, expected}, 1);
    count += std::memcmp(expected, at.data, size_of(at.dtype)) != 0;
  });
  return count;
}

void run_ranks(const TinyLayout& layout, const std::function<void(PatientRanks&, ShardCoordinates)>& body) {
  if (layout.world() == 1) {
    PatientRanks group;
    return body(group, layout.at(0));
  }
  test::run_thread_ranks({.ranks = layout.world(), .timeout_seconds = 60}, [&](Communicator& world) {
    PatientRanks group(world);
    body(group, layout.at(world.rank()));
  });
}

}  // namespace ottava::checkpoint
