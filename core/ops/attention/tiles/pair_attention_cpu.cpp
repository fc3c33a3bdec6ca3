#include <utility>

#include "core/cpu/pair_product_kernel.h"
#include "core/ops/attention/score_rows_kernel.h"
#include "core/ops/attention/tiles/pair_kernels.h"

// Ceiling, with AMX. At head dimension 16, where half of the terms of scores are padding, the products of a
// score take 0.3 cycles and their loads and stores as many again; at 64 the products take 0.9. Softmax and
// its gradient take 0.9 at any, by the count of instructions in attention_cpu.cpp.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

/// Keys that rows of a part see: [first, last) by any, in whole steps, [all_from, all_to) by all.
struct PartKeys {
  explicit PartKeys(const ScoreTile& t) {
    // Most parts see all keys of the tile, and nobody asks what a row of theirs sees.
    if (t.rows == kPairPanel && !t.document_start && t.first_query >= t.first_key + t.keys - 1 &&
        t.keys % kStep == 0) {
      first = 0, last = all_to = t.keys;
      return;
    }
    for (int64_t i = 0; i < t.rows; ++i) {
      const Visible v = of[i] = visible_keys(t, i);
      all_from = v.begin > all_from ? v.begin : all_from;
      all_to = v.end < all_to ? v.end : all_to;
      if (v.begin == v.end) continue;
      first = v.first < first ? v.first : first;
      last = v.last > last ? v.last : last;
    }
    first = first < last ? first : last;
  }
  /// True if all of its rows see all keys of a step. Rows that are not there see none.
  bool whole(int64_t key) const { return all_from <= key && key + kStep <= all_to; }

  Visible of[kPairPanel] = {};
  int64_t all_from = 0, all_to = INT64_MAX, first = INT64_MAX, last = 0;
};

/// Lanes of 16 keys that a row sees.
inline UVec seen(const Visible& visible, int64_t key) {
  const IVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const IVec past_begin = lane + static_cast<int32_t>(key - visible.begin),
             before_end = static_cast<int32_t>(visible.end - 1 - key) - lane;
  return ~bits_as<UVec>((past_begin | before_end) >> 31);
}
inline Vec where_seen(UVec mask, Vec v, float other) {
  return bits_as<Vec>(select(mask, bits_as<UVec>(v), bits_as<UVec>(splat(other))));
}

/// c [32, 32] = 32 rows with 32 keys, both packed.
inline void block_scores(const bf16* rows, const bf16* keys, int64_t head_dim, float* c, int64_t c_row) {
  sum_2x2({.a_row = kTerms,
           .a_depth = kPairPanel * kTerms,
           .b_depth = kPairTileElements,
           .b_block = kTile * whole_pair_panels(head_dim),
           .c_row = c_row,
           .k = head_dim},
          rows, keys, c, keys);
}

/// sums [32, D] += p [32, keys] B
inline void add_product(const bf16* p, int64_t p_row, const bf16* b, int64_t keys, int64_t d, float* sums) {
  multiply({.a = p,
            .a_row = p_row,
            .a_depth = kTerms,
            .b = b,
            .b_depth = kTerms * d,
            .b_block = kPairTileElements,
            .b_panel = 2 * kPairTileElements,
            .c = sums,
            .c_row = d,
            .m = kPairPanel,
            .n = d,
            .k = keys,
            .accumulate = true});
}

/// Of two vectors in which groups of kGroup lanes belong to a row each: the larger of the two halves of each
/// group.
template <int kGroup>
inline Vec larger_halves(Vec a, Vec b) {
  constexpr int kHalf = kGroup / 2;
  const auto half = [&]<int kFirst, int... lane>(std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, (lane / kHalf * kGroup + lane % kHalf + kFirst)...);
  };
  const std::make_integer_sequence<int, kLanes> lanes;
  return max(half.template operator()<0>(lanes), half.template operator()<kHalf>(lanes));
}
/// The largest lane of each of 16 vectors.
inline Vec largest_lanes(const Vec* v) {
  Vec two[8], four[4], eight[2];
  for (int i = 0; i < 8; ++i) two[i] = larger_halves<16>(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 4; ++i) four[i] = larger_halves<8>(two[2 * i], two[2 * i + 1]);
  for (int i = 0; i < 2; ++i) eight[i] = larger_halves<4>(four[2 * i], four[2 * i + 1]);
  return larger_halves<2>(eight[0], eight[1]);
}

/// Sums of a part's rows [32, D]: those of the result, or where rows past the part's would be another head's,
/// sums of its own, which are added to the result at the end.
class PartSums {
 public:
  PartSums(float* result, float* own, int64_t rows, int64_t d)
      : result_(result), sums_(rows == kPairPanel ? result : own), elements_(rows * d) {
    if (sums_ == own) __builtin_memset(own, 0, kPairPanel * d * sizeof(float));
  }
  PartSums(const PartSums&) = delete;
  ~PartSums() {
    for (int64_t i = 0; sums_ != result_ && i < elements_; i += kLanes)
      store(result_ + i, load(result_ + i) + load(sums_ + i));
  }
  float* get() const { return sums_; }

