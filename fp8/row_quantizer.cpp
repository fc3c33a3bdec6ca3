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
  if (a_.granularity == Granularity::tensor) shared_ = scale_of(*a_.amax.as<uint32_t>());
  for (const Quantized* q : {&a_.out, &a_.transposed}) {
    if (q->empty()) continue;
    std::memset(q->scale_inverse.data, 0, static_cast<size_t>(q->scale_inverse.bytes()));
    if (a_.granularity == Granularity::tensor) store(*q, 0, shared_);
  }
}

Scale RowQuantizer::scale_of(uint32_t amax) const {
  const Scale scale = scale_from_amax(amax, format_, a_.rounding);
  if (!scale.finite && !a_.non_finite.empty()) raise_amax(a_.non_finite, 1);
  return scale;
}

void RowQuantizer::store(const Quantized& q, int64_t index, const Scale& scale) const {
  if (a_.granularity == Granularity::block_1x32) {
    static_cast<uint8_t*>(q.scale_inverse.data)[index] = encode_e8m0(scale.inverse);
  } else {
    static_cast<float*>(q.scale_inverse.data)[index] = scale.inverse;
  }
}

void RowQuantizer::quantize_blocks(int64_t row, int64_t col, const void* values, int64_t n,
                                   QuantizeCounts* counts) const {
  float scales[kMostBlocks] = {shared_.scale};
  if (a_.granularity != Granularity::tensor) {
    uint32_t amax[kMostBlocks];
    kernels_.block_amax[a_.x.dtype](values, n, block_, amax);
    for (int64_t b = 0; b * block_ < n; ++b) {
      const Scale scale = scale_of(amax[b]);
      scales[b] = scale.scale;
      set_inverse(row, col + b * block_, scale);
    }
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
