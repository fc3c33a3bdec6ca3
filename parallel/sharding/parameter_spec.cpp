#include "parallel/sharding/parameter_spec.h"

#include "core/round_up.h"

#include <algorithm>

namespace ottava {
namespace {

constexpr std::string_view kWhere = "parameter";

// The rows [begin, end) of a part's matrix that a tensor-parallel rank holds, and whether it is the one that
// owns them.
struct PartSlice {
  int64_t begin = 0, end = 0;
  bool is_owner = true;
};

void check_size(std::string_view what, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    fail<ConfigError>(kWhere, "{} rank {} of {} does not exist", what, rank, size);
}

PartSlice slice_rows(const ParameterSpec& spec, const ParameterPart& part, int tp_rank, int tp_size) {
  if (spec.tensor_parallel != TensorParallel::rows) return {0, part.rows, tp_rank == 0};
  int64_t groups = part.groups;
  if (groups < 1 || part.rows % groups != 0) {
    fail<ConfigError>(kWhere, "{}: {} rows do not form {} equal groups", part.hf_name, part.rows, groups);
  }
  int64_t group_rows = part.rows / groups;
  if (groups % tp_size == 0) {
    int64_t rows = groups / tp_size * group_rows;
    return {tp_rank * rows, (tp_rank + 1) * rows, true};
  }
  if (tp_size % groups == 0) {
    int64_t holders = tp_size / groups, group = tp_rank / holders;
    return {group * group_rows, (group + 1) * group_rows, tp_rank % holders == 0};
  }
  fail<ConfigError>(
      kWhere,
      "{}: tensor parallel degree {} neither divides its {} groups of {} rows nor is a multiple of them",
      part.hf_name, tp_size, groups, group_rows);
}

RowRange slice_columns(const ParameterSpec& spec, int tp_rank, int tp_size) {
  if (spec.tensor_parallel != TensorParallel::columns) return {0, spec.columns};
  if (spec.columns % tp_size != 0) {
    fail<ConfigError>(kWhere, "{}: tensor parallel degree {} does not divide its {} columns", spec.name,
                      tp_size, spec.columns);
  }
  int64_t columns = spec.columns / tp_size;
  return {tp_rank * columns, (tp_rank + 1) * columns};
}

}  // namespace

std::map<UpdateRule, int64_t> elements_by_rule(const std::vector<ParameterSpec>& specs) {
  std::map<UpdateRule, int64_t> out;
  for (const ParameterSpec& spec : specs) out[spec.rule] += spec.numel();
  return out;
}

Shape tensor_parallel_shape(const ParameterSpec& spec, int tp_size) {
  check_size("tensor parallel", 0, tp_size);
  int64_t rows = 0;
  for (const ParameterPart& part : spec.parts) {
    PartSlice slice = slice_rows(spec, part, 0, tp_size);
    rows += slice.end - slice.begin;
  }
  int64_t columns = slice_columns(spec, 0, tp_size).size();
  return spec.is_vector ? Shape{rows} : Shape{rows, columns};
}

int ranks_that_share(const ParameterSpec& spec, const ParameterPart& part, int tp_size) {
  const bool is_shared = spec.tensor_parallel == TensorParallel::rows && part.groups < tp_size;
  return is_shared ? tp_size / static_cast<int>(part.groups) : 1;
}

int64_t largest_shard_rows(int64_t slice_rows, int shard_size, int64_t alignment) {
  const int64_t pieces = alignment * shard_size;
  return pieces_of(slice_rows, pieces) * alignment;
}

RowRange shard_rows(int64_t slice_rows, int shard_rank, int shard_size, int64_t alignment) {
  check_size("shard", shard_rank, shard_size);
  int64_t piece = largest_shard_rows(slice_rows, shard_size, alignment);
  int64_t begin = std::min(piece * shard_rank, slice_rows);
  return {begin, std::min(begin + piece, slice_rows)};
}

std::vector<ShardRun> shard_runs(const ParameterSpec& spec, const ShardCoordinates& at) {
  check_size("tensor parallel", at.tp_rank, at.tp_size);
  if (!at.holds(spec.unit)) return {};
  RowRange columns = slice_columns(spec, at.tp_rank, at.tp_size);
  RowRange shard = shard_rows(tensor_parallel_shape(spec, at.tp_size)[0], at.shard_rank, at.shard_size,
                              spec.shard_alignment);
  // A column slice is owned by its only holder. Whatever several tensor-parallel ranks hold is owned by the
  // lowest of them.
  bool sliced_by_columns = spec.tensor_parallel == TensorParallel::columns;
  std::vector<ShardRun> runs;
  int64_t part_begin = 0;  // first row of the part within the slice
  for (size_t p = 0; p < spec.parts.size(); ++p) {
    PartSlice slice = slice_rows(spec, spec.parts[p], at.tp_rank, at.tp_size);
    int64_t part_end = part_begin + slice.end - slice.begin;
    int64_t begin = std::max(shard.begin, part_begin), end = std::min(shard.end, part_end);
    if (begin < end) {
      runs.push_back({.part = static_cast<int>(p),
                      .row_begin = slice.begin + begin - part_begin,
                      .row_end = slice.begin + end - part_begin,
                      .column_begin = columns.begin,
                      .column_end = columns.end,
                      .local_row = begin - shard.begin,
                      .is_owner = slice.is_owner || sliced_by_columns});
    }
    part_begin = part_end;
  }
  return runs;
}

}  // namespace ottava
