#include "fp8/quantize_on_cpu.h"

#include <algorithm>
#include <cstring>

#include "core/parallel_for.h"
#include "fp8/row_quantizer.h"

namespace ottava::cpu {
namespace {

using namespace fp8;

constexpr int64_t kTile = 128, kPanel = 2 * kTile;
/// Columns of 128 rows that are read together: 1 MiB of bf16, for the L2 cache.
constexpr int64_t kWidestSlab = kMostSquares * kTile;

class Quantizer {
 public:
  explicit Quantizer(const Quantize& args)
      : a_(args),
        rows_of_out_(args),
        e5m2_((args.out.empty() ? args.transposed : args.out).bytes.dtype == DType::e5m2),
        rows_(args.x.rows()),
        cols_(args.x.cols()),
        element_(static_cast<int64_t>(size_of(args.x.dtype))) {}

  void run() {
    // Rows are read in one piece where nothing but they matters; else one read of a slab serves both outputs.
    // A row's scale is known only at its end, so that slabs cannot make it.
    const bool slabs_write_out =
        !a_.out.empty() && (a_.granularity == Granularity::block_128x128 ||
                            (!a_.transposed.empty() && a_.granularity != Granularity::row));
    if (!a_.out.empty() && !slabs_write_out) {
      parallel_for(rows_, 16, [&](int64_t begin, int64_t end) {
        QuantizeCounts counts;
        for (int64_t r = begin; r < end; ++r) rows_of_out_.quantize_row(r, at(r, 0), counts_or_null(counts));
        rows_of_out_.add(counts);
      });
    }
    if (a_.transposed.empty() && !slabs_write_out) return;
    const int64_t bands = (rows_ + kTile - 1) / kTile;
    int64_t width = kWidestSlab;
    auto across = [&] { return (cols_ + width - 1) / width; };
    while (width > kPanel && bands * across() < 4 * parallel_threads()) width /= 2;
    parallel_for(bands * across(), 1, [&](int64_t begin, int64_t end) {
      QuantizeCounts counts;
      for (int64_t slab = begin; slab < end; ++slab) {
        const int64_t r0 = slab / across() * kTile, c0 = slab % across() * width;
        quantize_slab({r0, c0, std::min(kTile, rows_ - r0), std::min(width, cols_ - c0)}, slabs_write_out,
                      counts);
      }
      rows_of_out_.add(counts);
    });
  }

  void count_elements() const { rows_of_out_.count_elements(); }

 private:
  const void* at(int64_t row, int64_t col) const {
    return static_cast<const uint8_t*>(a_.x.data) + (row * cols_ + col) * element_;
  }
  QuantizeCounts* counts_or_null(QuantizeCounts& counts) const { return rows_of_out_.counts_or_null(counts); }

  /// Part of x: `height` rows, at most a tile's, of `width` columns.
  struct Slab {
    int64_t r0, c0, height, width;
  };

  /// `out` row by row, as x lies in memory; then `transposed` panel by panel, while x or its codes are in the cache.
  void quantize_slab(const Slab& s, bool write_out, QuantizeCounts& counts) const {
    const bool uniform =
        a_.granularity == Granularity::tensor || a_.granularity == Granularity::block_128x128;
    QuantizeCounts* own = counts_or_null(counts);
    float scales[kMostSquares];
    if (uniform) uniform_scales(s, scales);
    for (int64_t r = s.r0; write_out && r < s.r0 + s.height; ++r) {
      if (uniform) {
        kernels_.encode[a_.x.dtype](at(r, s.c0), s.width, kTile, scales, e5m2_,
                                    a_.out.bytes.as<uint8_t>() + r * cols_ + s.c0, own);
      } else {
        rows_of_out_.quantize_blocks(r, s.c0, at(r, s.c0), s.width, own);
      }
    }
    if (a_.transposed.empty()) return;
    QuantizeCounts* turned = a_.out.empty() ? own : nullptr;
    for (int64_t c = 0; c < s.width; c += kPanel) {
      const Slab panel{s.r0, s.c0 + c, s.height, std::min(kPanel, s.width - c)};
      if (!write_out) prefetch(s.r0, panel.c0 + kPanel, s.height);
      uint8_t buffer[kTile * kPanel];
      const uint8_t* codes = buffer;
      int64_t stride = kPanel;
      if (!uniform) {
        encode_columns(panel, buffer, turned);
      } else if (write_out) {
        codes = a_.out.bytes.as<uint8_t>() + s.r0 * cols_ + panel.c0;
        stride = cols_;
      } else {
        for (int64_t r = 0; r < s.height; ++r) {
          kernels_.encode[a_.x.dtype](at(s.r0 + r, panel.c0), panel.width, kTile, scales + c / kTile, e5m2_,
                                      buffer + r * kPanel, turned);
        }
      }
      for (int64_t t = 0; t < panel.width; t += kTile) {
        turn_tile(codes + t, stride, s.r0, panel.c0 + t, s.height, std::min(kTile, panel.width - t));
      }
    }
  }

