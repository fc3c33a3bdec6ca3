#include "core/cost.h"
#include "tests/core/ops/attention/attention_problem.h"

// What attention costs, what it needs and what it refuses.
using namespace ottava;
using namespace ottava::test;
using namespace ottava::test::attention;

TEST_CASE("attention's workspace grows no faster than the sequence") {
  Stream stream = Stream::cpu();
  const AttentionHeads heads{8, 8, 64};
  for (Pass pass : {Pass::forward, Pass::backward}) {
    const int64_t small = attention_workspace_bytes(stream, pass, DType::bf16, heads, 8, 1024);
    const int64_t large = attention_workspace_bytes(stream, pass, DType::bf16, heads, 8, 4096);
    CHECK(large <= 4 * small);
  }
}

TEST_CASE("attention on meta records the FLOPs of what is computed") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const AttentionHeads heads{4, 2, 16};
  const Tensor qkv = shape_only(DType::bf16, {2 * 10, heads.row()}),
               out = shape_only(DType::bf16, {2 * 10, 64}), lse = shape_only(DType::f32, {2, 4, 10});
  const double pairs = 2 * 4 * 55, qkv_bytes = 20 * 128 * 2, out_bytes = 20 * 64 * 2, lse_bytes = 80 * 4;
  attention_forward(stream, {.qkv = qkv, .out = out, .lse = lse, .heads = heads, .batch = 2, .sequence = 10});
  CHECK(recorder.flops(Precision::bf16) == 4 * 16 * pairs);
  CHECK(recorder.bytes() == qkv_bytes + out_bytes + lse_bytes);
  attention_backward(stream, {.qkv = qkv,
                              .out = out,
                              .lse = lse,
                              .dout = out,
                              .dqkv = qkv,
                              .heads = heads,
                              .batch = 2,
                              .sequence = 10});
  CHECK(recorder.flops(Precision::bf16) == 14 * 16 * pairs);
  CHECK(recorder.bytes() == 3 * qkv_bytes + 3 * out_bytes + 2 * lse_bytes);
  recorder.clear();
  const Tensor q = shape_only(DType::f32, {2, 64}), cache = shape_only(DType::f32, {2, 32, 32});
  attention_decode(stream, {.q = q, .keys = cache, .values = cache, .out = q, .heads = heads, .length = 10});
  CHECK(recorder.flops(Precision::fp32) == 4.0 * 2 * 64 * 10);
  CHECK(recorder.bytes() == 2.0 * 2 * 32 * 10 * 4);
}

