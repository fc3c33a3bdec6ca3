#include "core/ops/rope.h"

#include <cassert>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/ops/rope_kernels.h"
#include "core/raise_amax.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

double frequency(int64_t i, int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling) {
  const double f = std::pow(theta, -2.0 * i / head_dim);
  if (!scaling) return f;
  const double wavelength = 2 * std::numbers::pi / f, original = scaling->original_max_position_embeddings;
  const double low = scaling->low_freq_factor, high = scaling->high_freq_factor;
  if (wavelength < original / high) return f;
  if (wavelength > original / low) return f / scaling->factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * f / scaling->factor + smooth * f;
}

void check(const Rope& a) {
  check_float("rope", "qkv", a.qkv);
  if (a.heads.heads < 0 || a.heads.kv_heads < 0 || a.heads.head_dim <= 0 || a.heads.head_dim % 2 != 0) {
    fail<ShapeError>("rope", "{} heads, {} key-value heads of dimension {}: expected an even dimension",
                     a.heads.heads, a.heads.kv_heads, a.heads.head_dim);
  }
  const int64_t rows = a.qkv.rows();
  check_tensor("rope", "qkv", a.qkv, a.qkv.dtype, {rows, a.heads.row()});
  if (a.table.dtype != DType::f32 || a.table.shape.rank() != 2 || a.table.cols() != a.heads.head_dim) {
    fail<ShapeError>("rope", "table is {}, expected f32 [positions, {}]", describe(a.table),
                     a.heads.head_dim);
  }
  if (!a.positions.empty()) {
    check_tensor("rope", "positions", a.positions, DType::i32, {rows});
  } else if (a.sequence < 1 || a.sequence > a.table.rows()) {
    fail<ShapeError>("rope", "sequence is {}, expected 1 to the table's {} positions", a.sequence,
                     a.table.rows());
  }
  check_optional("rope", "amax", a.amax, DType::u32, {1});
}

void rope_on_cpu(const Rope& a) {
#ifndef NDEBUG
  for (int64_t n = 0; n < a.positions.numel() && !a.positions.empty(); ++n) {
    assert(a.positions.as<int32_t>()[n] >= 0 && a.positions.as<int32_t>()[n] < a.table.rows());
  }
#endif
  auto kernel = cpu::rope_kernels().rotate[a.qkv.dtype];
  parallel_for(a.qkv.rows(), 16, [&](int64_t begin, int64_t end) {
    raise_amax(a.amax, kernel(a, {begin, end, a.qkv.cols()}));
  });
}

}  // namespace

void fill_rope_table(float* table, int64_t positions, int64_t head_dim, double theta,
                     const std::optional<RopeScaling>& scaling) {
  if (head_dim <= 0 || head_dim % 2 != 0) {
    fail<ConfigError>("rope", "head dimension is {}, expected an even number: it is rotated in pairs",
                      head_dim);
  }
  if (!(theta > 0)) fail<ConfigError>("rope", "theta is {}, expected a positive number", theta);
  if (scaling && !(scaling->factor > 0 && scaling->low_freq_factor > 0 &&
                   scaling->high_freq_factor > scaling->low_freq_factor &&
                   scaling->original_max_position_embeddings > 0)) {
    fail<ConfigError>("rope",
                      "scaling has factor {}, low_freq_factor {}, high_freq_factor {}, "
                      "original_max_position_embeddings {}: expected positive numbers with low below high",
                      scaling->factor, scaling->low_freq_factor, scaling->high_freq_factor,
                      scaling->original_max_position_embeddings);
  }
  const int64_t half = head_dim / 2;
  parallel_for(positions, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < half; ++i) {
      const double f = frequency(i, head_dim, theta, scaling);
      for (int64_t p = begin; p < end; ++p) {
        table[p * head_dim + i] = static_cast<float>(std::cos(p * f));
        table[p * head_dim + half + i] = static_cast<float>(std::sin(p * f));
      }
    }
  });
}

void rope(Stream& stream, const Rope& args) {
  check(args);
  const int64_t values = args.qkv.rows() * args.heads.kv_heads * args.heads.head_dim;
  const int64_t moved = 2 * (args.qkv.numel() - values) + (args.amax.empty() ? 0 : values);
  run_op(stream, {.op = "rope", .bytes = static_cast<double>(moved) * size_of(args.qkv.dtype)}, rope,
         rope_on_cpu, cuda::rope, args);
}

}  // namespace ottava
