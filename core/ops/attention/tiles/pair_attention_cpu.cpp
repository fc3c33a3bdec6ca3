#include <utility>

#include "core/cpu/pair_product_kernel.h"
#include "core/cpu/rounded_terms.h"
#include "core/ops/attention/score_rows_kernel.h"
#include "core/ops/attention/tiles/pair_kernels.h"

// Ceiling, with AMX. At head dimension 16, where half of the terms of scores are padding, the products of a
// score take 0.3 cycles and their loads and stores as many again; at 64 the products take 0.9. Of softmax, 16
// scores take 10 instructions (scale, exponential 6, sum, rounding, half of a pair), of its gradient 14, two
// in a cycle: 0.75 cycles for a score in both. With AVX512-BF16, which rounds two vectors at once, they are
// 8.5 and 11. Zen 4 needs 5.7 cycles for those of softmax: vreduceps and vscalefps keep half of its units
// busy for two cycles each, vcvtne2ps2bf16 takes 4/3.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

/// Keys that rows of a part see: [first, last) by any, in whole steps, [all_from, all_to) by all.
struct PartKeys {
  explicit PartKeys(const ScoreTile& t) {
    // Most parts see all keys of the tile, and what a row of theirs sees is not looked up.
    if (t.rows == kPairPanel && !t.document_start && t.first_query >= t.first_key + t.keys - 1 &&
        t.keys % kStep == 0) {
      first = 0, last = all_to = t.keys;
      return;
    }
    for (int64_t i = t.rows; i < kPairPanel; ++i) of[i] = {};
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

  Visible of[kPairPanel];  ///< unless all rows see all keys
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

/// Of two vectors in which groups of kGroup lanes belong to a row each: the two halves of each group,
/// combined.
template <int kGroup, class Combine>
inline Vec combined_halves(Vec a, Vec b, Combine combine) {
  constexpr int kHalf = kGroup / 2;
  const auto half = [&]<int kFirst, int... lane>(std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, (lane / kHalf * kGroup + lane % kHalf + kFirst)...);
  };
  const std::make_integer_sequence<int, kLanes> lanes;
  return combine(half.template operator()<0>(lanes), half.template operator()<kHalf>(lanes));
}
/// All lanes of each of 16 vectors, combined.
template <class Combine>
inline Vec combined_lanes(const Vec* v, Combine combine) {
  Vec two[8], four[4], eight[2];
  for (int i = 0; i < 8; ++i) two[i] = combined_halves<16>(v[2 * i], v[2 * i + 1], combine);
  for (int i = 0; i < 4; ++i) four[i] = combined_halves<8>(two[2 * i], two[2 * i + 1], combine);
  for (int i = 0; i < 2; ++i) eight[i] = combined_halves<4>(four[2 * i], four[2 * i + 1], combine);
  return combined_halves<2>(eight[0], eight[1], combine);
}

/// Sums of a part's rows [32, D]: those of the result, or where rows past the part's would be another head's,
/// sums of its own, which are added to the result at the end.
class PartSums {
 public:
  PartSums(float* result, float* own, int64_t rows, int64_t d)
      : result_(result), sums_(rows == kPairPanel ? result : own), elements_(rows * d), d_(d) {
    if (sums_ == own) __builtin_memset(own, 0, kPairPanel * d * sizeof(float));
  }
  PartSums(const PartSums&) = delete;
  ~PartSums() {
    for (int64_t i = 0; sums_ != result_ && i < elements_; i += kLanes)
      store(result_ + i, load(result_ + i) + load(sums_ + i));
  }
  float* get() const { return sums_; }
  void scale(int64_t row, float factor) const {
    for (int64_t i = row * d_; i < (row + 1) * d_; i += kLanes) {
      store(result_ + i, load(result_ + i) * factor);
      if (sums_ != result_) store(sums_ + i, load(sums_ + i) * factor);
    }
  }

 private:
  float *result_, *sums_;
  int64_t elements_, d_;
};

// AMX's unit powers down after some 1500 cycles without work, and waking it takes 900 (measured on Granite
// Rapids): softmax and gradient go by groups of keys that take less, with products between them. Groups of
// 128 keys take forward 8% longer than those of 64, groups of 64 backward 3% longer than those of 32.
// AVX512-BF16 reads and writes the result's sums once for each group: with those of 64 keys forward takes 2
// to 3% longer than with a tile's 256.
#if defined(__AVX512BF16__)
constexpr int64_t kForwardGroup = 256;
#else
constexpr int64_t kForwardGroup = 64;
#endif

/// Softmax without the maximum of what is to come: 2^(x - m) is as exact for any m, as long as it does not
/// overflow. m is a row's maximum in the first keys that it sees, and rises where later exponentials are very
/// large. What a row's m becomes depends on nothing but its own scores, in groups of keys that begin at
/// multiples of kGroup.
class PartSoftmax {
 public:
  PartSoftmax(const SoftmaxTile& s, const PairPart& part)
      : s_(s),
        t_(s.tile),
        part_(part),
        keys_(s.tile),
        sums_(s.sums, reinterpret_cast<float*>(part.memory), t_.rows, part.head_dim) {
    for (int64_t i = 0; i < kPairPanel; ++i) {
      tops_[i] = i < t_.rows ? s.row_max[i] : 0;
      nothing_seen_ &= i >= t_.rows || tops_[i] == -__builtin_inff();
      totals_[i] = Vec{};
    }
  }

