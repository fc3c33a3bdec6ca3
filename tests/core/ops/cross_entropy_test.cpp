#include "core/ops/cross_entropy.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

struct Size {
  int64_t rows, vocab, padding;
};
const Size kSizes[] = {{1, 1, 0},     {3, 7, 2},    {5, 16, 0},    {4, 37, 11},
                       {33, 500, 12}, {3, 2256, 0}, {2, 5000, 24}, {2, 9000, 24}};

struct Problem {
  std::vector<float> logits;  ///< [rows, vocab], without padding
  std::vector<int32_t> targets;
  int64_t rows, vocab;
};
Problem problem(const Size& size) {
  Problem p{normal_values(size.rows * size.vocab, 1, DType::f32, 4), {}, size.rows, size.vocab};
  for (int64_t i = 0; i < size.rows; ++i) {
    p.targets.push_back(i % 3 == 2 ? kIgnoreIndex : static_cast<int32_t>(i * 31 % size.vocab));
  }
  return p;
}

struct Expected {
  std::vector<double> losses, losses_size, z_losses, dlogits, dlogits_size;
};
Expected reference(const Problem& p, const std::vector<double>& logits, double scale, double z_weight = 0) {
  const size_t vocab = static_cast<size_t>(p.vocab);
  Expected r;
  for (size_t i = 0; i < p.targets.size(); ++i) {
    const double* row = logits.data() + i * vocab;
    const bool counts = p.targets[i] != kIgnoreIndex;
    double largest = *std::max_element(row, row + vocab), sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - largest);
    const double gap = counts ? largest - row[p.targets[i]] : 0;
    r.losses.push_back(counts ? std::log(sum) + gap : 0);
    r.losses_size.push_back(counts ? 1 + std::abs(std::log(sum)) + gap : 0);
    const double lse = std::log(sum) + largest, softmax_scale = 1 + 2 * z_weight * lse;
    r.z_losses.push_back(counts ? z_weight * lse * lse : 0);
    for (size_t v = 0; v < vocab; ++v) {
      const double probability = std::exp(row[v] - largest) / sum,
                   one = counts && static_cast<size_t>(p.targets[i]) == v;
      r.dlogits.push_back(counts ? (probability * softmax_scale - one) * scale : 0);
      // The subtraction before exp is rounded in proportion to the distance from the largest logit.
      r.dlogits_size.push_back(
          counts ? (probability * std::abs(softmax_scale) * (1 + largest - row[v]) + one) * std::abs(scale)
                 : 0);
    }
  }
  return r;
}

// exp to 2 ulp (4 roundings), the subtraction before it, and the product and quotient around it.
Tolerance expected_error(DType dtype, int64_t vocab) { return tolerance(dtype, 9, vocab); }

/// Everything one call needs, on a device, for columns [begin, end) of the problem followed by `padding`
/// columns.
struct Part {
  Part(Stream& stream, const Problem& p, DType dtype, int64_t begin, int64_t end, int64_t padding,
       float scale)
      : logits(stream, DType::f32, {p.rows, end - begin + padding}),
        targets(stream, DType::i32, {p.rows}),
        row_max(stream, DType::f32, {p.rows}),
        row_sum(stream, DType::f32, {p.rows}),
        row_target(stream, DType::f32, {p.rows}),
        losses(stream, DType::f32, {p.rows}),
        z_losses(stream, DType::f32, {p.rows}),
        dlogits(stream, dtype, {p.rows, end - begin + padding}),
        grad_scale(stream, DType::f32, {1}, std::array{scale}),
        begin(begin),
        columns(end - begin) {
    std::vector<float> values;
    for (int64_t i = 0; i < p.rows; ++i) {
      auto row = p.logits.begin() + i * p.vocab;
      values.insert(values.end(), row + begin, row + end);
      values.insert(values.end(), static_cast<size_t>(padding), 1e30f);  // must not be looked at
    }
    logits.upload(values);
    targets.upload_as<int32_t>(p.targets);
  }
  CrossEntropy forward() const {
    return {.logits = logits,
            .targets = targets,
            .row_max = row_max,
            .row_sum = row_sum,
            .row_target = row_target,
            .vocab_begin = begin,
            .valid_columns = columns};
  }
  CrossEntropyBackward backward() const {
    CrossEntropyBackward args{
        .forward = forward(), .losses = losses, .dlogits = dlogits, .grad_scale = grad_scale};
    args.z_loss_weight = z_loss_weight;
    if (z_loss_weight > 0) args.z_losses = z_losses;
    return args;
  }
  /// Gradients of the real columns; padding must have got zeros.
  std::vector<float> gradient() const {
    std::vector<float> all = dlogits.floats(), kept;
    const int64_t width = dlogits.tensor().cols();
    for (size_t i = 0; i < all.size(); ++i) {
      if (static_cast<int64_t>(i) % width < columns) {
        kept.push_back(all[i]);
      } else {
        CHECK(all[i] == 0.0f);
      }
    }
    return kept;
  }

