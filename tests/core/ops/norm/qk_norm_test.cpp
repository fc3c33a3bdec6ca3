#include "core/ops/norm/qk_norm.h"

#include <array>
#include <cstring>

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

struct Size {
  int64_t rows;
  AttentionHeads heads;
};
// Of the last, a warp on CUDA has several heads, one after the other.
const Size kSizes[] = {
    {1, {1, 1, 1}}, {5, {4, 2, 16}}, {70, {3, 1, 24}}, {3, {2, 2, 128}}, {1100, {3, 1, 4}}};
constexpr float kEps = 1e-6f;

/// The heads of qkv one by one: body(index of the head's first element, head, row).
template <class Body>
void for_each_head(const Size& s, Body&& body) {
  for (int64_t n = 0; n < s.rows; ++n) {
    for (int64_t h = 0; h < s.heads.heads + s.heads.kv_heads; ++h) {
      body(static_cast<size_t>(n * s.heads.row() + h * s.heads.head_dim), h, n);
    }
  }
}

struct Weights {
  std::vector<double> q, k;
  const std::vector<double>& of(int64_t head, const Size& s) const { return head < s.heads.heads ? q : k; }
};

std::vector<double> reference_forward(const std::vector<double>& qkv, const Weights& weights, const Size& s,
                                      std::vector<double>* rstd = nullptr) {
  std::vector<double> out = qkv;
  const size_t dim = static_cast<size_t>(s.heads.head_dim);
  for_each_head(s, [&](size_t start, int64_t head, int64_t) {
    double squares = 0;
    for (size_t d = 0; d < dim; ++d) squares += qkv[start + d] * qkv[start + d];
    const double r = 1 / std::sqrt(squares / static_cast<double>(dim) + kEps);
    if (rstd) rstd->push_back(r);
    for (size_t d = 0; d < dim; ++d) out[start + d] = qkv[start + d] * r * weights.of(head, s)[d];
  });
  return out;
}

struct Gradients {
  std::vector<double> dqkv, dqkv_size;
  std::vector<double> dq, dq_size, dk, dk_size;  ///< of the weights
};
Gradients reference_backward(const std::vector<double>& dout, const std::vector<double>& qkv,
                             const Weights& weights, const std::vector<double>& rstd, const Size& s) {
  const size_t dim = static_cast<size_t>(s.heads.head_dim);
  std::vector<double> zero(dim);
  Gradients r{dout, as_double(std::vector<float>(dout.size(), 0.0f)), zero, zero, zero, zero};
  size_t index = 0;
  for_each_head(s, [&](size_t start, int64_t head, int64_t) {
    const std::vector<double>& w = weights.of(head, s);
    const double scale = rstd[index++];
    double sum = 0, size = 0;
    for (size_t d = 0; d < dim; ++d) {
      sum += dout[start + d] * w[d] * qkv[start + d];
      size += std::abs(dout[start + d] * w[d] * qkv[start + d]);
    }
    const double slope = scale * scale / static_cast<double>(dim);
    const bool query = head < s.heads.heads;
    for (size_t d = 0; d < dim; ++d) {
      const size_t i = start + d;
      r.dqkv[i] = scale * (dout[i] * w[d] - qkv[i] * slope * sum);
      r.dqkv_size[i] = scale * (std::abs(dout[i] * w[d]) + std::abs(qkv[i]) * slope * size);
      (query ? r.dq : r.dk)[d] += dout[i] * qkv[i] * scale;
      (query ? r.dq_size : r.dk_size)[d] += std::abs(dout[i] * qkv[i] * scale);
    }
  });
  return r;
}

}  // namespace