  void run() {
    const int64_t d = part_.head_dim, terms = whole_pair_panels(d);
    for (int64_t first = keys_.first, end = 0; first < keys_.last; first = end) {
      end = least(first / kGroup * kGroup + kGroup, keys_.last);
      finish_stores();
      sum_steps(part_.q, part_.k + first * terms, d, (end - first) / kStep, scores_);
      finish_stores();
      if (nothing_seen_ || !exponentials(first, end)) {
        raise_tops(first, end);
        exponentials(first, end);
      }
      for (int64_t i = 0; i < kPairPanel; ++i) totals_[i] += group_[i];
      add_product(probabilities_, kGroup, part_.right + first * d, end - first, d, sums_.get());
    }
    alignas(64) float totals[kPairPanel];
    for (int64_t i = 0; i < kPairPanel; i += kLanes)
      store(totals + i, combined_lanes(totals_ + i, [](Vec a, Vec b) { return a + b; }));
    for (int64_t i = 0; i < t_.rows; ++i) {
      s_.row_sum[i] += totals[i];
      s_.row_max[i] = tops_[i];
    }
  }

 private:
  static constexpr int64_t kGroup = kForwardGroup;
  static constexpr float kLargest = 0x1p24f;  ///< sum of a lane

  /// Of a group's keys, whose sums go to group_. False if some are too large.
  bool exponentials(int64_t first, int64_t end) {
    for (Vec& sum : group_) sum = Vec{};
    for (int64_t key = first; key < end; key += kStep)
      keys_.whole(key) ? exponentials_of<true>(first, key) : exponentials_of<false>(first, key);
    UVec most{};
    for (const Vec& sum : group_) most = max_bits(most, bits_as<UVec>(sum));
    return !too_large(most);
  }

  /// Also true for NaN. Of what is at least zero, numbers and bits have the same order.
  static bool too_large(UVec sums) { return max_lane(sums) > __builtin_bit_cast(uint32_t, kLargest); }

  template <bool all_seen>
  void exponentials_of(int64_t first, int64_t key) {
    const float* from = scores_ + (key - first) * kPairPanel;
    bf16* to = probabilities_ + key - first;
    const float scale_log2 = t_.scale_log2;
    for (int64_t i = 0; i < kPairPanel; ++i, from += kStep, to += kGroup) {
      Vec p = exp2_for_bf16(load(from) * scale_log2 - tops_[i]),
          q = exp2_for_bf16(load(from + kLanes) * scale_log2 - tops_[i]);
      if constexpr (!all_seen) {
        p = where_seen(seen(keys_.of[i], key), p, 0);
        q = where_seen(seen(keys_.of[i], key + kLanes), q, 0);
      }
      group_[i] += p + q;
      store_words(to, RoundedTerms(p, q).words());
    }
  }

  template <bool all_seen>
  void raise_maxima(int64_t first, int64_t key, Vec* most) const {
    const float* from = scores_ + (key - first) * kPairPanel;
    for (int64_t i = 0; i < kPairPanel; ++i, from += kStep) {
      Vec a = load(from), b = load(from + kLanes);
      if constexpr (!all_seen) {
        a = where_seen(seen(keys_.of[i], key), a, -__builtin_inff());
        b = where_seen(seen(keys_.of[i], key + kLanes), b, -__builtin_inff());
      }
      most[i] = max(most[i], max(a, b));
    }
  }

  /// Where rows see their first keys, or such as have a much larger score than those before.
  void raise_tops(int64_t first, int64_t end) {
    Vec most[kPairPanel];
    for (Vec& m : most) m = splat(-__builtin_inff());
    for (int64_t key = first; key < end; key += kStep)
      keys_.whole(key) ? raise_maxima<true>(first, key, most) : raise_maxima<false>(first, key, most);
    alignas(64) float tops[kPairPanel];
    for (int64_t i = 0; i < kPairPanel; i += kLanes)
      store(tops + i, combined_lanes(most + i, [](Vec a, Vec b) { return max(a, b); }) * t_.scale_log2);
    for (int64_t i = 0; i < t_.rows; ++i) {
      const float before = tops_[i];
      const bool first_seen = before == -__builtin_inff();
      if (!(tops[i] > before) || !(first_seen || too_large(bits_as<UVec>(group_[i])))) continue;
      tops_[i] = tops[i];
      if (first_seen) continue;
      const float factor = first_lane(exp2(splat(before - tops[i])));
      totals_[i] = totals_[i] * factor;
      s_.row_sum[i] *= factor;
      sums_.scale(i, factor);
    }
    nothing_seen_ = false;
  }

