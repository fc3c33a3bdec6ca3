#include "core/cpu/vec.h"
#include "fp8/fp8_vec.h"
#include "fp8/quantize_kernels.h"

// Ceiling: memory bandwidth. Quantizing reads 2 bytes per bf16 element, writes one, and spends about 20
// instructions per 16 elements.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

using fp8::QuantizeCounts;

inline UVec largest_of(const float* x, int64_t n) {
  UVec largest{};
  for_each_vec(
      n, [&](int64_t c, auto lanes) { largest = max_bits(largest, abs_bits(load_as_bf16(x + c, lanes))); });
  return largest;
}
inline UVec largest_of(const bf16* x, int64_t n) {
  SVec pairs{};
  int64_t done = 0;
  for (; done + 2 * kLanes <= n; done += 2 * kLanes) pairs = max_magnitudes(pairs, load_magnitudes(x + done));
  UVec largest = bits_of_magnitudes(pairs);
  for_each_vec(n - done, [&](int64_t c, auto lanes) {
    largest = max_bits(largest, abs_bits(load(x + done + c, lanes)));
  });
  return largest;
}

template <class T>
void block_amax(const void* source, int64_t n, int64_t block, uint32_t* amax) {
  const T* x = static_cast<const T*>(source);
  for (int64_t start = 0; start < n; start += block) {
    *amax++ = largest_lane(largest_of(x + start, n - start < block ? n - start : block));
  }
}

// Row after row, as they lie in memory.
template <class T>
void square_amax(const void* source, int64_t stride, Rows rows, uint32_t* amax) {
  const T* x = static_cast<const T*>(source);
  UVec largest[fp8::kMostSquares] = {};
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t b = 0; b * 128 < rows.cols; ++b) {
      const int64_t n = rows.cols - b * 128 < 128 ? rows.cols - b * 128 : 128;
      largest[b] = max_bits(largest[b], largest_of(x + r * stride + b * 128, n));
    }
  }
  for (int64_t b = 0; b * 128 < rows.cols; ++b) amax[b] = largest_lane(largest[b]);
}

uint32_t scales(const uint32_t* amax, int64_t n, float max, bool power_of_two, float* scales, float* inverses) {
  UVec largest{};
  for_each_vec(n, [&](int64_t i, auto lanes) {
    const Vec group = load(reinterpret_cast<const float*>(amax) + i, lanes);
    const UVec bits = bits_as<UVec>(group);
    largest = max_bits(largest, bits);
    Vec scale = max / (group > fp8::kSmallestAmax ? group : splat(fp8::kSmallestAmax));
    if (power_of_two) scale = bits_as<Vec>(bits_as<UVec>(scale) & 0xff800000u);
    scale = bits >= 0x7f800000u ? splat(1) : scale;
    store(scales + i, scale, lanes);
    store(inverses + i, 1.0f / scale, lanes);
  });
  return largest_lane(largest);
}

template <class T>
void column_amax(const void* source, int64_t n, uint32_t* amax) {
  const T* x = static_cast<const T*>(source);
  for_each_vec(n, [&](int64_t c, auto lanes) {
    UVec before = bits_as<UVec>(load(reinterpret_cast<const float*>(amax) + c, lanes));
    store(reinterpret_cast<float*>(amax) + c,
          bits_as<Vec>(max_bits(before, abs_bits(load_as_bf16(x + c, lanes)))), lanes);
  });
}

/// Counts in 32-bit lanes, which rows of up to 2^31 vectors cannot overflow.
struct Counting {
  IVec underflow{}, saturation{};
  template <class F>
  void look(Vec x, Vec scaled, UVec codes) {
    underflow -= ((codes & 0x7fu) == 0u) & (abs_bits(x) != 0u);
    saturation -= bits_as<IVec>(abs_bits(scaled) >= F::kOverflowBits);
  }
  void add_to(QuantizeCounts& counts) const {
    for (int i = 0; i < kLanes; ++i) {
      counts.underflow += underflow[i];
      counts.saturation += saturation[i];
    }
  }
};

template <class F, class T, bool kCount>
void encode_blocks(const T* x, int64_t n, int64_t block, const float* scales, uint8_t* out,
                   QuantizeCounts* counts) {
  Counting seen;
  for (int64_t start = 0; start < n; start += block) {
    const Vec scale = splat(*scales++);
    for_each_vec(n - start < block ? n - start : block, [&](int64_t c, auto lanes) {
      const Vec v = load_as_bf16(x + start + c, lanes), scaled = v * scale;
      const UVec codes = fp8_codes<F>(scaled);
      if constexpr (kCount) seen.template look<F>(v, scaled, codes);
      store_codes(out + start + c, codes, lanes);
    });
  }
  if constexpr (kCount) seen.add_to(*counts);
}

