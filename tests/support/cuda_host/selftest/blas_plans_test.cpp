// Plans of cuBLASLt, against the stand-in that enforces the library's rules.
#include "core/cuda/blas_plans.h"

#include "tests/support/cuda_host/selftest/fixture.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::cuda;
using namespace ottava::test;

namespace {

using Operand = BlasProblem::Operand;

/// D[16,32] = A^T[16,48] B[48,32] of one-byte floats with scales.
BlasProblem fp8_problem() {
  return {.a = DType::e4m3,
          .b = DType::e5m2,
          .d = DType::f32,
          .a_layout = Operand::transposed,
          .a_scale = BlasProblem::Scale::tensor,
          .b_scale = BlasProblem::Scale::tensor,
          .m = 16,
          .n = 32,
          .k = 48,
          .lda = 48,
          .ldb = 48,
          .ldd = 16};
}

std::vector<uint8_t> ones_and_twos(size_t count, uint8_t one, uint8_t two) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = i % 3 ? one : two;
  return bytes;
}

}  // namespace

TEST_CASE("a problem is planned once per alignment of its operands, and not at all once latched") {
  Stream stream = Stream::cuda(0);
  BlasPlans& plans = stream.blas_plans();
  DeviceBuffer a(stream, DType::f32, {64}, normal_values(64, 1)),
      b(stream, DType::f32, {64}, normal_values(64, 2)), d(stream, DType::f32, {64});
  BlasProblem p{.m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldd = 4};
  float* x = device_pointer<float>(a);
  const BlasOperands operands{.a = x, .b = device_pointer<float>(b), .d = device_pointer<float>(d)};
  plans.run(stream, p, operands);
  plans.run(stream, p, operands);
  CHECK(plans.size() == 1);
  plans.run(stream, p, {.a = x + 1, .b = operands.b, .d = operands.d});
  CHECK(plans.size() == 2);
  plans.latch();
  plans.run(stream, p, operands);
  p.m = 3;
  CHECK(contains(failure_of(stream, [&] { plans.run(stream, p, operands); }),
                 "[matmul] NN f32 x f32 -> f32 m 3 n 4 k 4 was not planned before the first step"));
  CHECK(plans.size() == 2);
}

TEST_CASE("products planned for some of the SMs are plans of their own, and the library is told") {
  Stream stream = Stream::cuda(0);
  BlasPlans& plans = stream.blas_plans();
  DeviceBuffer a(stream, DType::f32, {64}, normal_values(64, 1)),
      b(stream, DType::f32, {64}, normal_values(64, 2)), d(stream, DType::f32, {64});
  const BlasProblem p{.m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldd = 4};
  const BlasOperands operands{
      .a = device_pointer<float>(a), .b = device_pointer<float>(b), .d = device_pointer<float>(d)};
  cuda_host::matmul_sm_counts();
  plans.run(stream, p, operands);
  plans.set_sm_count(3);
  plans.run(stream, p, operands);
  plans.run(stream, p, operands);
  REQUIRE(plans.size() == 2);
  const std::vector<BlasPlans::Choice> choices = plans.choices();
  CHECK(choices[0].problem == "NN f32 x f32 -> f32 m 4 n 4 k 4 ld 4 4 4 aligned 256 256 256");
  CHECK(choices[1].problem == choices[0].problem + " on 3 SMs");
  // The stand-in, as the library, takes an algorithm only for the target it was found for.
  CHECK(cuda_host::matmul_sm_counts() == std::vector<int>{0, 3, 3});
  Stream other = Stream::cuda(0);
  other.blas_plans().set_sm_count(2);
  other.blas_plans().adopt(
      {{.problem = choices[0].problem + " on 2 SMs", .algorithm = choices[1].algorithm}});
  stream.synchronize();  // both write d
  other.blas_plans().run(other, p, operands);
  other.synchronize();
  CHECK(other.blas_plans().choices()[0].algorithm != choices[1].algorithm);
  CHECK(contains(failure_of(stream, [&] { plans.set_sm_count(5); }),
                 "[matmul] products cannot be planned for 5 SMs: GPU 0 has 4"));
  plans.latch();
  plans.set_sm_count(0);
  plans.run(stream, p, operands);
  plans.set_sm_count(1);
  CHECK(contains(failure_of(stream, [&] { plans.run(stream, p, operands); }),
                 "was not planned before the first step"));
}