TEST_CASE("qk_norm: the FP64 reference's backward is the derivative of its forward") {
  const Size s{2, {2, 1, 3}};
  const int64_t n = s.rows * s.heads.row();
  auto qkv = as_double(normal_values(n, 1)), dout = as_double(normal_values(n, 2));
  Weights weights{as_double(normal_values(3, 3)), as_double(normal_values(3, 4))};
  std::vector<double> rstd;
  reference_forward(qkv, weights, s, &rstd);
  Gradients g = reference_backward(dout, qkv, weights, rstd, s);
  check_gradient([&](const auto& x) { return dot(reference_forward(x, weights, s), dout); }, qkv, g.dqkv);
  check_gradient(
      [&](const auto& w) {
        return dot(reference_forward(qkv, {w, weights.k}, s), dout);
      },
      weights.q, g.dq);
  check_gradient(
      [&](const auto& w) {
        return dot(reference_forward(qkv, {weights.q, w}, s), dout);
      },
      weights.k, g.dk);
}

TEST_CASE("qk_norm_forward agrees with the reference and copies the values, in place too") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& s : kSizes) {
      const int64_t dim = s.heads.head_dim;
      INFO("rows " << s.rows << " head dim " << dim);
      const Shape shape{s.rows, s.heads.row()};
      auto qkv = normal_values(shape.numel(), 1, dtype), q = normal_values(dim, 2, dtype),
           k = normal_values(dim, 3, dtype);
      DeviceBuffer qkv_NR(stream, dtype, shape, qkv), weight_q(stream, dtype, {dim}, q),
          weight_k(stream, dtype, {dim}, k), out(stream, dtype, shape),
          rstd(stream, DType::f32, {s.rows, s.heads.heads + s.heads.kv_heads});
      QkNormForward args{.qkv = qkv_NR,
                         .weight_q = weight_q,
                         .weight_k = weight_k,
                         .out = out,
                         .rstd = rstd,
                         .heads = s.heads,
                         .eps = kEps};
      qk_norm_forward(stream, args);
      std::vector<double> want_rstd;
      auto want = reference_forward(as_double(qkv), {as_double(q), as_double(k)}, s, &want_rstd);
      check_close(out.floats(), want, tolerance(dtype, 6, dim));
      check_close(rstd.floats(), want_rstd, tolerance(DType::f32, 4, dim));
      auto got = out.floats();
      const size_t row = static_cast<size_t>(s.heads.row()),
                   values = static_cast<size_t>(s.heads.kv_heads * dim);
      for (size_t end = row; end <= got.size(); end += row) {
        for (size_t i = end - values; i < end; ++i) CHECK(got[i] == qkv[i]);
      }
      args.out = qkv_NR;
      qk_norm_forward(stream, args);
      CHECK(qkv_NR.floats() == got);
    }
  });
}

