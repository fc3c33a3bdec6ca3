#include "fp8/row_quantizer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/ops/check.h"

namespace ottava::cpu {

using namespace fp8;

namespace {
/// Scales made at a time: a piece of a row stays in the L1 cache between its passes.
constexpr int64_t kMostBlocks = 128;
}  // namespace

RowQuantizer::RowQuantizer(const Quantize& args)
    : a_(args),
      format_(format_of((args.out.empty() ? args.transposed : args.out).bytes.dtype)),
      rows_(args.x.rows()),
      cols_(args.x.cols()),
      block_(scale_block(args.granularity, args.x.cols())),
      element_(static_cast<int64_t>(size_of(args.x.dtype))),
      layout_(args.granularity, rows_, cols_),
      turned_layout_(args.granularity, cols_, rows_) {
  if (a_.granularity == Granularity::tensor) {
    scales_of(a_.amax.as<uint32_t>(), 1, &shared_.scale, &shared_.inverse);
  }
  for (const Quantized* q : {&a_.out, &a_.transposed}) {
    if (q->empty()) continue;
    std::memset(q->scale_inverse.data, 0, static_cast<size_t>(q->scale_inverse.bytes()));
    if (a_.granularity == Granularity::tensor) *static_cast<float*>(q->scale_inverse.data) = shared_.inverse;
  }
}

void RowQuantizer::scales_of(const uint32_t* amax, int64_t n, float* scales, float* inverses) const {
  const bool power_of_two = a_.rounding == ScaleRounding::down_to_power_of_two;
  const uint32_t largest = kernels_.scales(amax, n, format_.max, power_of_two, scales, inverses);
  if (largest >= kInfinityBits && !a_.non_finite.empty()) raise_amax(a_.non_finite, 1);
}

void RowQuantizer::note_largest(const uint32_t* amax, int64_t n) const {
  if (!a_.largest.empty() && n > 0) raise_amax(a_.largest, *std::max_element(amax, amax + n));
}

void RowQuantizer::set_inverses(int64_t row, int64_t col, int64_t n, const float* inverses) const {
  if (a_.granularity == Granularity::block_1x32) {
    // Four blocks of a row lie side by side, the next four a tile further.
    auto* codes = static_cast<uint8_t*>(a_.out.scale_inverse.data) + layout_(row, 0);
    const auto first = static_cast<uint64_t>(col / 32), count = static_cast<uint64_t>(n);
    for (uint64_t b = 0; b < count; ++b)
      codes[(first + b) / 4 * 512 + (first + b) % 4] = encode_e8m0(inverses[b]);
    return;
  }
  auto* to = static_cast<float*>(a_.out.scale_inverse.data);
  for (int64_t b = 0; b < n; ++b) to[layout_(row, col + b * block_)] = inverses[b];
}

void RowQuantizer::set_turned_inverses(int64_t row, int64_t col, int64_t n, const float* inverses) const {
  if (a_.granularity == Granularity::block_1x32) {
    auto* codes = static_cast<uint8_t*>(a_.transposed.scale_inverse.data);
    for (int64_t c = 0; c < n; ++c) codes[turned_layout_(col + c, row)] = encode_e8m0(inverses[c]);
    return;
  }
  auto* to = static_cast<float*>(a_.transposed.scale_inverse.data);
  for (int64_t c = 0; c < n; ++c) to[turned_layout_(col + c, row)] = inverses[c];
}

void RowQuantizer::quantize_blocks(int64_t row, int64_t col, const void* values, int64_t n,
                                   QuantizeCounts* counts) const {
  float scales[kMostBlocks] = {shared_.scale};
  const bool own_scale = a_.granularity != Granularity::tensor;
  uint32_t amax[kMostBlocks];
  const int64_t blocks = (n + block_ - 1) / block_;
  if (own_scale || !a_.largest.empty()) {
    kernels_.block_amax[a_.x.dtype](values, n, block_, amax);
    note_largest(amax, blocks);
  }
  if (own_scale) {
    float inverses[kMostBlocks];
    scales_of(amax, blocks, scales, inverses);
    set_inverses(row, col, blocks, inverses);
  }
  kernels_.encode[a_.x.dtype](values, n, block_, scales, format_.mantissa_bits == 2,
                              a_.out.bytes.as<uint8_t>() + row * cols_ + col, counts);
}

void RowQuantizer::quantize_row(int64_t row, const void* values, QuantizeCounts* counts) const {
  const int64_t piece = block_ * kMostBlocks;
  for (int64_t col = 0; col < cols_; col += piece) {
    quantize_blocks(row, col, static_cast<const uint8_t*>(values) + col * element_,
                    std::min(piece, cols_ - col), counts);
  }
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