 private:
  float *result_, *sums_;
  int64_t elements_;
};

// AMX's unit powers down after some 1500 cycles without work, and waking it takes 900 (measured on Granite
// Rapids): softmax and gradient go by steps that are shorter, with products between
// them.

class PartSoftmax {
 public:
  PartSoftmax(const SoftmaxTile& s, const PairPart& part)
      : s_(s),
        t_(s.tile),
        part_(part),
        keys_(s.tile),
        scores_(reinterpret_cast<float*>(part.memory)),
        own_sums_(scores_ + kPairPanel * t_.stride) {}

  void run() {
    score();
    raise_tops();
    add_values();
  }

 private:
  void score() {
    const int64_t terms = whole_pair_panels(part_.head_dim);
    for (Vec& most : most_) most = splat(-__builtin_inff());
    finish_stores();
    for (int64_t key = keys_.first; key < keys_.last; key += kStep) {
      block_scores(part_.q, part_.k + key * terms, part_.head_dim, scores_of(key), kStep);
      finish_stores();
      keys_.whole(key) ? raise_maxima<true>(key) : raise_maxima<false>(key);
    }
  }

  /// Of all rows with 32 keys, one row after the other.
  float* scores_of(int64_t key) const { return scores_ + key * kPairPanel; }

  template <bool all_seen>
  void raise_maxima(int64_t key) {
    const float* scores = scores_of(key);
    for (int64_t i = 0; i < t_.rows; ++i, scores += kStep) {
      Vec a = load(scores), b = load(scores + kLanes);
      if constexpr (!all_seen) {
        a = where_seen(seen(keys_.of[i], key), a, -__builtin_inff());
        b = where_seen(seen(keys_.of[i], key + kLanes), b, -__builtin_inff());
      }
      most_[i] = max(most_[i], max(a, b));
    }
  }

  void raise_tops() {
    const int64_t d = part_.head_dim;
    for (int64_t i = 0; i < kPairPanel; i += kLanes)
      store(tops_ + i, largest_lanes(most_ + i) * t_.scale_log2);
    for (int64_t i = 0; i < t_.rows; ++i) {
      row_sums_[i] = Vec{};
      const float top = tops_[i], before = s_.row_max[i];
      tops_[i] = top > before ? top : before;
      if (tops_[i] == before) continue;
      const float shrink = exp2(splat(before - tops_[i]))[0];
      s_.row_max[i] = tops_[i];
      s_.row_sum[i] *= shrink;
      float* sums = s_.sums + i * d;
      for (int64_t c = 0; c < d; c += kLanes) store(sums + c, load(sums + c) * shrink);
    }
  }

  void add_values() {
    constexpr int64_t kTogether = 2 * kStep;
    alignas(64) bf16 probabilities[kPairPanel * kTogether];
    __builtin_memset(static_cast<void*>(probabilities), 0, sizeof probabilities);
    const PartSums sums(s_.sums, own_sums_, t_.rows, part_.head_dim);
    for (int64_t first = keys_.first; first < keys_.last; first += kTogether) {
      const int64_t count = least(kTogether, keys_.last - first);
      for (int64_t j = 0; j < count; j += kStep) {
        keys_.whole(first + j) ? exponentials<true>(first + j, probabilities + j, kTogether)
                               : exponentials<false>(first + j, probabilities + j, kTogether);
      }
      add_product(probabilities, kTogether, part_.right + first * part_.head_dim, count, part_.head_dim,
                  sums.get());
    }
    for (int64_t i = 0; i < t_.rows; ++i) s_.row_sum[i] += sum(row_sums_[i]);
  }

  template <bool all_seen>
  void exponentials(int64_t key, bf16* to, int64_t to_row) {
    const float* scores = scores_of(key);
    const float scale_log2 = t_.scale_log2;
    for (int64_t i = 0; i < t_.rows; ++i, scores += kStep, to += to_row) {
      Vec p = exp2_for_bf16(load(scores) * scale_log2 - tops_[i]),
          q = exp2_for_bf16(load(scores + kLanes) * scale_log2 - tops_[i]);
      if constexpr (!all_seen) {
        p = where_seen(seen(keys_.of[i], key), p, 0);
        q = where_seen(seen(keys_.of[i], key + kLanes), q, 0);
      }
      row_sums_[i] += p + q;
      store_tile(to, p, q);
    }
  }

