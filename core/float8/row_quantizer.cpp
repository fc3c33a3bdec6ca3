#include "core/float8/row_quantizer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "core/raise_amax.h"
#include "core/round_up.h"

namespace ottava::cpu {

using namespace fp8;

namespace {

/// Elements of a row between its passes: 8 KiB in the L1 cache, and at least kMostBlocks of 32.
constexpr int64_t kPiece = 32 * RowQuantizer::kMostBlocks;
constexpr int64_t kFloatsOfLine = 16;
constexpr int kIntoL2 = 2;

/// A row's values in pieces, as bf16: rounded into a buffer, once each while there is one piece, if they are
/// f32.
class RowPieces {
 public:
  RowPieces(const void* values, DType dtype, int64_t cols)
      : values_(values), is_f32_(dtype == DType::f32), cols_(cols) {}
  template <class Body>
  void for_each(Body&& body) {
    for (int64_t col = 0; col < cols_; col += kPiece) {
      const int64_t n = std::min(kPiece, cols_ - col);
      if (is_f32_ && held_ != col) {
        const float* x = static_cast<const float*>(values_) + col;
        amax_kernels().round(x, n, rounded_);
        // What follows reads only the buffer, so memory is idle meanwhile.
        for (int64_t i = 0; i < n; i += kFloatsOfLine) __builtin_prefetch(x + n + i, 0, kIntoL2);
        held_ = col;
      }
      body(col, n, is_f32_ ? rounded_ : static_cast<const bf16*>(values_) + col);
    }
  }

