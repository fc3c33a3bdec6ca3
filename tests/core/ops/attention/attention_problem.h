#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/cuda/fused_attention.h"
#include "core/ops/attention/attention.h"
#include "core/threads/parallel_for.h"
#include "tests/core/ops/attention/attention_reference.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

namespace ottava::test::attention {

/// One token; less than a vector; odd lengths around tiles of 128 queries and 256 keys; groups of heads,
/// among them one whose size is not a power of two and one with more heads than a tile has rows to spare;
/// several key tiles.
inline const Case kCases[] = {{1, 1, 1, 8, 1},    {2, 2, 2, 16, 7},   {1, 4, 2, 8, 37},    {1, 2, 1, 64, 130},
                              {1, 3, 1, 24, 300}, {2, 4, 2, 16, 257}, {1, 1, 1, 128, 256}, {1, 16, 1, 16, 70},
                              {1, 2, 2, 32, 650}, {1, 2, 1, 48, 90}};

inline bool runs_on(Stream& stream, const Case& c) {
  const int64_t d = c.head_dim;
  return stream.type() != DeviceType::cuda || d == 16 || d == 32 || d == 64 || d == 128;
}

/// Tensors of one case on a device, and the two calls.
struct Problem {
  Problem(Stream& stream, DType dtype, const Case& c, std::span<const float> qkv_values, bool documents,
          cuda::FusedAttention* fused = nullptr)
      : c(c),
        qkv(stream, dtype, {c.tokens(), c.layout().row()}, qkv_values),
        out(stream, dtype, {c.tokens(), c.heads * c.head_dim}),
        lse(stream, DType::f32, {c.batch, c.heads, c.sequence}),
        dout(stream, dtype, {c.tokens(), c.heads * c.head_dim}),
        dqkv(stream, dtype, {c.tokens(), c.layout().row()}),
        starts(stream, DType::i32, {c.tokens()}),
        documents(documents),
        fused(fused) {
    starts.upload_as<int32_t>(document_starts(c));
  }
  void run(Stream& stream, Pass pass, const Tensor& workspace, const SeparateKeys& keys = {}) {
    const Tensor document_start = documents ? starts.tensor() : Tensor{};
    if (pass == Pass::forward) {
      return attention_forward(stream, {.qkv = qkv,
                                        .out = out,
                                        .lse = lse,
                                        .document_start = document_start,
                                        .workspace = workspace,
                                        .heads = c.layout(),
                                        .batch = c.batch,
                                        .sequence = c.sequence,
                                        .keys = keys,
                                        .fused = fused});
    }
    attention_backward(stream, {.qkv = qkv,
                                .out = out,
                                .lse = lse,
                                .dout = dout,
                                .dqkv = dqkv,
                                .document_start = document_start,
                                .workspace = workspace,
                                .heads = c.layout(),
                                .batch = c.batch,
                                .sequence = c.sequence,
                                .keys = keys,
                                .fused = fused});
  }
  void run(Stream& stream, Pass pass, const SeparateKeys& keys = {}) {
    DeviceBuffer workspace(stream, DType::u8, {bytes(stream, pass, keys)});
    run(stream, pass, workspace, keys);
  }
  void forward(Stream& stream) { run(stream, Pass::forward); }
  void backward(Stream& stream) { run(stream, Pass::backward); }
  int64_t bytes(Stream& stream, Pass pass, const SeparateKeys& keys = {}) const {
    return attention_workspace_bytes(stream, pass, qkv.tensor().dtype, c.layout(), c.batch, c.sequence, fused,
                                     keys);
  }

  Case c;
  DeviceBuffer qkv, out, lse, dout, dqkv, starts;
  bool documents;
  cuda::FusedAttention* fused;
};

/// Forward and backward of one case against the reference.
inline void check_values(Stream& stream, DType dtype, const Case& c, bool documents,
                         const std::vector<float>& qkv, cuda::FusedAttention* fused = nullptr) {
  INFO("B " << c.batch << " H " << c.heads << "/" << c.kv_heads << " D " << c.head_dim << " T " << c.sequence
            << " documents " << documents << " threads " << parallel_threads());
  auto dout = normal_values(c.tokens() * c.heads * c.head_dim, 2, dtype);
  const Reference want(c, documents ? document_starts(c) : std::vector<int32_t>{}, as_double(qkv));
  Problem problem(stream, dtype, c, qkv, documents, fused);
  problem.dout.upload(dout);
  problem.forward(stream);
  auto out = problem.out.floats();
  check_close(out, want.out, want.allowed(dtype, c.sequence), want.out_size);
  std::vector<double> lse_size(want.lse.size(), 1.0);
  check_close(problem.lse.floats(), want.lse, want.allowed_lse(), lse_size);

  problem.backward(stream);
  auto gradient = want.backward(as_double(qkv), as_double(dout), as_double(out));
  // Probabilities below 2^-126 may be taken for that.
  for (double& size : gradient.size) size = std::max(size, 1e-30);
  check_close(problem.dqkv.floats(), gradient.dqkv, want.allowed(dtype, c.group() * c.sequence),
              gradient.size);
}
inline void check_case(Stream& stream, DType dtype, const Case& c, bool documents, float deviation,
                       cuda::FusedAttention* fused = nullptr) {
  check_values(stream, dtype, c, documents, normal_values(c.tokens() * c.layout().row(), 1, dtype, deviation),
               fused);
}

}  // namespace ottava::test::attention
