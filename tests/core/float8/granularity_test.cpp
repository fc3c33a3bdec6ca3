#include "core/float8/granularity.h"

#include <set>

#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::fp8;

namespace {

constexpr Granularity kAll[] = {Granularity::tensor, Granularity::row, Granularity::block_1x128,
                                Granularity::block_128x128, Granularity::block_1x32};

/// Which elements share a scale, by the traits.
int64_t group_of(Granularity g, int64_t row, int64_t col) {
  const GranularityTraits& t = traits(g);
  const int64_t r = t.block_rows > 0 ? row / t.block_rows : 0,
                c = t.block_columns > 0 ? col / t.block_columns : 0;
  return r * 100000 + c;
}

}  // namespace

TEST_CASE("granularity: blocks of the traits are the elements that share a scale in memory") {
  for (Granularity g : kAll) {
    INFO(name_of(g));
    const Shape matrix{259, 390};
    const int64_t scales = scale_shape(g, matrix.rows(), matrix.cols()).numel();
    std::set<std::pair<int64_t, int64_t>> pairs;
    std::set<int64_t> groups, indices;
    for (int64_t r = 0; r < matrix.rows(); ++r) {
      for (int64_t c = 0; c < matrix.cols(); ++c) {
        const int64_t index = scale_index(g, matrix, r, c);
        REQUIRE((index >= 0 && index < scales));
        groups.insert(group_of(g, r, c)), indices.insert(index), pairs.insert({group_of(g, r, c), index});
      }
    }
    CHECK(pairs.size() == groups.size());
    CHECK(pairs.size() == indices.size());
    CHECK(scale_block(g, matrix.cols()) == (traits(g).block_columns > 0 ? traits(g).block_columns : 390));
  }
}

TEST_CASE("granularity: what the traits promise follows from the blocks") {
  for (Granularity g : kAll) {
    INFO(name_of(g));
    const GranularityTraits& t = traits(g);
    CHECK(t.is_transpose_invariant == (t.block_rows == t.block_columns));
    CHECK(t.is_row_local == (t.block_rows == 1 && !t.is_tiled));
    CHECK((t.amax == AmaxSource::given) == (t.block_rows == 0));
    CHECK(t.needs_column_amax == (t.block_rows == 1 && t.block_columns == 0));
    CHECK((t.row_gather == RowGather::common_scale) == (t.amax == AmaxSource::given));
    if (t.row_gather != RowGather::none) CHECK((t.amax == AmaxSource::given || t.is_row_local));
    CHECK(t.alignment % 16 == 0);
    if (t.is_tiled) CHECK(t.alignment == t.block_columns);
    for (Granularity other : kAll) CHECK(!(t.pairs & bit(other)) == !(traits(other).pairs & bit(g)));
  }
  CHECK(name_of(Granularity::block_1x128) == "1x128");
}