template <class F, class T, bool kCount>
void encode_each(const T* x, int64_t n, const float* scales, uint8_t* out, QuantizeCounts* counts) {
  Counting seen;
  for_each_vec(n, [&](int64_t c, auto lanes) {
    const Vec v = load_as_bf16(x + c, lanes), scaled = v * load(scales + c, lanes);
    const UVec codes = fp8_codes<F>(scaled);
    if constexpr (kCount) seen.template look<F>(v, scaled, codes);
    store_codes(out + c, codes, lanes);
  });
  if constexpr (kCount) seen.add_to(*counts);
}

template <class T>
void encode(const void* source, int64_t n, int64_t block, const float* scales, bool e5m2, uint8_t* out,
            QuantizeCounts* counts) {
  const T* x = static_cast<const T*>(source);
  if (counts) {
    e5m2 ? encode_blocks<E5M2, T, true>(x, n, block, scales, out, counts)
         : encode_blocks<E4M3, T, true>(x, n, block, scales, out, counts);
  } else {
    e5m2 ? encode_blocks<E5M2, T, false>(x, n, block, scales, out, counts)
         : encode_blocks<E4M3, T, false>(x, n, block, scales, out, counts);
  }
}

template <class T>
void encode_columns(const void* source, int64_t n, const float* scales, bool e5m2, uint8_t* out,
                    QuantizeCounts* counts) {
  const T* x = static_cast<const T*>(source);
  if (counts) {
    e5m2 ? encode_each<E5M2, T, true>(x, n, scales, out, counts)
         : encode_each<E4M3, T, true>(x, n, scales, out, counts);
  } else {
    e5m2 ? encode_each<E5M2, T, false>(x, n, scales, out, counts)
         : encode_each<E4M3, T, false>(x, n, scales, out, counts);
  }
}

template <class F, class T>
void decode_blocks(const uint8_t* codes, int64_t n, int64_t block, const float* inverses, T* y) {
  for (int64_t start = 0; start < n; start += block) {
    const Vec inverse = splat(*inverses++);
    for_each_vec(n - start < block ? n - start : block, [&](int64_t c, auto lanes) {
      store(y + start + c, fp8_values<F>(load_codes(codes + start + c, lanes)) * inverse, lanes);
    });
  }
}
template <class T>
void decode(const uint8_t* codes, int64_t n, int64_t block, const float* inverses, bool e5m2, void* y) {
  e5m2 ? decode_blocks<E5M2>(codes, n, block, inverses, static_cast<T*>(y))
       : decode_blocks<E4M3>(codes, n, block, inverses, static_cast<T*>(y));
}

/// 16 x 16 bytes: four rounds that interleave row i with row i + 8.
void transpose_tile(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
  BVec rows[16], next[16];
  for (int i = 0; i < 16; ++i) __builtin_memcpy(&rows[i], from + i * from_stride, 16);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shufflevector(rows[i], rows[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                            22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                13, 29, 14, 30, 15, 31);
    }
    __builtin_memcpy(rows, next, sizeof rows);
  }
  for (int i = 0; i < 16; ++i) __builtin_memcpy(to + i * to_stride, &rows[i], 16);
}

void transpose(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride, Rows block) {
  for (int64_t c = 0; c < block.cols;
       c += 16) {  // down the columns: whole lines of the destination are written
    for (int64_t r = block.begin; r < block.end; r += 16) {
      if (r + 16 <= block.end && c + 16 <= block.cols) {
        transpose_tile(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
        continue;
      }
      for (int64_t i = r; i < r + 16 && i < block.end; ++i) {
        for (int64_t j = c; j < c + 16 && j < block.cols; ++j)
          to[j * to_stride + i] = from[i * from_stride + j];
      }
    }
  }
}

}  // namespace

fp8::QuantizeKernels quantize_kernels() {
  return {.block_amax = {block_amax<float>, block_amax<bf16>},
          .column_amax = {column_amax<float>, column_amax<bf16>},
          .square_amax = {square_amax<float>, square_amax<bf16>},
          .scales = scales,
          .encode = {encode<float>, encode<bf16>},
          .encode_columns = {encode_columns<float>, encode_columns<bf16>},
          .decode = {decode<float>, decode<bf16>},
          .transpose = transpose};
}

}  // namespace ottava::cpu::OTTAVA_ISA
