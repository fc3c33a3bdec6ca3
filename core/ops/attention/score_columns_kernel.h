#pragma once

// The online softmax of a tile that lies transposed, sixteen queries at a time. For kernel files only.

#include "core/cpu/exponentials.h"
#include "core/cpu/panel_product.h"
#include "core/cpu/vec.h"
#include "core/ops/attention/attention_kernels.h"

namespace ottava::cpu::OTTAVA_ISA {

/// 2^y for probabilities of bf16 tensors, or of f32 ones.
template <bool bf16_tensors>
inline Vec power_of_two(Vec y) {
  return bf16_tensors ? exp2_for_bf16(y) : exp2(y);
}

/// Sixteen columns of a tile that lies transposed.
class Columns {
 public:
  Columns(const SoftmaxTile& s, int64_t first) : s_(s), first_(first) {
    const ScoreTile& t = s.tile;
    int32_t start[kLanes];
    int64_t latest = 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t query = first + i < t.rows ? first + i : t.rows - 1;
      const int64_t at = t.document_start ? t.document_start[query] - t.first_key : 0;
      start[i] = static_cast<int32_t>(at);
      latest = at > latest ? at : latest;
    }
    const int64_t diagonal = t.first_query + first - t.first_key;
    start_ = read_lanes<IVec>(start);
    last_ = lane_numbers() + static_cast<int32_t>(diagonal);
    begin_ = latest < t.keys ? latest : t.keys;
    end_ = diagonal + 1 < t.keys ? diagonal + 1 : t.keys;
    end_ = end_ > begin_ ? end_ : begin_;
  }

  template <bool bf16_tensors>
  void softmax() const {
    const float scale = s_.tile.scale_log2;
    hide();
    const Vec before = load(s_.row_max + first_), seen = max(maximum() * scale, before);
    // A query that has seen no key yet: its scores are minus infinity, from which nothing may be subtracted.
    const Vec top = max(seen, splat(-3e38f));
    Vec total{};
    for (int64_t j = 0; j < s_.tile.keys; ++j) {
      const Vec p = power_of_two<bf16_tensors>(load(score(j)) * scale - top);
      total += p;
      store(score(j), p);
    }
    clear();
    const Vec shrink = exp2(before - top);
    store(s_.row_max + first_, top);
    store(s_.row_sum + first_, load(s_.row_sum + first_) * shrink + total);
    const UVec rose = bits_as<UVec>(top > before);
    if (max_lane(select(rose, splat(1.0f), Vec{})) == 0) return;
    float* sums = s_.sums + first_;
    for (int64_t c = 0; c < s_.head_dim; ++c, sums += kPanelColumns) store(sums, load(sums) * shrink);
  }

 private:
  float* score(int64_t key) const { return s_.tile.scores + key * kPanelColumns + first_; }
  /// visit(key, which columns see it) for the keys that not all see.
  template <class Visit>
  void for_each_hidden(Visit&& visit) const {
    const auto range = [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const int32_t key = static_cast<int32_t>(j);
        visit(score(j), bits_as<UVec>(last_ > key - 1) & bits_as<UVec>(start_ < key + 1));
      }
    };
    range(0, begin_);
    range(end_, s_.tile.keys);
  }
  void hide() const {
    for_each_hidden([](float* p, UVec seen) { store(p, select(seen, load(p), splat(-__builtin_inff()))); });
  }
  void clear() const {
    for_each_hidden([](float* p, UVec seen) { store(p, select(seen, load(p), Vec{})); });
  }
  Vec maximum() const {
    constexpr int kChains = 4;
    Vec most[kChains];
    for (int i = 0; i < kChains; ++i) most[i] = splat(-__builtin_inff());
    int64_t j = 0;
    for (; j + kChains <= s_.tile.keys; j += kChains) {
#pragma GCC unroll 4
      for (int i = 0; i < kChains; ++i) most[i] = max(most[i], load(score(j + i)));
    }
    for (; j < s_.tile.keys; ++j) most[0] = max(most[0], load(score(j)));
    return max(max(most[0], most[1]), max(most[2], most[3]));
  }

  const SoftmaxTile& s_;
  int64_t first_;
  IVec start_, last_;    ///< the first and last key that each column sees
  int64_t begin_, end_;  ///< keys that all see
};

}  // namespace ottava::cpu::OTTAVA_ISA
