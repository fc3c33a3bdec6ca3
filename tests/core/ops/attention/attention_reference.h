#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/ops/attention/attention.h"
#include "tests/support/tolerance.h"

// Attention by its definition, in FP64, forward and backward, with the sizes that errors are measured by.
namespace ottava::test::attention {

struct Case {
  int64_t batch, heads, kv_heads, head_dim, sequence;
  AttentionHeads layout() const { return {heads, kv_heads, head_dim}; }
  int64_t tokens() const { return batch * sequence; }
  int64_t group() const { return heads / kv_heads; }
};

/// Documents of lengths 1, 5, 90 and what remains.
inline std::vector<int32_t> document_starts(const Case& c) {
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int32_t t = 0; t < c.sequence; ++t) starts.push_back(t < 1 ? 0 : t < 6 ? 1 : t < 96 ? 6 : 96);
  }
  return starts;
}

/// Attention by its definition, in FP64.
struct Reference {
  Case c;
  std::vector<int32_t> starts;  ///< empty: no documents
  std::vector<double> out, lse, out_size, p;
  double largest_exponent = 0;  ///< largest scale * sum |q k|: what errors of the scores are relative to

  Reference(const Case& c, std::vector<int32_t> starts, const std::vector<double>& qkv)
      : c(c), starts(std::move(starts)) {
    const int64_t t_count = c.sequence, d = c.head_dim;
    out.resize(size_t(c.tokens() * c.heads * d));
    out_size.resize(out.size());
    lse.resize(size_t(c.batch * c.heads * t_count));
    p.resize(size_t(c.batch * c.heads * t_count * t_count));
    for_each_query([&](int64_t b, int64_t h, int64_t i, int64_t begin) {
      std::vector<double> s(static_cast<size_t>(i + 1));
      double top = -INFINITY, sum = 0;
      for (int64_t j = begin; j <= i; ++j) {
        double dot = 0, size = 0;
        for (int64_t e = 0; e < d; ++e) {
          const double term = qkv[q_at(b, h, i) + size_t(e)] * qkv[k_at(b, h, j) + size_t(e)];
          dot += term;
          size += std::abs(term);
        }
        s[size_t(j)] = dot * scale();
        largest_exponent = std::max(largest_exponent, size * scale());
        top = std::max(top, s[size_t(j)]);
      }
      for (int64_t j = begin; j <= i; ++j) sum += std::exp(s[size_t(j)] - top);
      lse[size_t((b * c.heads + h) * t_count + i)] = top + std::log(sum);
      for (int64_t j = begin; j <= i; ++j) {
        const double weight = std::exp(s[size_t(j)] - top) / sum;
        p[p_at(b, h, i, j)] = weight;
        for (int64_t e = 0; e < d; ++e) {
          out[o_at(b, h, i) + size_t(e)] += weight * qkv[v_at(b, h, j) + size_t(e)];
          out_size[o_at(b, h, i) + size_t(e)] += weight * std::abs(qkv[v_at(b, h, j) + size_t(e)]);
        }
      }
    });
  }

  struct Gradient {
    std::vector<double> dqkv, size;
  };
  /// delta comes from `stored_out`, the output as the operation is given it.
  Gradient backward(const std::vector<double>& qkv, const std::vector<double>& dout,
                    const std::vector<double>& stored_out) const {
    Gradient g{std::vector<double>(qkv.size()), std::vector<double>(qkv.size())};
    const size_t d = size_t(c.head_dim);
    for_each_query([&](int64_t b, int64_t h, int64_t i, int64_t begin) {
      double delta = 0, delta_size = 0;
      for (size_t e = 0; e < d; ++e) {
        delta += dout[o_at(b, h, i) + e] * stored_out[o_at(b, h, i) + e];
        delta_size += std::abs(dout[o_at(b, h, i) + e] * stored_out[o_at(b, h, i) + e]);
      }
      for (int64_t j = begin; j <= i; ++j) {
        const double weight = p[p_at(b, h, i, j)];
        double dp = 0, dp_size = 0;
        for (size_t e = 0; e < d; ++e) {
          const double go = dout[o_at(b, h, i) + e], v = qkv[v_at(b, h, j) + e];
          dp += go * v;
          dp_size += std::abs(go * v);
          add(g, v_at(b, h, j) + e, weight * go, std::abs(weight * go));
        }
        const double ds = weight * (dp - delta) * scale(),
                     ds_size = weight * (dp_size + delta_size) * scale();
        for (size_t e = 0; e < d; ++e) {
          const double q = qkv[q_at(b, h, i) + e], k = qkv[k_at(b, h, j) + e];
          add(g, q_at(b, h, i) + e, ds * k, ds_size * std::abs(k));
          add(g, k_at(b, h, j) + e, ds * q, ds_size * std::abs(q));
        }
      }
    });
    return g;
  }

  /// f32 arithmetic with probabilities (and their gradients) rounded once more where tiles are bf16: an error
  /// of the exponent is a relative error of the probability.
  Tolerance allowed(DType dtype, int64_t terms) const {
    const double u = unit_roundoff(DType::f32);
    const double exponent = largest_exponent * (sum_roundoff(c.head_dim) + 4 * u);
    const double operand = dtype == DType::bf16 ? 2 * unit_roundoff(DType::bf16) : 0;
    return {.stored = unit_roundoff(dtype),
            .arithmetic = 2 * exponent + 16 * u + sum_roundoff(terms) + sum_roundoff(c.head_dim) + operand};
  }
  Tolerance allowed_lse() const {
    const double u = unit_roundoff(DType::f32);
    return {.stored = 4 * u,
            .arithmetic =
                largest_exponent * (sum_roundoff(c.head_dim) + 4 * u) + sum_roundoff(c.sequence) + 8 * u};
  }

 private:
  static void add(Gradient& g, size_t at, double value, double size) {
    g.dqkv[at] += value;
    g.size[at] += size;
  }
  template <class F>
  void for_each_query(F&& visit) const {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.sequence; ++i)
          visit(b, h, i, starts.empty() ? 0 : starts[size_t(b * c.sequence + i)]);
      }
    }
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(c.head_dim)); }
  size_t q_at(int64_t b, int64_t h, int64_t t) const {
    return size_t((b * c.sequence + t) * c.layout().row() + h * c.head_dim);
  }
  size_t k_at(int64_t b, int64_t h, int64_t t) const { return q_at(b, c.heads + h / c.group(), t); }
  size_t v_at(int64_t b, int64_t h, int64_t t) const {
    return q_at(b, c.heads + c.kv_heads + h / c.group(), t);
  }
  size_t o_at(int64_t b, int64_t h, int64_t t) const {
    return size_t(((b * c.sequence + t) * c.heads + h) * c.head_dim);
  }
  size_t p_at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return size_t(((b * c.heads + h) * c.sequence + i) * c.sequence + j);
  }
};

}  // namespace ottava::test::attention
