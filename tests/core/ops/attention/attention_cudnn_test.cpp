#include "tests/core/ops/attention/attention_problem.h"
#include "tests/core/ops/attention/cudnn_or_skipped.h"

using namespace ottava;
using namespace ottava::test;
using namespace ottava::test::attention;

namespace {
const Device kGpu{DeviceType::cuda, 0};
}  // namespace

TEST_CASE("cuDNN's attention agrees with the reference and repeats bitwise, and its lse is ours") {
  const auto fused = cudnn_or_skipped();
  if (!fused) return;
  Stream stream = stream_on(kGpu);
  for (const Case& c : kCases) {
    if (!runs_on(stream, c)) continue;
    check_case(stream, DType::bf16, c, false, 1.0f, fused.get());
    auto qkv = normal_values(c.tokens() * c.layout().row(), 1, DType::bf16);
    auto dout = normal_values(c.tokens() * c.heads * c.head_dim, 2, DType::bf16);
    Problem theirs(stream, DType::bf16, c, qkv, false, fused.get()), ours(stream, DType::bf16, c, qkv, false);
    std::vector<float> first;
    for (int run = 0; run < 2; ++run) {
      theirs.dout.upload(dout);
      theirs.forward(stream);
      theirs.backward(stream);
      if (run == 0) first = theirs.dqkv.floats();
    }
    CHECK(first == theirs.dqkv.floats());
    ours.forward(stream);
    const auto a = theirs.lse.floats(), b = ours.lse.floats();
    for (size_t i = 0; i < a.size(); ++i) REQUIRE(a[i] == Approx(b[i]).margin(2e-2));
  }
  const size_t planned = fused->size();
  fused->latch();
  check_case(stream, DType::bf16, kCases[1], false, 1.0f, fused.get());
  CHECK(fused->size() == planned);
  CHECK_THROWS_WITH(
      fused->workspace_bytes({.pass = Pass::forward, .heads = {1, 1, 16}, .batch = 3, .sequence = 5}),
      "[attention] 3 sequences of 5 tokens were not planned with cuDNN before the first step");
}

TEST_CASE("what cuDNN's attention does not take is refused") {
  const auto fused = cudnn_or_skipped();
  if (!fused) return;
  Stream stream = stream_on(kGpu);
  const Case c{1, 2, 1, 16, 40};
  const auto values = normal_values(c.tokens() * c.layout().row(), 1);
  Problem wide(stream, DType::f32, c, values, false, fused.get()),
      documents(stream, DType::bf16, c, values, true, fused.get()),
      good(stream, DType::bf16, c, values, false, fused.get());
  CHECK_THROWS_WITH(wide.forward(stream), Catch::Contains("[attention_forward] qkv is f32") &&
                                              Catch::Contains("cuDNN's attention needs bf16"));
  CHECK_THROWS_WITH(documents.backward(stream),
                    "[attention_backward] cuDNN's attention does not support documents: use flash attention");
  const AttentionBackward args{.qkv = good.qkv,
                               .out = good.out,
                               .lse = good.lse,
                               .dout = good.dout,
                               .dqkv = good.dqkv,
                               .document_start = {},
                               .workspace = {},
                               .heads = c.layout(),
                               .batch = 1,
                               .sequence = 40,
                               .fused = fused.get()};
  if (good.bytes(stream, Pass::backward) > 0) {
    CHECK_THROWS_WITH(attention_backward(stream, args),
                      Catch::Contains("[attention_backward] workspace is ") && Catch::Contains("for cuDNN"));
  }
}