TEST_CASE("qk_norm_backward agrees with the reference and leaves the values' gradient alone") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& s : kSizes) {
      const int64_t dim = s.heads.head_dim, heads = s.heads.heads + s.heads.kv_heads;
      INFO("rows " << s.rows << " head dim " << dim);
      const Shape shape{s.rows, s.heads.row()};
      auto qkv = normal_values(shape.numel(), 1, dtype), q = normal_values(dim, 2, dtype),
           k = normal_values(dim, 3, dtype);
      auto dout = normal_values(shape.numel(), 4, dtype), before = normal_values(dim, 5);
      Weights weights{as_double(q), as_double(k)};
      std::vector<double> exact;
      reference_forward(as_double(qkv), weights, s, &exact);
      auto rstd = as_float(exact);
      Gradients want = reference_backward(as_double(dout), as_double(qkv), weights, as_double(rstd), s);
      for (size_t d = 0; d < before.size(); ++d) {
        for (auto [value, size] : {std::pair{&want.dq, &want.dq_size}, std::pair{&want.dk, &want.dk_size}}) {
          (*value)[d] += before[d];
          (*size)[d] += std::abs(before[d]);
        }
      }
      DeviceBuffer qkv_NR(stream, dtype, shape, qkv), weight_q(stream, dtype, {dim}, q),
          weight_k(stream, dtype, {dim}, k), dqkv(stream, dtype, shape), dweight_q(stream, DType::f32, {dim}),
          dweight_k(stream, DType::f32, {dim}), rstd_NH(stream, DType::f32, {s.rows, heads}, rstd),
          workspace(stream, DType::f32, qk_norm_workspace(stream, s.heads));
      std::vector<float> first;
      for_each_thread_count([&](int) {
        dqkv.upload(dout);
        dweight_q.upload(before);
        dweight_k.upload(before);
        qk_norm_backward(stream, {.dqkv = dqkv,
                                  .qkv = qkv_NR,
                                  .weight_q = weight_q,
                                  .weight_k = weight_k,
                                  .rstd = rstd_NH,
                                  .dweight_q = dweight_q,
                                  .dweight_k = dweight_k,
                                  .workspace = workspace,
                                  .heads = s.heads});
        auto all = dqkv.floats();
        for (float x : dweight_q.floats()) all.push_back(x);
        for (float x : dweight_k.floats()) all.push_back(x);
        if (first.empty()) first = all;
        CHECK(std::memcmp(first.data(), all.data(), all.size() * sizeof(float)) == 0);
      });
      check_close(dqkv.floats(), want.dqkv, tolerance(dtype, 8, dim), want.dqkv_size);
      check_close(dweight_q.floats(), want.dq, tolerance(DType::f32, 4, s.rows * s.heads.heads),
                  want.dq_size);
      check_close(dweight_k.floats(), want.dk, tolerance(DType::f32, 4, s.rows * s.heads.kv_heads),
                  want.dk_size);
      auto got = dqkv.floats();
      for (size_t i = 0; i < got.size(); ++i) {
        if (want.dqkv_size[i] == 0) CHECK(got[i] == dout[i]);
      }
    }
  });
}

TEST_CASE("qk_norm_backward's amax is that of the whole row as stored, value heads too, and changes no bit") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& s : kSizes) {
      for (const float of_values :
           {0.1f, 50.0f}) {  // the largest is a query's or key's gradient, or a value's
        const int64_t dim = s.heads.head_dim, heads = s.heads.heads + s.heads.kv_heads;
        INFO("rows " << s.rows << " head dim " << dim << " values " << of_values);
        const Shape shape{s.rows, s.heads.row()};
        auto dout = normal_values(shape.numel(), 4, dtype);
        for (size_t i = 0; i < dout.size(); ++i) {
          if (static_cast<int64_t>(i) % s.heads.row() >= heads * dim) dout[i] *= of_values;
        }
        DeviceBuffer qkv(stream, dtype, shape, normal_values(shape.numel(), 1, dtype)),
            weight(stream, dtype, {dim}, normal_values(dim, 2, dtype)), dqkv(stream, dtype, shape),
            dweight(stream, DType::f32, {dim}, std::vector<float>(static_cast<size_t>(dim))),
            rstd(stream, DType::f32, {s.rows, heads}, normal_values(s.rows * heads, 3)),
            workspace(stream, DType::f32, qk_norm_workspace(stream, s.heads)), amax(stream, DType::u32, {1});
        QkNormBackward args{.dqkv = dqkv,
                            .qkv = qkv,
                            .weight_q = weight,
                            .weight_k = weight,
                            .rstd = rstd,
                            .dweight_q = dweight,
                            .dweight_k = dweight,
                            .workspace = workspace,
                            .heads = s.heads};
        dqkv.upload(dout);
        qk_norm_backward(stream, args);
        const std::vector<float> plain = dqkv.floats();
        args.amax = amax;
        const uint32_t largest = largest_bits(plain);
        for (const uint32_t before : {0u, largest + 1}) {
          amax.upload_as<uint32_t>(std::array{before});
          dqkv.upload(dout);
          qk_norm_backward(stream, args);
          CHECK(dqkv.floats() == plain);
          CHECK(amax.download_as<uint32_t>()[0] == std::max(before, largest));
        }
      }
    }
  });
}