  DeviceBuffer logits, targets, row_max, row_sum, row_target, losses, z_losses, dlogits, grad_scale;
  float z_loss_weight = 0;
  int64_t begin, columns;
};

void three_steps(Stream& stream, const Part& part) {
  cross_entropy_max(stream, part.forward());
  cross_entropy_sum(stream, part.forward());
  cross_entropy_backward(stream, part.backward());
}

}  // namespace

TEST_CASE("cross_entropy: the FP64 reference's gradient is the derivative of its losses") {
  Problem p = problem({5, 6, 0});
  auto logits = as_double(p.logits);
  const double z_weight = GENERATE(0.0, 0.25);
  auto loss = [&](const std::vector<double>& x) {
    const Expected r = reference(p, x, 1, z_weight);
    double sum = 0;
    for (double l : r.losses) sum += l;
    for (double l : r.z_losses) sum += l;
    return sum;
  };
  check_gradient(loss, logits, reference(p, logits, 1, z_weight).dlogits);
}

TEST_CASE("cross_entropy agrees with the reference, in three steps and in one") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& size : kSizes) {
      INFO("rows " << size.rows << " vocabulary " << size.vocab << " padding " << size.padding);
      Problem p = problem(size);
      Expected want = reference(p, as_double(p.logits), 0.125);
      Part part(stream, p, dtype, 0, size.vocab, size.padding, 0.125f);
      three_steps(stream, part);
      check_close(part.losses.floats(), want.losses, expected_error(DType::f32, size.vocab),
                  want.losses_size);
      check_close(part.gradient(), want.dlogits, expected_error(dtype, size.vocab), want.dlogits_size);

      Part one(stream, p, dtype, 0, size.vocab, size.padding, 0.125f);
      cross_entropy(stream, one.backward());
      CHECK(one.losses.floats() == part.losses.floats());
      CHECK(one.gradient() == part.gradient());

      CrossEntropyBackward loss_only = one.backward();
      loss_only.dlogits = {};
      loss_only.grad_scale = {};
      one.losses.upload(std::vector<float>(static_cast<size_t>(size.rows), -1.0f));
      cross_entropy(stream, loss_only);
      CHECK(one.losses.floats() == part.losses.floats());
    }
  });
}

TEST_CASE("cross_entropy with a z-loss agrees with the reference, and leaves the losses as they are") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& size : kSizes) {
      INFO("rows " << size.rows << " vocabulary " << size.vocab << " padding " << size.padding);
      Problem p = problem(size);
      const float z_weight = 0.125f;
      Expected want = reference(p, as_double(p.logits), 0.125, z_weight);
      Part with(stream, p, dtype, 0, size.vocab, size.padding, 0.125f),
          without(stream, p, dtype, 0, size.vocab, size.padding, 0.125f);
      with.z_loss_weight = z_weight;
      three_steps(stream, with);
      cross_entropy(stream, without.backward());
      CHECK(with.losses.floats() == without.losses.floats());
      check_close(with.z_losses.floats(), want.z_losses, expected_error(DType::f32, size.vocab),
                  std::vector<double>(want.z_losses.size(), 16.0));
      check_close(with.gradient(), want.dlogits, expected_error(dtype, size.vocab), want.dlogits_size);
      CHECK((with.gradient() != without.gradient()));

      Part one(stream, p, dtype, 0, size.vocab, size.padding, 0.125f);
      one.z_loss_weight = z_weight;
      cross_entropy(stream, one.backward());
      CHECK(one.z_losses.floats() == with.z_losses.floats());
      CHECK(one.gradient() == with.gradient());
    }
  });
}

