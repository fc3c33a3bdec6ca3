#include "fp8/quantize_threads.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/float8/row_quantizer.h"
#include "core/round_up.h"
#include "core/threads/parallel_for.h"
#include "fp8/quantize_kernels.h"

namespace ottava::cpu {
namespace {

using namespace fp8;

constexpr int64_t kTile = 128;
/// Columns of 128 rows that are worked on together: 512 KiB of bf16 at most, which share an L2 cache of 2 MiB
/// with the next ones and with both outputs. Wide, because the processor fetches long pieces of rows on its
/// own.
constexpr int64_t kWidestSlab = 2048;

/// A transpose of so many bytes has left the caches by the time it is read.
constexpr int64_t kCachedBytes = int64_t{4} << 20;

/// Part of x: `height` rows, at most a tile's, of `width` columns; its values as bf16, `stride` apart.
struct Slab {
  int64_t r0, c0, height, width;
  const bf16* x;
  int64_t stride;
  int64_t ahead;  ///< bytes from x to the next slab, or 0
};

/// Scales of a slab's columns, in bands of rows that share scales: four bands of 32 rows for 1x32, else one.
struct ColumnGroups {
  uint32_t amax[4][kWidestSlab];
  float scales[4][kWidestSlab], inverses[4][kWidestSlab];
  uint8_t exponents[4][kWidestSlab];
};

/// Inverse scales are laid out in whole tiles of 1x32 and groups of four of 128x128.
bool has_padding(Granularity granularity, const Shape& codes) {
  if (granularity == Granularity::block_1x32) return codes.rows() % 128 != 0 || codes.cols() % 128 != 0;
  return granularity == Granularity::block_128x128 && codes.cols() % 512 != 0;
}

DType format_of_codes(const Quantize& args) {
  return (args.out.empty() ? args.transposed : args.out).codes.dtype;
}
RowOutput row_output_of(const Quantize& args) {
  return {.granularity = args.granularity,
          .rounding = args.rounding,
          .amax = args.amax,
          .out = args.out,
          .counters = args.counters,
          .non_finite = args.non_finite,
          .largest = args.largest};
}

class Quantizer {
 public:
  explicit Quantizer(const Quantize& args)
      : a_(args),
        x_(x_of(args)),
        rows_of_out_(row_output_of(args), {nullptr, x_.dtype, x_.shape()}, format_of_codes(args)),
        encode_(encode_kernels()[format_of_codes(args)]),
        is_uniform_(args.granularity == Granularity::tensor ||
                    args.granularity == Granularity::block_128x128),
        band_(args.granularity == Granularity::block_1x32 ? 32 : kTile),
        rows_(x_.rows),
        cols_(x_.cols),
        element_(size_of(x_.dtype)) {
    for (const Float8Codes* q : {&a_.out, &a_.transposed}) {
      if (q->empty()) continue;
      auto* inverses = static_cast<float*>(q->scale_inverse.data);
      if (has_padding(a_.granularity, q->codes.shape)) {
        std::memset(inverses, 0, q->scale_inverse.bytes());
      }
      if (a_.granularity == Granularity::tensor) *inverses = rows_of_out_.tensor_scale().inverse;
    }
  }

  void run() {
    // Rows are read in one piece if only they are wanted; else one read of a slab serves both outputs. A
    // row's scale is known only at its end, so slabs cannot make it.
    const bool by_row = a_.granularity == Granularity::row;
    const bool slabs_write_out = !a_.out.empty() && (a_.granularity == Granularity::block_128x128 ||
                                                     (!a_.transposed.empty() && !by_row));
    const int64_t bands = pieces_of(rows_, kTile), threads = parallel_threads();
    // The rows of a band just before its slabs, while x is in the cache, if there are bands enough for all
    // threads.
    const bool rows_by_band = by_row && !a_.transposed.empty() && bands >= 2 * threads;
    if (!a_.out.empty() && !slabs_write_out && !rows_by_band) {
      parallel_for(rows_, 16, [&](int64_t begin, int64_t end) { quantize_rows(begin, end); });
    }
    if (a_.transposed.empty() && !slabs_write_out) return;
    int64_t width = width_of(pieces_of(cols_, kWidestSlab));
    while (width > 2 * kTile && bands * pieces_of(cols_, width) < 4 * threads)
      width = width_of(2 * pieces_of(cols_, width));
    const int64_t across = pieces_of(cols_, width);
    parallel_for(bands * across, rows_by_band ? across : 1, [&](int64_t begin, int64_t end) {
      QuantizeCounts counts;
      auto groups = std::make_unique_for_overwrite<ColumnGroups>();
      std::vector<bf16> rounded(is_f32() ? static_cast<size_t>(kTile * width) : 0);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r0 = i / across * kTile, c0 = i % across * width;
        if (rows_by_band && c0 == 0 && !a_.out.empty()) quantize_rows(r0, std::min(r0 + kTile, rows_));
        const int64_t next = (i + 1) / across * kTile * x_.stride + (i + 1) % across * width;
        Slab slab{r0, c0, std::min(kTile, rows_ - r0), std::min(width, cols_ - c0), nullptr, 0, 0};
        view(slab, rounded, i + 1 < end ? next - r0 * x_.stride - c0 : 0);
        quantize_slab(slab, slabs_write_out, *groups, counts);
      }
      rows_of_out_.add(counts);
    });
  }

