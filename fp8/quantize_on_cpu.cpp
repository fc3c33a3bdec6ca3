#include "fp8/quantize_on_cpu.h"

#include <algorithm>
#include <cstring>

#include "core/parallel_for.h"
#include "fp8/row_quantizer.h"

namespace ottava::cpu {
namespace {

using namespace fp8;

constexpr int64_t kTile = 128;
constexpr int64_t kMostBlocks = 128;  // scales looked up at a time

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
    if (a_.granularity == Granularity::tensor && !a_.out.empty() && !a_.transposed.empty())
      return run_in_bands();
    // Rows are read in one piece where nothing but they matters; else one read of a tile serves both outputs.
    // A row's scale is known only at its end, so that tiles cannot make it.
    const bool in_tiles = a_.granularity == Granularity::block_128x128 ||
                          (!a_.transposed.empty() && a_.granularity != Granularity::row);
    const bool tiles_write_out = in_tiles && !a_.out.empty();
    if (!in_tiles && !a_.out.empty()) {
      parallel_for(rows_, 16, [&](int64_t begin, int64_t end) {
        QuantizeCounts counts;
        for (int64_t r = begin; r < end; ++r) rows_of_out_.quantize_row(r, at(r, 0), counts_or_null(counts));
        rows_of_out_.add(counts);
      });
    }
    if (a_.transposed.empty() && !tiles_write_out) return;
    const int64_t across = (cols_ + kTile - 1) / kTile, tiles = (rows_ + kTile - 1) / kTile * across;
    parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
      QuantizeCounts counts;
      for (int64_t t = begin; t < end; ++t)
        quantize_tile(t / across * kTile, t % across * kTile, tiles_write_out, counts);
      rows_of_out_.add(counts);
    });
  }

  /// One scale for everything: rows are read as they lie, and their bytes are turned while they are in the
  /// cache.
  void run_in_bands() const {
    parallel_for(rows_, kTile, [&](int64_t begin, int64_t end) {
      QuantizeCounts counts;
      for (int64_t r0 = begin; r0 < end; r0 += kTile) {
        const int64_t h = std::min(kTile, end - r0);
        for (int64_t r = r0; r < r0 + h; ++r) rows_of_out_.quantize_row(r, at(r, 0), counts_or_null(counts));
        for (int64_t c0 = 0; c0 < cols_; c0 += kTile) {
          turn_tile(a_.out.bytes.as<uint8_t>() + r0 * cols_ + c0, cols_, r0, c0, h,
                    std::min(kTile, cols_ - c0));
        }
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

  void quantize_tile(int64_t r0, int64_t c0, bool write_out, QuantizeCounts& counts) const {
    const int64_t h = std::min(kTile, rows_ - r0), w = std::min(kTile, cols_ - c0);
    prefetch(r0, c0 + kTile, h);
    const bool uniform =
        a_.granularity == Granularity::tensor || a_.granularity == Granularity::block_128x128;
    QuantizeCounts* out_counts = write_out ? counts_or_null(counts) : nullptr;
    uint8_t buffer[kTile * kTile];
    const uint8_t* codes = buffer;
    int64_t stride = kTile;
    if (uniform) {
      const Scale scale = uniform_scale(r0, c0, h, w);
      uint8_t* target = buffer;
      if (write_out) {
        target = a_.out.bytes.as<uint8_t>() + r0 * cols_ + c0;
        stride = cols_;
      }
      for (int64_t r = 0; r < h; ++r) {
        kernels_.encode[a_.x.dtype](at(r0 + r, c0), w, kTile, &scale.scale, e5m2_, target + r * stride,
                                    counts_or_null(counts));
      }
      codes = target;
    } else {
      if (write_out) {
        for (int64_t r = r0; r < r0 + h; ++r) rows_of_out_.quantize_blocks(r, c0, at(r, c0), w, out_counts);
      }
      if (!a_.transposed.empty())
        encode_columns(r0, c0, h, w, buffer, a_.out.empty() ? counts_or_null(counts) : nullptr);
    }
    if (!a_.transposed.empty()) turn_tile(codes, stride, r0, c0, h, w);
  }

  /// Through a buffer: rows of the transpose often lie a power of two apart, where few of them fit the cache
  /// at once.
  void turn_tile(const uint8_t* codes, int64_t stride, int64_t r0, int64_t c0, int64_t h, int64_t w) const {
    uint8_t turned[kTile * kTile];
    kernels_.transpose(codes, stride, turned, kTile, {0, h, w});
    uint8_t* to = a_.transposed.bytes.as<uint8_t>() + c0 * rows_ + r0;
    for (int64_t c = 0; c < w; ++c) std::memcpy(to + c * rows_, turned + c * kTile, static_cast<size_t>(h));
  }

  /// The next tile: short pieces of many rows are no stream that the machine would fetch ahead.
  void prefetch(int64_t r0, int64_t c0, int64_t h) const {
    const int64_t bytes = std::min(kTile, cols_ - c0) * element_;
    for (int64_t r = r0; r < r0 + h; ++r) {
      const auto* row = static_cast<const uint8_t*>(at(r, c0));
      for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
    }
  }

  Scale uniform_scale(int64_t r0, int64_t c0, int64_t h, int64_t w) const {
    if (a_.granularity == Granularity::tensor) return rows_of_out_.scale_of(*a_.amax.as<uint32_t>());
    uint32_t largest = 0;
    for (int64_t r = r0; r < r0 + h; ++r) {
      uint32_t bits;
      kernels_.block_amax[a_.x.dtype](at(r, c0), w, kTile, &bits);
      largest = std::max(largest, bits);
    }
    const Scale scale = rows_of_out_.scale_of(largest);
    if (!a_.out.empty()) rows_of_out_.set_inverse(r0, c0, scale);
    if (!a_.transposed.empty()) rows_of_out_.set_turned_inverse(c0, r0, scale);
    return scale;
  }

  /// Codes in the order of x with the scales of x^T.
  void encode_columns(int64_t r0, int64_t c0, int64_t h, int64_t w, uint8_t* buffer,
                      QuantizeCounts* counts) const {
    const int64_t block = std::min(scale_block(a_.granularity, kTile), kTile);
    for (int64_t b = 0; b < h; b += block) {
      const int64_t end = std::min(b + block, h);
      uint32_t amax[kTile] = {};
      if (a_.granularity == Granularity::row) {
        std::memcpy(amax, a_.column_amax.as<uint32_t>() + c0, static_cast<size_t>(w) * sizeof *amax);
      } else {
        for (int64_t r = b; r < end; ++r) kernels_.column_amax[a_.x.dtype](at(r0 + r, c0), w, amax);
      }
      float scales[kTile];
      for (int64_t c = 0; c < w; ++c) {
        const Scale scale = rows_of_out_.scale_of(amax[c]);
        scales[c] = scale.scale;
        // Tiles one above the other share a row-wise scale; the topmost writes it.
        if (a_.granularity != Granularity::row || r0 == 0)
          rows_of_out_.set_turned_inverse(c0 + c, r0 + b, scale);
      }
      for (int64_t r = b; r < end; ++r) {
        kernels_.encode_columns[a_.x.dtype](at(r0 + r, c0), w, scales, e5m2_, buffer + r * kTile, counts);
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