TEST_CASE("qk_norm on meta records what crosses memory, and refuses tensors that do not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const AttentionHeads heads{4, 2, 16};
  const Tensor qkv = shape_only(DType::bf16, {6, 128}), weight = shape_only(DType::bf16, {16}),
               rstd = shape_only(DType::f32, {6, 6});
  const QkNormForward forward{
      .qkv = qkv, .weight_q = weight, .weight_k = weight, .out = qkv, .rstd = rstd, .heads = heads};
  qk_norm_forward(stream, forward);
  CHECK(recorder.bytes() == 2 * 6 * 128 * 2);
  const Shape workspace = qk_norm_workspace(stream, heads);
  const QkNormBackward backward{.dqkv = qkv,
                                .qkv = qkv,
                                .weight_q = weight,
                                .weight_k = weight,
                                .rstd = rstd,
                                .dweight_q = shape_only(DType::f32, {16}),
                                .dweight_k = shape_only(DType::f32, {16}),
                                .workspace = shape_only(DType::f32, workspace),
                                .heads = heads};
  qk_norm_backward(stream, backward);
  CHECK(recorder.bytes() == 2 * 6 * 128 * 2 + 3 * 6 * 96 * 2);
  QkNormBackward measuring = backward;
  measuring.amax = shape_only(DType::u32, {1});
  qk_norm_backward(stream, measuring);
  CHECK(recorder.bytes() == 2 * 6 * 128 * 2 + 2 * 3 * 6 * 96 * 2 + 6 * 32 * 2);

  auto both_say = [&](auto&& change, const std::string& message) {
    QkNormForward f = forward;
    QkNormBackward b = backward;
    change(f);
    change(b);
    CHECK_THROWS_WITH(qk_norm_forward(stream, f), "[qk_norm_forward] " + message);
    CHECK_THROWS_WITH(qk_norm_backward(stream, b), "[qk_norm_backward] " + message);
  };
  both_say([](auto& a) { a.qkv.dtype = DType::i32; }, "qkv is i32 [6, 128], expected f32 or bf16");
  both_say([](auto& a) { a.heads.kv_heads = 0; },
           "4 heads, 0 key-value heads of dimension 16: expected at least 1 of each");
  both_say([](auto& a) { a.qkv.shape = {6, 96}; }, "qkv is bf16 [6, 96], expected bf16 [6, 128]");
  both_say([](auto& a) { a.weight_q.shape = {8}; }, "weight_q is bf16 [8], expected bf16 [16]");
  both_say([](auto& a) { a.weight_k.dtype = DType::f32; }, "weight_k is f32 [16], expected bf16 [16]");
  both_say([](auto& a) { a.rstd.shape = {6, 4}; }, "rstd is f32 [6, 4], expected f32 [6, 6]");
  QkNormForward f = forward;
  f.out.dtype = DType::f32;
  CHECK_THROWS_WITH(qk_norm_forward(stream, f),
                    "[qk_norm_forward] out is f32 [6, 128], expected bf16 [6, 128] (like qkv)");
  auto backward_says = [&](auto&& change, const std::string& message) {
    QkNormBackward args = backward;
    change(args);
    CHECK_THROWS_WITH(qk_norm_backward(stream, args), "[qk_norm_backward] " + message);
  };
  backward_says(
      [](auto& a) {
        a.dqkv.shape = {6, 96};
      },
      "dqkv is bf16 [6, 96], expected bf16 [6, 128] (like qkv)");
  backward_says([](auto& a) { a.dweight_q.shape = {8}; }, "dweight_q is f32 [8], expected f32 [16]");
  backward_says([](auto& a) { a.dweight_k.shape = {8}; }, "dweight_k is f32 [8], expected f32 [16]");
  backward_says([](auto& a) { a.amax = shape_only(DType::u32, {2}); }, "amax is u32 [2], expected u32 [1]");
  backward_says([](auto& a) { a.workspace.shape = {8}; },
                "workspace is f32 [8], expected f32 " + to_string(workspace));
}