  void count_elements() const { rows_of_out_.count_elements(); }

 private:
  /// Of slabs, this many of them across.
  int64_t width_of(int64_t across) const {
    const int64_t unit =
        cols_ >= 4 * kTile * across ? 4 * kTile : kTile;  // four tiles are sixteen blocks of 32
    return pieces_of(pieces_of(cols_, across), unit) * unit;
  }
  bool is_f32() const { return x_.dtype == DType::f32; }

  void quantize_rows(int64_t begin, int64_t end) const {
    QuantizeCounts counts;
    if (a_.granularity == Granularity::block_1x128 && !is_f32()) {
      const int64_t next_rows = RowQuantizer::kTallRows * x_.stride * element_;
      quantize_tall(
          {begin, 0, end - begin, cols_, static_cast<const bf16*>(x_.at(begin, 0)), x_.stride, next_rows},
          counts);
      return rows_of_out_.add(counts);
    }
    for (int64_t r = begin; r < end; ++r) {
      rows_of_out_.quantize_row(r, x_.at(r, 0), rows_of_out_.counts_or_null(counts),
                                is_f32() ? 0 : x_.stride * element_);
    }
    rows_of_out_.add(counts);
  }

  /// `out` of a slab of any size: sixteen rows of 512 columns stay in the L1 cache between their passes.
  void quantize_tall(const Slab& s, QuantizeCounts& counts) const {
    constexpr int64_t kRows = RowQuantizer::kTallRows, kCols = RowQuantizer::kMostTall;
    for (int64_t r = 0; r < s.height; r += kRows) {
      const int64_t rows = std::min(kRows, s.height - r);
      for (int64_t c = 0; c < s.width; c += kCols) {
        rows_of_out_.quantize_tall(s.r0 + r, rows, s.c0 + c, s.x + r * s.stride + c, s.stride,
                                   std::min(kCols, s.width - c), rows_of_out_.counts_or_null(counts),
                                   s.ahead);
      }
    }
  }

  void view(Slab& s, std::vector<bf16>& rounded, int64_t next) const {
    if (!is_f32()) {
      s.x = static_cast<const bf16*>(x_.at(s.r0, s.c0));
      s.stride = x_.stride;
      s.ahead = next * element_;
      return;
    }
    for (int64_t r = 0; r < s.height; ++r) {
      amax_.round(static_cast<const float*>(x_.at(s.r0 + r, s.c0)), s.width, rounded.data() + r * s.width);
    }
    s.x = rounded.data();
    s.stride = s.width;
  }

  /// `out` row by row, as x lies in memory; then `transposed`, while x or its codes are in the cache.
  void quantize_slab(const Slab& s, bool write_out, ColumnGroups& groups, QuantizeCounts& counts) const {
    QuantizeCounts* own = rows_of_out_.counts_or_null(counts);
    float scales[kWidestSlab / kTile];
    bool in_range = true;
    if (is_uniform_ || !a_.transposed.empty()) measure_columns(s, groups);
    if (is_uniform_) in_range = uniform_scales(s, groups, scales);
    const bool tall = a_.granularity == Granularity::block_1x128;
    if (write_out && tall) quantize_tall(s, counts);
    for (int64_t r = 0; write_out && !tall && r < s.height; ++r) {
      const bf16* row = s.x + r * s.stride;
      if (is_uniform_) {
        encode_.row({.x = row,
                     .n = s.width,
                     .block = kTile,
                     .scales = scales,
                     .in_range = in_range,
                     .powers_of_two = rows_of_out_.has_powers_of_two(),
                     .out = a_.out.codes.as<uint8_t>() + (s.r0 + r) * cols_ + s.c0,
                     .counts = own,
                     .ahead = s.ahead});
      } else {
        rows_of_out_.quantize_blocks(s.r0 + r, s.c0, row, s.width, own, s.ahead);
      }
    }
    if (a_.transposed.empty()) return;
    uint8_t* to = a_.transposed.codes.as<uint8_t>() + s.c0 * rows_ + s.r0;
    if (is_uniform_ && write_out) {
      const uint8_t* codes = a_.out.codes.as<uint8_t>() + s.r0 * cols_ + s.c0;
      return decode_kernels().transpose(codes, cols_, to, rows_, {0, s.height, s.width});
    }
    if (is_uniform_) {
      for (int64_t c = 0; c < s.width; ++c) groups.scales[0][c] = scales[c / kTile];
    } else {
      in_range = column_scales(s, groups);
    }
    encode_.transposed({.x = s.x,
                        .stride = s.stride,
                        .rows = s.height,
                        .cols = s.width,
                        .band = band_,
                        .scales = groups.scales[0],
                        .scales_stride = kWidestSlab,
                        .in_range = in_range,
                        .powers_of_two = rows_of_out_.has_powers_of_two(),
                        .to = to,
                        .to_stride = rows_,
                        .past_caches = a_.transposed.codes.bytes() >= kCachedBytes,
                        .counts = a_.out.empty() ? own : nullptr});
  }