TEST_CASE("cross_entropy writes f32 gradients over the logits") {
  for_each_device([](Stream& stream) {
    Problem p = problem({33, 500, 12});
    Part apart(stream, p, DType::f32, 0, 500, 12, 1), over(stream, p, DType::f32, 0, 500, 12, 1);
    cross_entropy(stream, apart.backward());
    CrossEntropyBackward args = over.backward();
    args.dlogits = over.logits;
    cross_entropy(stream, args);
    CHECK(over.logits.floats() == apart.dlogits.floats());
  });
}

TEST_CASE(
    "cross_entropy: a vocabulary split between two ranks, one of them with padding only at its end, gives "
    "the same loss") {
  const float z_weight = GENERATE(0.0f, 0.25f);
  for_each_device_and_dtype([&](Stream& stream, DType dtype) {
    Problem p = problem({7, 50, 0});
    Expected want = reference(p, as_double(p.logits), 1, z_weight);
    for (int64_t cut :
         {int64_t{1}, int64_t{24}, int64_t{50}}) {  // with 50 the second rank holds padding alone
      INFO("cut at " << cut);
      Part left(stream, p, dtype, 0, cut, 0, 1), right(stream, p, dtype, cut, 50, 14, 1);
      left.z_loss_weight = right.z_loss_weight = z_weight;
      auto combine = [&](const DeviceBuffer& a, const DeviceBuffer& b, auto&& both) {
        auto x = a.floats(), y = b.floats();
        for (size_t i = 0; i < x.size(); ++i) x[i] = both(x[i], y[i]);
        const_cast<DeviceBuffer&>(a).upload(x);
        const_cast<DeviceBuffer&>(b).upload(x);
      };
      for (const Part* part : {&left, &right}) cross_entropy_max(stream, part->forward());
      combine(left.row_max, right.row_max, [](float x, float y) { return std::max(x, y); });
      for (const Part* part : {&left, &right}) cross_entropy_sum(stream, part->forward());
      combine(left.row_sum, right.row_sum, std::plus<>());
      combine(left.row_target, right.row_target, std::plus<>());
      for (const Part* part : {&left, &right}) cross_entropy_backward(stream, part->backward());
      check_close(left.losses.floats(), want.losses, expected_error(DType::f32, 50), want.losses_size);
      CHECK(right.losses.floats() == left.losses.floats());
      if (z_weight > 0) {
        check_close(left.z_losses.floats(), want.z_losses, expected_error(DType::f32, 50),
                    std::vector<double>(want.z_losses.size(), 16.0));
        CHECK(right.z_losses.floats() == left.z_losses.floats());
      }

      std::vector<float> gradient(want.dlogits.size());
      auto from_left = left.gradient(), from_right = right.gradient();
      for (size_t i = 0; i < gradient.size(); ++i) {
        int64_t row = static_cast<int64_t>(i) / 50, column = static_cast<int64_t>(i) % 50;
        gradient[i] = column < cut ? from_left[static_cast<size_t>(row * cut + column)]
                                   : from_right[static_cast<size_t>(row * (50 - cut) + column - cut)];
      }
      check_close(gradient, want.dlogits, expected_error(dtype, 50), want.dlogits_size);
    }
  });
}

TEST_CASE("cross_entropy: large logits lose nothing, and a NaN or an infinity among them reaches the loss") {
  for_each_device([](Stream& stream) {
    Problem p = problem({4, 37, 0});
    p.targets = {3, 3, 3, 3};
    for (float& x : p.logits) x += 1e4f;
    Part part(stream, p, DType::f32, 0, 37, 0, 1);
    cross_entropy(stream, part.backward());
    check_close(part.losses.floats(), reference(p, as_double(p.logits), 1).losses,
                expected_error(DType::f32, 37), reference(p, as_double(p.logits), 1).losses_size);

    p.logits[20] = std::numeric_limits<float>::quiet_NaN();
    p.logits[37 + 36] = std::numeric_limits<float>::infinity();
    for (size_t v = 0; v < 37; ++v) p.logits[2 * 37 + v] = -std::numeric_limits<float>::infinity();
    Part bad(stream, p, DType::f32, 0, 37, 0, 1);
    cross_entropy(stream, bad.backward());
    auto losses = bad.losses.floats();
    CHECK_FALSE(std::isfinite(losses[0]));
    CHECK_FALSE(std::isfinite(losses[1]));
    CHECK_FALSE(std::isfinite(losses[2]));
    CHECK(std::isfinite(losses[3]));
  });
}