TEST_CASE("the fastest of several algorithms is taken, and can be adopted by another stream") {
  Stream stream = Stream::cuda(0);
  BlasPlans& plans = stream.blas_plans();
  DeviceBuffer a(stream, DType::f32, {64}, normal_values(64, 1)),
      b(stream, DType::f32, {64}, normal_values(64, 2)), d(stream, DType::f32, {16}),
      first(stream, DType::f32, {16});
  const BlasProblem p{.m = 4, .n = 4, .k = 16, .lda = 4, .ldb = 16, .ldd = 4};
  auto run = [&](Stream& on, const DeviceBuffer& out) {
    on.blas_plans().run(
        on, p,
        {.a = device_pointer<float>(a), .b = device_pointer<float>(b), .d = device_pointer<float>(out)});
  };
  plans.select(BlasPlans::Selection::fastest);
  run(stream, d);
  const std::vector<BlasPlans::Choice> choices = plans.choices();
  REQUIRE(choices.size() == 1);
  CHECK(choices[0].candidates == 3);
  CHECK(choices[0].milliseconds == Approx(100).margin(0.1));
  CHECK(choices[0].problem == "NN f32 x f32 -> f32 m 4 n 4 k 16 ld 4 16 4 aligned 256 256 256");
  CHECK(blas_library() == "cuBLASLt 13.1.0");

  Stream other = Stream::cuda(0), late = Stream::cuda(0);
  run(other, first);  // the library's first proposal adds in another order
  other.synchronize();
  const std::vector<float> proposed = first.floats();
  CHECK(proposed != d.floats());
  other.blas_plans().adopt(choices);
  run(other, first);
  other.synchronize();
  CHECK(first.floats() == d.floats());
  CHECK(other.blas_plans().choices()[0].algorithm == choices[0].algorithm);
  late.blas_plans().adopt(choices);
  run(late, first);
  late.synchronize();
  CHECK(late.blas_plans().choices()[0].algorithm == choices[0].algorithm);
  CHECK(late.blas_plans().choices()[0].candidates == 0);

  // What the library refuses is chosen anew; what is no algorithm is refused.
  BlasPlans::Choice foreign = choices[0];
  foreign.algorithm[0] = 'f';
  Stream fresh = Stream::cuda(0);
  fresh.blas_plans().adopt({foreign});
  run(fresh, first);
  fresh.synchronize();
  CHECK(first.floats() == proposed);
  foreign.algorithm = "12zz";
  CHECK_THROWS_WITH(fresh.blas_plans().adopt({foreign}),
                    Catch::Contains("'12zz' is no algorithm for NN f32") &&
                        Catch::Contains("expected 128 hexadecimal digits"));
}

TEST_CASE(
    "algorithms that are proposed and do not run are passed over; where none runs, the problem is named") {
  using Selection = BlasPlans::Selection;
  const auto before = cuda_host::settings();
  auto choice = [&](Selection selection, unsigned unusable, unsigned failing) {
    Stream stream = Stream::cuda(0);
    DeviceBuffer a(stream, DType::f32, {64}, normal_values(64, 1)),
        b(stream, DType::f32, {64}, normal_values(64, 2)), d(stream, DType::f32, {16});
    cuda_host::settings().unusable_algorithms = unusable;
    cuda_host::settings().failing_algorithms = failing;
    BlasPlans& plans = stream.blas_plans();
    plans.select(selection);
    const std::string failure = failure_of(stream, [&] {
      plans.run(
          stream, {.m = 4, .n = 4, .k = 16, .lda = 4, .ldb = 16, .ldd = 4},
          {.a = device_pointer<float>(a), .b = device_pointer<float>(b), .d = device_pointer<float>(d)});
    });
    CHECK(plans.size() == (failure.empty() ? 1 : 0));
    for (float x : d.floats()) CHECK(std::isfinite(x) == failure.empty());
    cuda_host::settings() = before;
    return failure.empty() ? fmt::format("{} ms of {}", std::lround(plans.choices()[0].milliseconds),
                                         plans.choices()[0].candidates)
                           : failure;
  };
  // The stand-in proposes three, of 200, 100 and 300 ms.
  CHECK(choice(Selection::fastest, 0, 0) == "100 ms of 3");
  CHECK(choice(Selection::fastest, 0, 0b010) == "200 ms of 2");
  CHECK(choice(Selection::fastest, 0b001, 0b010) == "300 ms of 1");
  CHECK(choice(Selection::first, 0b001, 0b010) == "0 ms of 0");
  for (Selection selection : {Selection::first, Selection::fastest}) {
    CHECK(choice(selection, 0b001, 0b110) ==
          "[matmul] cuBLASLt runs none of the 3 algorithms that it proposes for NN f32 x f32 -> f32 m 4 n 4 "
          "k 16: "
          "the last says the algorithm does not run");
  }
}

TEST_CASE("an adopted algorithm that does not run is chosen anew") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer a(stream, DType::f32, {64}, normal_values(64, 1)),
      b(stream, DType::f32, {64}, normal_values(64, 2)), d(stream, DType::f32, {16});
  const BlasProblem p{.m = 4, .n = 4, .k = 16, .lda = 4, .ldb = 16, .ldd = 4};
  const BlasOperands operands{
      .a = device_pointer<float>(a), .b = device_pointer<float>(b), .d = device_pointer<float>(d)};
  stream.blas_plans().run(stream, p, operands);
  const std::vector<BlasPlans::Choice> first = stream.blas_plans().choices();
  Stream other = Stream::cuda(0);
  other.blas_plans().adopt(first);
  stream.synchronize();  // both write d
  cuda_host::settings().failing_algorithms = 0b001;
  other.blas_plans().run(other, p, operands);
  cuda_host::settings().failing_algorithms = 0;
  other.synchronize();
  CHECK(other.blas_plans().choices()[0].algorithm != first[0].algorithm);
}

