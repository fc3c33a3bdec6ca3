#pragma once

#include "core/cpu/vec.h"

// Results as terms of the next product (core/cpu/pair_product.h), for kernel files only.

namespace ottava::cpu::OTTAVA_ISA {

/// 32 numbers of a row, rounded to bf16.
class RoundedTerms {
 public:
#if defined(__AVX512BF16__)
  RoundedTerms(Vec lower, Vec upper)
      : words_(bits_as<UVec>(_mm512_cvtne2ps_pbh(bits_as<__m512>(upper), bits_as<__m512>(lower)))) {}

  /// Terms of an A, of which PairProductKernels::rounded packs the B.
  UVec words() const { return words_; }

  /// Sixteen of two rows by turns, as in a B: the lower ones, or the upper ones.
  template <bool upper>
  static UVec pairs(const RoundedTerms& even, const RoundedTerms& odd) {
    const UVec first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const UVec lanes = first * 0x10001u + (upper ? 0x300010u : 0x200000u);  // from 32 on: of the odd row
    return bits_as<UVec>(_mm512_permutex2var_epi16(bits_as<__m512i>(even.words_), bits_as<__m512i>(lanes),
                                                   bits_as<__m512i>(odd.words_)));
  }

 private:
  UVec words_;
#else
  RoundedTerms(Vec lower, Vec upper) : halves_{rounded(lower), rounded(upper)} {}
  UVec words() const { return by_turns(halves_[0], halves_[1]); }
  template <bool upper>
  static UVec pairs(const RoundedTerms& even, const RoundedTerms& odd) {
    return by_turns(even.halves_[upper], odd.halves_[upper]);
  }

 private:
  /// Two vectors by turns, of which the upper halves are bf16.
  static UVec by_turns(UVec even, UVec odd) { return (even >> 16) | (odd & 0xffff0000u); }
  /// Rounds to nearest, ties away from zero, in the upper halves. NaNs of which all low bits are set would
  /// become zeros; none arise here.
  static UVec rounded(Vec v) { return bits_as<UVec>(v) + 0x8000u; }

  UVec halves_[2];
#endif
};

}  // namespace ottava::cpu::OTTAVA_ISA