TEST_CASE("cross_entropy is bitwise the same for any number of threads") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    Problem p = problem({33, 500, 12});
    std::vector<float> losses, gradient;
    for_each_thread_count([&](int) {
      Part part(stream, p, dtype, 0, 500, 12, 0.5f);
      cross_entropy(stream, part.backward());
      if (losses.empty()) {
        losses = part.losses.floats();
        gradient = part.gradient();
      }
      CHECK(part.losses.floats() == losses);
      CHECK(part.gradient() == gradient);
    });
  });
}

TEST_CASE("cross_entropy on meta records what crosses memory, and refuses tensors that do not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor logits = shape_only(DType::f32, {4, 16}), row = shape_only(DType::f32, {4});
  const CrossEntropy forward{.logits = logits,
                             .targets = shape_only(DType::i32, {4}),
                             .row_max = row,
                             .row_sum = row,
                             .row_target = row,
                             .valid_columns = 16};
  const CrossEntropyBackward backward{.forward = forward,
                                      .losses = row,
                                      .dlogits = shape_only(DType::bf16, {4, 16}),
                                      .grad_scale = shape_only(DType::f32, {1})};
  double expected = 0;
  auto costs = [&](double bytes) {
    expected += bytes;
    CHECK(recorder.bytes() == expected);
  };
  cross_entropy_max(stream, forward);
  costs(64 * 4);
  cross_entropy_sum(stream, forward);
  costs(64 * 4);
  cross_entropy_backward(stream, backward);
  costs(64 * 6 + 16);
  cross_entropy(stream, backward);
  costs(64 * 6);
  CrossEntropyBackward with_z = backward;
  with_z.z_losses = row;
  cross_entropy_backward(stream, with_z);
  costs(64 * 6 + 32);

  auto says = [&](auto&& change, const std::string& message) {
    CrossEntropyBackward args = backward;
    change(args, args.forward);
    CHECK_THROWS_WITH(cross_entropy_max(stream, args.forward), "[cross_entropy_max] " + message);
    CHECK_THROWS_WITH(cross_entropy_sum(stream, args.forward), "[cross_entropy_sum] " + message);
    CHECK_THROWS_WITH(cross_entropy_backward(stream, args), "[cross_entropy_backward] " + message);
    CHECK_THROWS_WITH(cross_entropy(stream, args), "[cross_entropy] " + message);
  };
  says([](auto&, auto& f) { f.logits.dtype = DType::bf16; }, "logits is bf16 [4, 16], expected f32 [n, V]");
  says([](auto&, auto& f) { f.logits.shape = {64}; }, "logits is f32 [64], expected f32 [n, V]");
  says([](auto&, auto& f) { f.targets.dtype = DType::i64; }, "targets is i64 [4], expected i32 [4]");
  says([](auto&, auto& f) { f.row_max.shape = {5}; }, "row_max is f32 [5], expected f32 [4]");
  says([](auto&, auto& f) { f.row_sum.shape = {5}; }, "row_sum is f32 [5], expected f32 [4]");
  says([](auto&, auto& f) { f.row_target.shape = {5}; }, "row_target is f32 [5], expected f32 [4]");
  says([](auto&, auto& f) { f.valid_columns = 17; },
       "valid_columns is 17, expected 0 to 16 (the columns of logits)");
  says([](auto&, auto& f) { f.vocab_begin = -1; }, "vocab_begin is -1, expected a global token id");
  auto backward_says = [&](auto&& change, const std::string& message) {
    CrossEntropyBackward args = backward;
    change(args);
    CHECK_THROWS_WITH(cross_entropy_backward(stream, args), "[cross_entropy_backward] " + message);
    CHECK_THROWS_WITH(cross_entropy(stream, args), "[cross_entropy] " + message);
  };
  backward_says([](auto& a) { a.losses.shape = {5}; }, "losses is f32 [5], expected f32 [4]");
  backward_says([](auto& a) { a.dlogits.dtype = DType::i32; },
                "dlogits is i32 [4, 16], expected f32 or bf16");
  backward_says([](auto& a) { a.dlogits.shape = {4, 8}; }, "dlogits is bf16 [4, 8], expected bf16 [4, 16]");
  backward_says([](auto& a) { a.z_losses = shape_only(DType::f32, {5}); },
                "z_losses is f32 [5], expected f32 [4]");
  backward_says([](auto& a) { a.grad_scale = {}; }, "grad_scale is f32 [], expected f32 [1]");
}
