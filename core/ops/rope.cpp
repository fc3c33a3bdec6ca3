#include "core/ops/rope.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/ops/rope_kernels.h"
#include "core/raise_amax.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

// How much of a frequency is kept, 0 to 1; the rest is divided by the factor.
double kept_as_in_llama3(double f, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / f,
               rotations = s.original_max_position_embeddings / wavelength;
  return std::clamp((rotations - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
}

double kept_as_in_yarn(int64_t i, int64_t head_dim, double theta, const RopeScaling& s) {
  // The pair, if fractions of one existed, that turns so often within the original length.
  const auto pair_of = [&](double rotations) {
    return head_dim * std::log(s.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);  // not half of it: so does transformers
  if (low == high) high += 0.001;
  return 1 - std::clamp((i - low) / (high - low), 0.0, 1.0);
}

double frequency(int64_t i, int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling) {
  const double f = std::pow(theta, -2.0 * i / head_dim);
  if (!scaling) return f;
  double kept = 0;
  if (scaling->type == RopeScaling::Type::llama3) kept = kept_as_in_llama3(f, *scaling);
  if (scaling->type == RopeScaling::Type::yarn) kept = kept_as_in_yarn(i, head_dim, theta, *scaling);
  return (1 - kept) * f / scaling->factor + kept * f;
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

double attention_factor_of(const RopeScaling& s) {
  if (s.type != RopeScaling::Type::yarn) return 1;
  const auto grown = [&](double by) { return 1 + 0.1 * by * std::log(std::max(s.factor, 1.0)); };
  return s.attention_factor.value_or(s.mscale == 0 ? grown(1) : grown(s.mscale) / grown(s.mscale_all_dim));
}

std::string what_is_wrong(const RopeScaling& s, double theta) {
  // Those of other types have their defaults, which are right.
  for (const auto& [name, value] : {std::pair<std::string_view, double>{"factor", s.factor},
                                    {"low_freq_factor", s.low_freq_factor},
                                    {"high_freq_factor", s.high_freq_factor},
                                    {"original_max_position_embeddings", s.original_max_position_embeddings},
                                    {"beta_fast", s.beta_fast},
                                    {"beta_slow", s.beta_slow},
                                    {"attention_factor", attention_factor_of(s)}}) {
    if (!(value > 0) || !std::isfinite(value))
      return fmt::format("{} is {}, expected more than 0", name, value);
  }
  if (s.high_freq_factor <= s.low_freq_factor)
    return fmt::format("high_freq_factor is {}, expected more than low_freq_factor {}", s.high_freq_factor,
                       s.low_freq_factor);
  if (s.beta_fast < s.beta_slow)
    return fmt::format("beta_fast is {}, expected at least beta_slow {}", s.beta_fast, s.beta_slow);
  if (s.type == RopeScaling::Type::yarn && theta <= 1)
    return fmt::format("rope_theta is {}, expected more than 1 where the rope type is yarn", theta);
  return {};
}

void fill_rope_table(float* table, int64_t positions, int64_t head_dim, double theta,
                     const std::optional<RopeScaling>& scaling) {
  if (head_dim <= 0 || head_dim % 2 != 0) {
    fail<ConfigError>("rope", "head dimension is {}, expected an even number: it is rotated in pairs",
                      head_dim);
  }
  if (!(theta > 0)) fail<ConfigError>("rope", "theta is {}, expected a positive number", theta);
  if (const std::string wrong = scaling ? what_is_wrong(*scaling, theta) : ""; !wrong.empty())
    fail<ConfigError>("rope", "scaling: {}", wrong);
  const double size = scaling ? attention_factor_of(*scaling) : 1;
  const int64_t half = head_dim / 2;
  parallel_for(positions, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < half; ++i) {
      const double f = frequency(i, head_dim, theta, scaling);
      for (int64_t p = begin; p < end; ++p) {
        table[p * head_dim + i] = static_cast<float>(size * std::cos(p * f));
        table[p * head_dim + half + i] = static_cast<float>(size * std::sin(p * f));
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