  const SoftmaxTile& s_;
  const ScoreTile t_;
  const PairPart& part_;
  const PartKeys keys_;
  float *scores_, *own_sums_;
  Vec most_[kPairPanel], row_sums_[kPairPanel];
  alignas(64) float tops_[kPairPanel];
};

void attend(const SoftmaxTile& s, const PairPart& part) { PartSoftmax(s, part).run(); }

/// Two rows by turns, of which the upper halves are bf16.
inline UVec by_turns(UVec even, UVec odd) { return (even >> 16) | (odd & 0xffff0000u); }

class PartGradient {
 public:
  PartGradient(const GradientTile& g, const PairPart& part)
      : g_(g),
        t_(g.tile),
        part_(part),
        keys_(g.tile),
        dscore_rows_(reinterpret_cast<bf16*>(part.memory)),
        own_sums_(reinterpret_cast<float*>(part.memory) + kPairPanel * t_.stride) {
    for (int64_t i = 0; i < t_.rows; ++i) {
      lse_log2_[i] = g.lse[i] * kLog2e;
      delta_[i] = g.delta[i];
    }
  }

  void run(float* dq) {
    const int64_t d = part_.head_dim, terms = whole_pair_panels(d);
    finish_stores();
    for (int64_t key = 0; key < t_.stride; key += kStep) {
      bf16* p = static_cast<bf16*>(g_.probabilities) + key * kTerms;
      bf16* dscores = static_cast<bf16*>(g_.dscores) + key * kTerms;
      if (key < keys_.first || key >= keys_.last) {
        for (bf16* to : {p, dscores})
          __builtin_memset(static_cast<void*>(to), 0, 2 * kPairTileElements * sizeof(bf16));
        continue;
      }
      block_scores(part_.q, part_.k + key * terms, d, scores_, kStep);
      block_scores(part_.dout, part_.v + key * terms, d, dprobabilities_, kStep);
      finish_stores();
      t_.rows == kPairPanel&& keys_.whole(key) ? block<true>(key, p, dscores) : block<false>(key, p, dscores);
    }
    if (keys_.first == keys_.last) return;
    const PartSums sums(dq, own_sums_, t_.rows, d);
    add_product(dscore_rows_ + keys_.first, t_.stride, part_.right + keys_.first * d,
                keys_.last - keys_.first, d, sums.get());
  }

 private:
  /// 16 keys of two rows, rounded as store_tile() does, in their upper halves.
  struct Vectors {
    UVec p[2], dscores[2];
  };

  template <bool all_seen>
  Vectors vectors(int64_t row, int64_t key, int64_t at) const {
    Vectors result;
    for (int r = 0; r < 2; ++r) {
      const float* scores = scores_ + (row + r) * kStep + at;
      const float* dprobabilities = dprobabilities_ + (row + r) * kStep + at;
      Vec p = exp2_for_bf16(load(scores) * t_.scale_log2 - lse_log2_[row + r]);
      Vec dscores = p * (load(dprobabilities) - delta_[row + r]);
      if constexpr (!all_seen) {
        const UVec mask = seen(keys_.of[row + r], key + at);
        p = where_seen(mask, p, 0);
        dscores = where_seen(mask, dscores, 0);
      }
      result.p[r] = bits_as<UVec>(p) + 0x8000u;
      result.dscores[r] = bits_as<UVec>(dscores) + 0x8000u;
    }
    return result;
  }

  /// 32 keys of all rows.
  template <bool all_seen>
  void block(int64_t key, bf16* p, bf16* dscores) {
    for (int64_t i = 0; i < kPairPanel; i += 2, p += kTerms, dscores += kTerms) {
      const Vectors a = vectors<all_seen>(i, key, 0), b = vectors<all_seen>(i, key, kLanes);
      store_words(p, by_turns(a.p[0], a.p[1]));
      store_words(p + kPairTileElements, by_turns(b.p[0], b.p[1]));
      store_words(dscores, by_turns(a.dscores[0], a.dscores[1]));
      store_words(dscores + kPairTileElements, by_turns(b.dscores[0], b.dscores[1]));
      for (int r = 0; r < 2; ++r)
        store_upper_halves(dscore_rows_ + (i + r) * t_.stride + key, a.dscores[r], b.dscores[r]);
    }
  }

  const GradientTile& g_;
  const ScoreTile t_;
  const PairPart& part_;
  const PartKeys keys_;
  bf16* dscore_rows_;
  float* own_sums_;
  float lse_log2_[kPairPanel] = {}, delta_[kPairPanel] = {};
  alignas(64) float scores_[kPairPanel * kStep], dprobabilities_[kPairPanel * kStep];
};

void differentiate(const GradientTile& g, const PairPart& part, float* dq) { PartGradient(g, part).run(dq); }

}  // namespace

PairAttentionKernels pair_attention_kernels() { return {attend, differentiate}; }

}  // namespace ottava::cpu::OTTAVA_ISA