TEST_CASE("fp8 products are scaled, by tensor and by row") {
  Stream stream = Stream::cuda(0);
  // 1 and 2: 0x38 and 0x40 in e4m3, 0x3c and 0x40 in e5m2.
  const auto a = ones_and_twos(16 * 48, 0x38, 0x40), b = ones_and_twos(32 * 48, 0x3c, 0x40);
  auto value = [](const std::vector<uint8_t>& bytes, size_t i) { return bytes[i] == 0x40 ? 2.0 : 1.0; };
  DeviceBuffer a_device(stream, DType::e4m3, {16, 48}), b_device(stream, DType::e5m2, {32, 48}),
      d(stream, DType::f32, {32, 16});
  a_device.upload_as<uint8_t>(a);
  b_device.upload_as<uint8_t>(b);
  std::vector<float> a_scales(16), b_scales(32);
  for (size_t i = 0; i < 16; ++i) a_scales[i] = 0.5f + static_cast<float>(i);
  for (size_t j = 0; j < 32; ++j) b_scales[j] = 2.0f - 0.03f * static_cast<float>(j);
  DeviceBuffer a_scale(stream, DType::f32, {16}, a_scales), b_scale(stream, DType::f32, {32}, b_scales);
  const BlasOperands operands{.a = a_device.tensor().data,
                              .b = b_device.tensor().data,
                              .d = d.tensor().data,
                              .a_scale = device_pointer<float>(a_scale),
                              .b_scale = device_pointer<float>(b_scale)};
  for (BlasProblem::Scale scale : {BlasProblem::Scale::tensor, BlasProblem::Scale::outer}) {
    BlasProblem p = fp8_problem();
    p.a_scale = p.b_scale = scale;
    stream.blas_plans().run(stream, p, operands);
    auto got = d.floats();
    for (size_t i = 0; i < 16; ++i) {
      for (size_t j = 0; j < 32; ++j) {
        double want = 0;
        for (size_t k = 0; k < 48; ++k) want += value(a, i * 48 + k) * value(b, j * 48 + k);
        const bool outer = scale == BlasProblem::Scale::outer;
        want *= a_scales[outer ? i : 0] * b_scales[outer ? j : 0];
        CHECK(got[j * 16 + i] == Approx(want));
      }
    }
  }
}

TEST_CASE("what the library does not have is refused with the problem's name") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer bytes(stream, DType::u8, {8192}), scales(stream, DType::f32, {64});
  auto* data = device_pointer<uint8_t>(bytes);
  const BlasOperands operands{.a = data,
                              .b = data + 2048,
                              .d = data + 4096,
                              .a_scale = device_pointer<float>(scales),
                              .b_scale = device_pointer<float>(scales)};
  auto refuses = [&](auto&& change, BlasOperands changed) {
    BlasProblem p = fp8_problem();
    change(p);
    std::string message = failure_of(stream, [&] { stream.blas_plans().run(stream, p, changed); });
    INFO(message);
    CHECK(contains(message, "[matmul] cuBLASLt has no algorithm for " + to_string(p)));
    CHECK(stream.blas_plans().size() == 0);
  };
  refuses([](BlasProblem& p) { p.a = DType::e5m2; }, operands);                        // e5m2 x e5m2
  refuses([](BlasProblem& p) { p.a_layout = Operand::plain, p.lda = 16; }, operands);  // not TN
  refuses([](BlasProblem& p) { p.n = 24; }, operands);                                 // not a multiple of 16
  refuses([](BlasProblem& p) { p.b = DType::bf16; }, operands);                     // fp8 with another type
  refuses([](BlasProblem& p) { p.b_scale = BlasProblem::Scale::none; }, operands);  // no scales
  refuses([](BlasProblem& p) { p.b_scale = BlasProblem::Scale::outer; },
          operands);  // modes that do not go together
  refuses([](BlasProblem& p) { p.a_scale = p.b_scale = BlasProblem::Scale::block_128x128; }, operands);
  refuses([](BlasProblem& p) { p.a_scale = p.b_scale = BlasProblem::Scale::block_1x32; },
          operands);  // another GPU's
  BlasOperands misaligned = operands;
  misaligned.b = data + 2056;
  refuses([](BlasProblem&) {}, misaligned);
  BlasProblem odd = fp8_problem();
  odd.a = DType::i32;
  CHECK(contains(failure_of(stream, [&] { stream.blas_plans().run(stream, odd, operands); }),
                 "takes no operands of type i32"));
}