  /// Through a buffer: rows of the transpose often lie a power of two apart, where few of them fit the cache
  /// at once.
  void turn_tile(const uint8_t* codes, int64_t stride, int64_t r0, int64_t c0, int64_t h, int64_t w) const {
    uint8_t turned[kTile * kTile];
    kernels_.transpose(codes, stride, turned, kTile, {0, h, w});
    uint8_t* to = a_.transposed.bytes.as<uint8_t>() + c0 * rows_ + r0;
    for (int64_t c = 0; c < w; ++c) std::memcpy(to + c * rows_, turned + c * kTile, static_cast<size_t>(h));
  }

  /// The next panel: short pieces of many rows are no stream that the machine would fetch ahead.
  void prefetch(int64_t r0, int64_t c0, int64_t h) const {
    const int64_t bytes = std::min(kPanel, cols_ - c0) * element_;
    for (int64_t r = r0; r < r0 + h; ++r) {
      const auto* row = static_cast<const uint8_t*>(at(r, c0));
      for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
    }
  }

  /// Of each 128 columns of the slab.
  void uniform_scales(const Slab& s, float* scales) const {
    uint32_t amax[kMostSquares];
    const int64_t squares = (s.width + kTile - 1) / kTile;
    const bool own_scale = a_.granularity != Granularity::tensor;
    if (own_scale || !a_.largest.empty()) {
      kernels_.square_amax[a_.x.dtype](at(s.r0, s.c0), cols_, {0, s.height, s.width}, amax);
      rows_of_out_.note_largest(amax, squares);
    }
    if (!own_scale) {
      std::fill_n(scales, kMostSquares, rows_of_out_.tensor_scale());
      return;
    }
    float inverses[kMostSquares];
    rows_of_out_.scales_of(amax, squares, scales, inverses);
    if (!a_.out.empty()) rows_of_out_.set_inverses(s.r0, s.c0, squares, inverses);
    for (int64_t i = 0; i < squares && !a_.transposed.empty(); ++i) {
      rows_of_out_.set_turned_inverses(s.r0, s.c0 + i * kTile, 1, inverses + i);
    }
  }

  /// Codes in the order of x with the scales of x^T.
  void encode_columns(const Slab& panel, uint8_t* buffer, QuantizeCounts* counts) const {
    const auto [r0, c0, h, w] = panel;
    const int64_t block = std::min(scale_block(a_.granularity, kTile), kTile);
    for (int64_t b = 0; b < h; b += block) {
      const int64_t end = std::min(b + block, h);
      uint32_t amax[kPanel] = {};
      const bool given = a_.granularity == Granularity::row;
      if (!given || !a_.largest.empty()) {
        for (int64_t r = b; r < end; ++r) kernels_.column_amax[a_.x.dtype](at(r0 + r, c0), w, amax);
        rows_of_out_.note_largest(amax, w);
      }
      if (given) {
        std::memcpy(amax, a_.column_amax.as<uint32_t>() + c0, static_cast<size_t>(w) * sizeof *amax);
      }
      float scales[kPanel], inverses[kPanel];
      rows_of_out_.scales_of(amax, w, scales, inverses);
      // Panels one above the other share a row-wise scale; the topmost writes it.
      if (a_.granularity != Granularity::row || r0 == 0) {
        rows_of_out_.set_turned_inverses(r0 + b, c0, w, inverses);
      }
      for (int64_t r = b; r < end; ++r) {
        kernels_.encode_columns[a_.x.dtype](at(r0 + r, c0), w, scales, e5m2_, buffer + r * kPanel, counts);
      }
    }
  }

  const Quantize& a_;
  const RowQuantizer rows_of_out_;
  const QuantizeKernels& kernels_ = quantize_kernels();
  const bool e5m2_;
  const int64_t rows_, cols_, element_;
};

}  // namespace

void quantize(const Quantize& args) {
  Quantizer quantizer(args);
  quantizer.run();
  quantizer.count_elements();
}

void dequantize(const Quantized& x, Granularity granularity, const Tensor& y) {
  constexpr int64_t kMostBlocks = 128;  // inverse scales looked up at a time
  auto kernel = quantize_kernels().decode[y.dtype];
  const bool e5m2 = x.bytes.dtype == DType::e5m2;
  const ScaleLayout layout(granularity, y.rows(), y.cols());
  const int64_t cols = y.cols(), block = scale_block(granularity, cols), piece = block * kMostBlocks;
  const auto size = static_cast<int64_t>(size_of(y.dtype));
  parallel_for(y.rows(), 16, [&](int64_t begin, int64_t end) {
    float inverses[kMostBlocks];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < cols; c += piece) {
        const int64_t n = std::min(piece, cols - c);
        for (int64_t b = 0; b * block < n; ++b) {
          const int64_t at = layout(r, c + b * block);
          inverses[b] = granularity == Granularity::block_1x32
                            ? decode_e8m0(static_cast<const uint8_t*>(x.scale_inverse.data)[at])
                            : static_cast<const float*>(x.scale_inverse.data)[at];
        }
        kernel(x.bytes.as<uint8_t>() + r * cols + c, n, block, inverses, e5m2,
               static_cast<uint8_t*>(y.data) + (r * cols + c) * size);
      }
    }
  });
}

}  // namespace ottava::cpu