 private:
  const void* values_;
  const bool is_f32_;
  const int64_t cols_;
  int64_t held_ = -1;
  bf16 rounded_[kPiece];
};

}  // namespace

RowQuantizer::RowQuantizer(const RowOutput& output, const Tensor& x, DType format)
    : a_(output),
      dtype_(x.dtype),
      format_(format_of(format)),
      encode_(encode_kernels()[format]),
      rows_(x.rows()),
      cols_(x.cols()),
      block_(scale_block(output.granularity, x.cols())),
      layout_(output.granularity, rows_, cols_) {
  if (a_.granularity != Granularity::tensor) return;
  shared_ = scale_of(*a_.amax.as<uint32_t>());
  if (!a_.out.empty()) *a_.out.scale_inverse.as<float>() = shared_.inverse;
}

Scale RowQuantizer::scale_of(uint32_t amax) const {
  const Scale scale = scale_from_amax(amax, format_, a_.rounding);
  if (!scale.finite) raise_amax(a_.non_finite, 1);
  return scale;
}

uint32_t RowQuantizer::scales_of(const uint32_t* amax, int64_t n, float* scales, float* inverses,
                                 uint8_t* exponents) const {
  const uint32_t largest =
      kernels_.scales(amax, n, format_.max, has_powers_of_two(), scales, inverses, exponents);
  if (largest >= kInfinityBits) raise_amax(a_.non_finite, 1);
  return largest;
}

void RowQuantizer::note_largest(uint32_t amax) const { raise_amax(a_.largest, amax); }

bool RowQuantizer::is_in_range(uint32_t amax, float scale) const {
  const float scaled = std::bit_cast<float>(amax) * scale;
  return format_.mantissa_bits == 3 ? scaled <= format_.overflow : scaled < format_.overflow;
}

void RowQuantizer::set_inverses(int64_t row, int64_t col, int64_t n, const float* inverses) const {
  auto* to = static_cast<float*>(a_.out.scale_inverse.data);
  for (int64_t b = 0; b < n; ++b) to[layout_(row, col + b * block_)] = inverses[b];
}

void RowQuantizer::set_exponents(int64_t row, int64_t col, int64_t n, const uint8_t* exponents) const {
  // Four blocks of a row are neighbours; the next four are a tile further on.
  auto* to = static_cast<uint8_t*>(a_.out.scale_inverse.data) + layout_(row, col);
  int64_t b = 0;
  for (; b + 4 <= n; b += 4, to += 512) std::memcpy(to, exponents + b, 4);
  if (b < n) std::memcpy(to, exponents + b, n - b);
}

void RowQuantizer::encode(int64_t row, int64_t col, const bf16* values, int64_t n, EncodeRow how) const {
  how.x = values;
  how.n = n;
  how.powers_of_two = has_powers_of_two();
  how.out = a_.out.codes.as<uint8_t>() + row * cols_ + col;
  encode_.row(how);
}

void RowQuantizer::quantize_blocks(int64_t row, int64_t col, const bf16* values, int64_t n,
                                   QuantizeCounts* counts, int64_t ahead) const {
  uint32_t amax[kMostBlocks];
  float scales[kMostBlocks], inverses[kMostBlocks];
  uint8_t exponents[kMostBlocks];
  const bool is_mx = a_.granularity == Granularity::block_1x32;
  const int64_t blocks = pieces_of(n, block_);
  kernels_.blocks(values, n, block_, amax);
  const uint32_t largest = scales_of(amax, blocks, scales, inverses, is_mx ? exponents : nullptr);
  note_largest(largest);
  is_mx ? set_exponents(row, col, blocks, exponents) : set_inverses(row, col, blocks, inverses);
  encode(row, col, values, n,
         {.block = block_,
          .scales = scales,
          .in_range = largest < kInfinityBits,
          .counts = counts,
          .ahead = ahead});
}

void RowQuantizer::quantize_tall(int64_t row, int64_t rows, int64_t col, const bf16* values, int64_t stride,
                                 int64_t n, QuantizeCounts* counts, int64_t ahead) const {
  float scales[kMostTall / 128][kTallRows], inverses[kTallRows];
  uint32_t amax[kTallRows], largest = 0;
  for (int64_t c = 0; c < n; c += 128) {
    kernels_.rows(values + c, stride, rows, std::min<int64_t>(128, n - c), amax);
    largest = std::max(largest, scales_of(amax, rows, scales[c / 128], inverses));
    auto* to = static_cast<float*>(a_.out.scale_inverse.data) + layout_(row, col + c);
    std::memcpy(to, inverses, rows * sizeof *to);
  }
  note_largest(largest);
  for (int64_t r = 0; r < rows; ++r) {
    encode(row + r, col, values + r * stride, n,
           {.block = block_,
            .scales = scales[0] + r,
            .scales_stride = kTallRows,
            .in_range = largest < kInfinityBits,
            .counts = counts,
            .ahead = ahead});
  }
}

void RowQuantizer::quantize_row(int64_t row, const void* values, QuantizeCounts* counts,
                                int64_t ahead) const {
  RowPieces pieces(values, dtype_, cols_);
  if (a_.granularity == Granularity::block_1x32 || a_.granularity == Granularity::block_1x128) {
    pieces.for_each(
        [&](int64_t col, int64_t n, const bf16* x) { quantize_blocks(row, col, x, n, counts, ahead); });
    return;
  }
  Scale scale = shared_;
  auto amax_of = [&](const bf16* x, int64_t n) {
    uint32_t amax = 0;
    kernels_.blocks(x, n, n, &amax);
    note_largest(amax);
    return amax;
  };
  if (a_.granularity == Granularity::row) {
    uint32_t amax = 0;
    pieces.for_each([&](int64_t, int64_t n, const bf16* x) { amax = std::max(amax, amax_of(x, n)); });
    scale = scale_of(amax);
    set_inverses(row, 0, 1, &scale.inverse);
  }
  pieces.for_each([&](int64_t col, int64_t n, const bf16* x) {
    const bool in_range =
        a_.granularity == Granularity::row ? scale.finite : is_in_range(amax_of(x, n), scale.scale);
    encode(row, col, x, n,
           {.block = kPiece, .scales = &scale.scale, .in_range = in_range, .counts = counts, .ahead = ahead});
  });
}

void RowQuantizer::add(const QuantizeCounts& counts) const {
  if (a_.counters.empty()) return;
  int64_t* total = a_.counters.as<int64_t>();
  std::atomic_ref<int64_t>(total[1]).fetch_add(counts.underflow, std::memory_order_relaxed);
  std::atomic_ref<int64_t>(total[2]).fetch_add(counts.saturation, std::memory_order_relaxed);
}

void RowQuantizer::count_elements() const {
  if (!a_.counters.empty()) a_.counters.as<int64_t>()[0] += rows_ * cols_;
}

}  // namespace ottava::cpu
