#include "parallel/sharding/parameter_spec.h"

#include <algorithm>

#include "tests/support/catch.h"

namespace ottava {
namespace {

ParameterSpec wqkv(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t columns) {
  ParameterSpec spec;
  spec.name = "layers.0.attention.wqkv";
  spec.parts = {{"wq", "q_proj.weight", heads * head_dim, heads, {}},
                {"wk", "k_proj.weight", kv_heads * head_dim, kv_heads, {}},
                {"wv", "v_proj.weight", kv_heads * head_dim, kv_heads, {}}};
  spec.columns = columns;
  spec.tensor_parallel = TensorParallel::rows;
  return spec;
}

ParameterSpec matrix(int64_t rows, int64_t columns, TensorParallel placement) {
  ParameterSpec spec;
  spec.name = "layers.0.wo";
  spec.parts = {{"wo", "o_proj.weight", rows, rows, {}}};
  spec.columns = columns;
  spec.tensor_parallel = placement;
  return spec;
}

ParameterSpec norm(int64_t rows) {
  ParameterSpec spec = matrix(rows, 1, TensorParallel::replicate);
  spec.is_vector = true;
  return spec;
}

// Every element of every part has exactly one owner; what a rank holds fills its local shard row by row.
void check_cover(const ParameterSpec& spec, int tp_size, int shard_size) {
  INFO(spec.name << " tp " << tp_size << " shards " << shard_size);
  std::vector<std::vector<int>> owners, holders;
  for (const ParameterPart& part : spec.parts) {
    owners.emplace_back(static_cast<size_t>(part.rows * spec.columns), 0);
    holders.emplace_back(static_cast<size_t>(part.rows * spec.columns), 0);
  }
  Shape slice = tensor_parallel_shape(spec, tp_size);
  int64_t local_columns = spec.is_vector ? 1 : slice[1];
  for (int tp = 0; tp < tp_size; ++tp) {
    int64_t held = 0;
    for (int shard = 0; shard < shard_size; ++shard) {
      RowRange rows = shard_rows(slice[0], shard, shard_size);
      int64_t next = 0;
      for (const ShardRun& run : shard_runs(spec, {tp, tp_size, shard, shard_size, 0})) {
        CHECK(run.local_row == next);
        CHECK(run.column_end - run.column_begin == local_columns);
        next += run.row_end - run.row_begin;
        for (int64_t r = run.row_begin; r < run.row_end; ++r) {
          for (int64_t c = run.column_begin; c < run.column_end; ++c) {
            size_t i = static_cast<size_t>(r * spec.columns + c), p = static_cast<size_t>(run.part);
            owners[p].at(i) += run.is_owner;
            holders[p].at(i) += 1;
          }
        }
      }
      CHECK(next == rows.size());
      held += next;
    }
    CHECK(held == slice[0]);
  }
  for (size_t p = 0; p < owners.size(); ++p) {
    CHECK(std::all_of(owners[p].begin(), owners[p].end(), [](int n) { return n == 1; }));
    CHECK(std::all_of(holders[p].begin(), holders[p].end(), [&](int n) { return n == holders[p][0]; }));
  }
}

TEST_CASE("owned runs of all ranks cover every element once") {
  for (int shards : {1, 2, 3, 4, 7, 8}) {
    for (int tp : {1, 2, 4, 8}) {
      check_cover(wqkv(8, 2, 4, 12), tp, shards);
      check_cover(wqkv(8, 8, 4, 12), tp, shards);
      check_cover(matrix(5, 24, TensorParallel::columns), tp, shards);
      check_cover(matrix(16, 6, TensorParallel::rows), tp, shards);
      check_cover(norm(13), tp, shards);
    }
    check_cover(wqkv(6, 3, 2, 5), 3, shards);
    check_cover(wqkv(6, 3, 2, 5), 6, shards);
  }
}

TEST_CASE("shards are pieces of ceil(rows / size), the last ones shorter or empty") {
  CHECK(shard_rows(10, 0, 4).begin == 0);
  CHECK(shard_rows(10, 2, 4).end == 9);
  CHECK(shard_rows(10, 3, 4).size() == 1);
  CHECK(shard_rows(5, 3, 4).size() == 0);
  CHECK(shard_rows(5, 3, 4).begin == 5);
  CHECK(shard_rows(0, 1, 4).size() == 0);
}

TEST_CASE("more ranks than KV heads: neighbours hold the same head, the lowest owns it") {
  ParameterSpec spec = wqkv(8, 2, 4, 12);
  CHECK(tensor_parallel_shape(spec, 4) == Shape{8 + 4 + 4, 12});
  CHECK(tensor_parallel_shape(spec, 8) == Shape{4 + 4 + 4, 12});
  auto k_of = [&](int tp) { return shard_runs(spec, {tp, 4, 0, 1, 0}).at(1); };
  CHECK(k_of(0).row_begin == 0);
  CHECK(k_of(1).row_begin == 0);
  CHECK(k_of(2).row_begin == 4);
  CHECK(k_of(3).row_begin == 4);
  CHECK(k_of(0).is_owner);
  CHECK_FALSE(k_of(1).is_owner);
  CHECK(k_of(2).is_owner);
  CHECK_FALSE(k_of(3).is_owner);
}

TEST_CASE("vectors keep rank one; replicated parameters belong to tensor-parallel rank 0") {
  CHECK(tensor_parallel_shape(norm(13), 4) == Shape{13});
  CHECK(shard_runs(norm(13), {0, 2, 1, 4, 0}).at(0).is_owner);
  CHECK_FALSE(shard_runs(norm(13), {1, 2, 1, 4, 0}).at(0).is_owner);
  ParameterSpec bias = wqkv(8, 2, 4, 1);
  bias.is_vector = true;
  CHECK(tensor_parallel_shape(bias, 2) == Shape{24});
  check_cover(bias, 4, 3);
}

TEST_CASE("impossible degrees and coordinates are refused") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(tensor_parallel_shape(wqkv(8, 2, 4, 12), 3),
                    Contains("degree 3 neither divides its 8 groups"));
  CHECK_THROWS_AS(tensor_parallel_shape(wqkv(6, 3, 4, 12), 4), ConfigError);
  CHECK_THROWS_WITH(tensor_parallel_shape(matrix(4, 6, TensorParallel::columns), 4),
                    Contains("does not divide its 6"));
  CHECK_THROWS_WITH(tensor_parallel_shape(norm(4), 0), Contains("does not exist"));
  CHECK_THROWS_WITH(shard_rows(4, 4, 4), Contains("shard rank 4 of 4"));
  CHECK_THROWS_WITH(shard_runs(norm(4), {-1, 2, 0, 1, 0}), Contains("tensor parallel rank -1 of 2"));
  ParameterSpec uneven = wqkv(8, 2, 4, 12);
  uneven.parts[0].groups = 5;
  CHECK_THROWS_WITH(tensor_parallel_shape(uneven, 1), Contains("32 rows do not form 5 equal groups"));
}

}  // namespace
}  // namespace ottava