  void measure_columns(const Slab& s, ColumnGroups& groups) const {
    uint32_t largest = 0;
    for (int64_t b = 0; b * band_ < s.height; ++b) {
      const Rows band{b * band_, std::min((b + 1) * band_, s.height), s.width};
      largest = std::max(largest, amax_.columns(s.x, s.stride, band, groups.amax[b]));
    }
    rows_of_out_.note_largest(largest);
  }

  /// Of each 128 columns of the slab; whether they keep x in range.
  bool uniform_scales(const Slab& s, const ColumnGroups& groups, float* scales) const {
    bool in_range = true;
    for (int64_t c = 0; c < s.width; c += kTile) {
      const uint32_t* columns = groups.amax[0] + c;
      const uint32_t amax = *std::max_element(columns, columns + std::min(kTile, s.width - c));
      if (a_.granularity == Granularity::tensor) {
        scales[c / kTile] = rows_of_out_.tensor_scale().scale;
      } else {
        const Scale own = rows_of_out_.scale_of(amax);
        scales[c / kTile] = own.scale;
        if (!a_.out.empty()) rows_of_out_.set_inverses(s.r0, s.c0 + c, 1, &own.inverse);
        if (!a_.transposed.empty()) {
          transposed_inverses()[scale_index(a_.granularity, {cols_, rows_}, s.c0 + c, s.r0)] = own.inverse;
        }
      }
      in_range = in_range && rows_of_out_.is_in_range(amax, scales[c / kTile]);
    }
    return in_range;
  }

  /// Of each column and band; whether they keep x in range.
  bool column_scales(const Slab& s, ColumnGroups& groups) const {
    const size_t width = s.width;
    if (a_.granularity == Granularity::row) {
      uint32_t seen[kWidestSlab];
      std::memcpy(seen, groups.amax[0], width * sizeof *seen);
      std::memcpy(groups.amax[0], a_.column_amax.as<uint32_t>() + s.c0, width * sizeof *seen);
      rows_of_out_.scales_of(groups.amax[0], s.width, groups.scales[0], groups.inverses[0]);
      // Slabs one above the other share a column's scale; the topmost writes it.
      if (s.r0 == 0) std::memcpy(transposed_inverses() + s.c0, groups.inverses[0], width * sizeof(float));
      for (int64_t c = 0; c < s.width; ++c) {
        if (!rows_of_out_.is_in_range(seen[c], groups.scales[0][c])) return false;
      }
      return true;
    }
    uint32_t largest = 0;
    const bool is_mx = a_.granularity == Granularity::block_1x32;
    for (int64_t b = s.height / band_; is_mx && b < 4; ++b) std::memset(groups.exponents[b], 0, width);
    for (int64_t b = 0; b * band_ < s.height; ++b) {
      uint8_t* exponents = is_mx ? groups.exponents[b] : nullptr;
      const uint32_t of_band =
          rows_of_out_.scales_of(groups.amax[b], s.width, groups.scales[b], groups.inverses[b], exponents);
      largest = std::max(largest, of_band);
    }
    if (is_mx) {
      set_transposed_exponents(s, groups);
    } else {
      std::memcpy(transposed_inverses() + s.r0 / kTile * cols_ + s.c0, groups.inverses[0],
                  width * sizeof(float));
    }
    return largest < kInfinityBits;
  }

  float* transposed_inverses() const { return static_cast<float*>(a_.transposed.scale_inverse.data); }
  /// The four bands of a column lie side by side, and the columns 32 apart.
  void set_transposed_exponents(const Slab& s, const ColumnGroups& groups) const {
    for (int64_t tile = 0; tile < s.width; tile += kTile) {
      auto* to = static_cast<uint8_t*>(a_.transposed.scale_inverse.data) +
                 scale_index(a_.granularity, {cols_, rows_}, s.c0 + tile, s.r0);
      uint32_t bands[kTile] = {};
      for (int64_t i = 0; i < std::min(kTile, s.width - tile); ++i) {
        for (int b = 0; b < 4; ++b) bands[i] |= static_cast<uint32_t>(groups.exponents[b][tile + i]) << 8 * b;
      }
      for (int64_t k = 0; k < 32; ++k) {
        const uint32_t columns[4] = {bands[k], bands[k + 32], bands[k + 64], bands[k + 96]};
        std::memcpy(to + k * 16, columns, sizeof columns);
      }
    }
  }

  const Quantize& a_;
  const MatrixRows x_;
  const RowQuantizer rows_of_out_;
  const AmaxKernels& amax_ = amax_kernels();
  const EncodeKernel& encode_;
  const bool is_uniform_;
  const int64_t band_, rows_, cols_, element_;
};

}  // namespace

void quantize(const Quantize& args) {
  Quantizer quantizer(args);
  quantizer.run();
  quantizer.count_elements();
}

}  // namespace ottava::cpu