TEST_CASE("attention refuses what does not fit, and says what") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const AttentionHeads heads{4, 2, 16};
  const Tensor qkv = shape_only(DType::bf16, {20, 128}), out = shape_only(DType::bf16, {20, 64}),
               lse = shape_only(DType::f32, {2, 4, 10}), starts = shape_only(DType::i32, {20});
  const AttentionForward forward{.qkv = qkv,
                                 .out = out,
                                 .lse = lse,
                                 .document_start = starts,
                                 .heads = heads,
                                 .batch = 2,
                                 .sequence = 10};
  auto says = [&](auto&& change, const std::string& message) {
    AttentionForward args = forward;
    change(args);
    CHECK_THROWS_WITH(attention_forward(stream, args), "[attention_forward] " + message);
    CHECK_THROWS_AS(attention_forward(stream, args), ShapeError);
  };
  attention_forward(stream, forward);
  says([](auto& a) { a.heads.kv_heads = 3; },
       "4 heads cannot share 3 key heads: the first must be a multiple of the second");
  says([](auto& a) { a.heads.heads = 0; },
       "0 heads cannot share 2 key heads: the first must be a multiple of the second");
  says([](auto& a) { a.heads.head_dim = 12; }, "head dimension is 12, expected a multiple of 8 up to 512");
  says([](auto& a) { a.heads.head_dim = 1024; },
       "head dimension is 1024, expected a multiple of 8 up to 512");
  says([](auto& a) { a.sequence = 0; }, "batch 2 and sequence 0: both must be at least 1");
  says([](auto& a) { a.qkv.dtype = DType::u8; }, "qkv is u8 [20, 128], expected f32 or bf16");
  says([](auto& a) { a.qkv.shape = {20, 64}; }, "qkv is bf16 [20, 64], expected bf16 [20, 128]");
  says([](auto& a) { a.out.dtype = DType::f32; }, "out is f32 [20, 64], expected bf16 [20, 64]");
  says([](auto& a) { a.lse.shape = {20, 4}; }, "lse is f32 [20, 4], expected f32 [2, 4, 10]");
  says([](auto& a) { a.document_start.shape = {2, 10}; }, "document_start is i32 [2, 10], expected i32 [20]");

  const AttentionBackward backward{.qkv = qkv,
                                   .out = out,
                                   .lse = lse,
                                   .dout = out,
                                   .dqkv = qkv,
                                   .heads = heads,
                                   .batch = 2,
                                   .sequence = 10};
  auto backward_says = [&](auto&& change, const std::string& message) {
    AttentionBackward args = backward;
    change(args);
    CHECK_THROWS_WITH(attention_backward(stream, args), "[attention_backward] " + message);
  };
  attention_backward(stream, backward);
  backward_says([](auto& a) { a.qkv.shape = {20, 64}; }, "qkv is bf16 [20, 64], expected bf16 [20, 128]");
  backward_says([](auto& a) { a.dout.dtype = DType::f32; },
                "dout is f32 [20, 64], expected bf16 [20, 64] (like out)");
  backward_says(
      [](auto& a) {
        a.dqkv.shape = {20, 64};
      },
      "dqkv is bf16 [20, 64], expected bf16 [20, 128] (like qkv)");

  const Tensor q = shape_only(DType::bf16, {2, 64}), cache = shape_only(DType::bf16, {2, 32, 32});
  const AttentionDecode decode{
      .q = q, .keys = cache, .values = cache, .out = q, .heads = heads, .length = 10};
  auto decode_says = [&](auto&& change, const std::string& message) {
    AttentionDecode args = decode;
    change(args);
    CHECK_THROWS_WITH(attention_decode(stream, args), "[attention_decode] " + message);
  };
  attention_decode(stream, decode);
  decode_says([](auto& a) { a.heads.head_dim = 4; },
              "head dimension is 4, expected a multiple of 8 up to 512");
  decode_says([](auto& a) { a.q.dtype = DType::u8; }, "q is u8 [2, 64], expected f32 or bf16");
  decode_says([](auto& a) { a.keys.shape = {64, 32}; }, "keys is bf16 [64, 32], expected [B, capacity, 32]");
  decode_says([](auto& a) { a.q.shape = {3, 64}; }, "q is bf16 [3, 64], expected bf16 [2, 64]");
  decode_says(
      [](auto& a) {
        a.keys.shape = {2, 32, 16};
      },
      "keys is bf16 [2, 32, 16], expected bf16 [2, 32, 32]");
  decode_says([](auto& a) { a.values.dtype = DType::f32; },
              "values is f32 [2, 32, 32], expected bf16 [2, 32, 32] (like keys)");
  decode_says([](auto& a) { a.out.shape = {2, 32}; }, "out is bf16 [2, 32], expected bf16 [2, 64] (like q)");
  decode_says([](auto& a) { a.length = 33; }, "length is 33, expected 1 to the cache's capacity 32");
  decode_says([](auto& a) { a.length = 0; }, "length is 0, expected 1 to the cache's capacity 32");

  CHECK_THROWS_WITH(attention_workspace_bytes(stream, Pass::forward, DType::u8, heads, 2, 10),
                    "[attention_workspace_bytes] qkv is u8 [20, 128], expected f32 or bf16");
  CHECK_THROWS_WITH(attention_workspace_bytes(stream, Pass::forward, DType::bf16, heads, 0, 10),
                    "[attention_workspace_bytes] batch 0 and sequence 10: both must be at least 1");
  CostRecorder for_gpu;
  Stream planned = Stream::meta(for_gpu, {DeviceType::cuda, 0});
  CHECK_THROWS_WITH(attention_workspace_bytes(planned, Pass::forward, DType::bf16, {4, 2, 24}, 2, 10),
                    "[attention_workspace_bytes] head dimension is 24, expected 16, 32, 64 or 128 on cuda");
}

TEST_CASE("attention without enough workspace says how much it needs") {
  Stream stream = Stream::cpu();
  const Case c{1, 2, 1, 16, 40};
  Problem problem(stream, DType::bf16, c, normal_values(c.tokens() * c.layout().row(), 1), false);
  for (Pass pass : {Pass::forward, Pass::backward}) {
    const int64_t needed = problem.bytes(stream, pass);
    auto call = [&](const Tensor& workspace) { problem.run(stream, pass, workspace); };
    const std::string op = pass == Pass::forward ? "[attention_forward] " : "[attention_backward] ";
    const std::string expected = ", expected u8 with at least " + std::to_string(needed) +
                                 " elements: attention_workspace_bytes says how many";
    DeviceBuffer enough(stream, DType::u8, {needed + 64}), small(stream, DType::u8, {needed - 1});
    CHECK_THROWS_WITH(call({}), op + "workspace is f32 []" + expected);
    CHECK_THROWS_WITH(call(small), op + "workspace is u8 [" + std::to_string(needed - 1) + "]" + expected);
    CHECK_THROWS_AS(call(small), MemoryError);
    CHECK_THROWS_WITH(call(enough.tensor().slice(1, needed + 1)),
                      Catch::Matchers::StartsWith(op + "workspace at 0x") &&
                          Catch::Matchers::EndsWith(" is not aligned to 64 bytes"));
    call(enough);
  }
}