  const SoftmaxTile& s_;
  const ScoreTile t_;
  const PairPart& part_;
  const PartKeys keys_;
  const PartSums sums_;
  bool nothing_seen_ = true;
  Vec group_[kPairPanel], totals_[kPairPanel];
  alignas(64) float tops_[kPairPanel], scores_[kPairPanel * kGroup];
  alignas(64) bf16 probabilities_[kPairPanel * kGroup];
};

void attend(const SoftmaxTile& s, const PairPart& part) { PartSoftmax(s, part).run(); }

class PartGradient {
 public:
  PartGradient(const GradientTile& g, const PairPart& part)
      : g_(g),
        t_(g.tile),
        part_(part),
        keys_(g.tile),
        dscore_rows_(reinterpret_cast<bf16*>(part.memory)),
        own_sums_(reinterpret_cast<float*>(dscore_rows_ + kPairPanel * t_.stride)) {
    for (int64_t i = 0; i < t_.rows; ++i) {
      lse_log2_[i] = g.lse[i] * kLog2e;
      delta_[i] = g.delta[i];
    }
  }

  void run(float* dq) {
    const int64_t d = part_.head_dim;
    for (int64_t key = 0; key < t_.stride; key += kStep) {
      bf16* p = static_cast<bf16*>(g_.probabilities) + key * kTerms;
      bf16* dscores = static_cast<bf16*>(g_.dscores) + key * kTerms;
      if (key < keys_.first || key >= keys_.last) {
        for (bf16* to : {p, dscores})
          __builtin_memset(static_cast<void*>(to), 0, 2 * kPairTileElements * sizeof(bf16));
        continue;
      }
      if (const int64_t first = keys_.first + (key - keys_.first) / kGroup * kGroup; key == first)
        multiply_group(key);
      t_.rows == kPairPanel&& keys_.whole(key) ? block<true>(key, p, dscores) : block<false>(key, p, dscores);
    }
    if (keys_.first == keys_.last) return;
    const PartSums sums(dq, own_sums_, t_.rows, d);
    add_product(dscore_rows_ + keys_.first, t_.stride, part_.right + keys_.first * d,
                keys_.last - keys_.first, d, sums.get());
  }

 private:
  static constexpr int64_t kGroup = kStep;

  void multiply_group(int64_t key) {
    const int64_t terms = whole_pair_panels(part_.head_dim), steps = least(kGroup, keys_.last - key) / kStep;
    finish_stores();
    sum_steps(part_.q, part_.k + key * terms, part_.head_dim, steps, scores_);
    sum_steps(part_.dout, part_.v + key * terms, part_.head_dim, steps, dprobabilities_);
    finish_stores();
  }
  /// Of the rows of a step, in its group.
  int64_t of_step(int64_t key) const { return (key - keys_.first) % kGroup * kPairPanel; }

  /// 32 keys of a row.
  struct Row {
    RoundedTerms p, dscores;
  };

  template <bool all_seen>
  Row row_of(int64_t row, int64_t key) const {
    Vec p[2], dscores[2];
    for (int half = 0; half < 2; ++half) {
      const int64_t from = of_step(key) + row * kStep + half * kLanes;
      p[half] = exp2_for_bf16(load(scores_ + from) * t_.scale_log2 - lse_log2_[row]);
      dscores[half] = p[half] * (load(dprobabilities_ + from) - delta_[row]);
      if constexpr (!all_seen) {
        const UVec mask = seen(keys_.of[row], key + half * kLanes);
        p[half] = where_seen(mask, p[half], 0);
        dscores[half] = where_seen(mask, dscores[half], 0);
      }
    }
    return {{p[0], p[1]}, {dscores[0], dscores[1]}};
  }

  /// 32 keys of all rows.
  template <bool all_seen>
  void block(int64_t key, bf16* p, bf16* dscores) {
    for (int64_t i = 0; i < kPairPanel; i += 2, p += kTerms, dscores += kTerms) {
      const Row even = row_of<all_seen>(i, key), odd = row_of<all_seen>(i + 1, key);
      store_words(p, RoundedTerms::pairs<false>(even.p, odd.p));
      store_words(p + kPairTileElements, RoundedTerms::pairs<true>(even.p, odd.p));
      store_words(dscores, RoundedTerms::pairs<false>(even.dscores, odd.dscores));
      store_words(dscores + kPairTileElements, RoundedTerms::pairs<true>(even.dscores, odd.dscores));
      store_words(dscore_rows_ + i * t_.stride + key, even.dscores.words());
      store_words(dscore_rows_ + (i + 1) * t_.stride + key, odd.dscores.words());
    }
  }

  const GradientTile& g_;
  const ScoreTile t_;
  const PairPart& part_;
  const PartKeys keys_;
  bf16* dscore_rows_;
  float* own_sums_;
  float lse_log2_[kPairPanel] = {}, delta_[kPairPanel] = {};
  alignas(64) float scores_[kPairPanel * kGroup], dprobabilities_[kPairPanel * kGroup];
};

void differentiate(const GradientTile& g, const PairPart& part, float* dq) { PartGradient(g, part).run(dq); }

}  // namespace

PairAttentionKernels pair_attention_kernels() { return {attend, differentiate}; }

}  // namespace ottava::cpu::OTTAVA_ISA
