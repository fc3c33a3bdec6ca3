// Streams, events and when work runs.
#include "core/cuda/graph.h"
#include "tests/support/cuda_host/selftest/fixture.h"

using namespace ottava;
using namespace ottava::cuda;
using namespace ottava::test;
using cuda_host::Streams;

namespace {

[[maybe_unused]] __global__ void copy_value(const float* from, float* to) { *to = *from; }

}  // namespace

TEST_CASE("a stream keeps its order, and an event carries it to another stream") {
  for_each_policy([] {
    Stream a = Stream::cuda(0), b = Stream::cuda(0);
    DeviceBuffer x(a, DType::f32, {32}, std::vector<float>(32, 1.0f));
    Event done(a.device());
    for (int i = 0; i < 3; ++i) {
      launch("affine", a, {.grid = 1, .block = 32}, affine, device_pointer<float>(x), 2.0f, 1.0f);
      done.record(a);
      done.wait(b);
      launch("affine", b, {.grid = 1, .block = 32}, affine, device_pointer<float>(x), 3.0f, 0.0f);
      done.record(b);
      done.wait(a);
    }
    b.synchronize();
    CHECK(x.floats()[5] == ((1 * 2 + 1) * 3 * 2 + 1) * 3 * 2 * 3 + 3);
  });
}

#if !defined(__SANITIZE_THREAD__)  // which reports it, as it should
TEST_CASE("without an event the other stream may be late, and lazy streams are") {
  auto& settings = cuda_host::settings();
  const auto before = settings;
  settings.streams = Streams::lazy;
  {
    Stream a = Stream::cuda(0), b = Stream::cuda(0);
    DeviceBuffer x(a, DType::f32, {32}, std::vector<float>(32, 1.0f)), y(b, DType::f32, {1});
    a.synchronize();
    launch("affine", a, {.grid = 1, .block = 32}, affine, device_pointer<float>(x), 2.0f, 0.0f);
    launch("copy_value", b, {.grid = 1, .block = 1}, copy_value,
           static_cast<const float*>(device_pointer<float>(x)), device_pointer<float>(y));
    CHECK(y.floats()[0] == 1.0f);  // stream a has not begun
    CHECK(cudaStreamQuery(static_cast<cudaStream_t>(a.native())) == cudaErrorNotReady);
    CHECK(x.floats()[0] == 2.0f);
    CHECK(cudaStreamQuery(static_cast<cudaStream_t>(a.native())) == cudaSuccess);
  }
  settings = before;
}
#endif

TEST_CASE("an event waits for its latest record only, and a new one for nothing") {
  for_each_policy([] {
    Stream a = Stream::cuda(0), b = Stream::cuda(0);
    Event never(a.device()), event(a.device()), later(a.device());
    never.wait(b);
    b.synchronize();
    event.record(a);
    event.wait(b);
    event.record(a);
    event.synchronize();
    b.synchronize();
    later.record(a);
    later.synchronize();
    CHECK(later.milliseconds_since(event) >= 0);
  });
}

TEST_CASE("an event belongs to a GPU, and tells a time once it has come") {
  auto& settings = cuda_host::settings();
  const auto before = settings;
  settings.streams = Streams::lazy;
  Stream a = Stream::cuda(0), other = Stream::cuda(1);
  Event begin(a.device()), end(a.device()), of_other(other.device());
  CHECK_THROWS_WITH(of_other.record(a), Catch::Contains("an event of GPU 1 on a stream of GPU 0"));
  begin.record(a);
  begin.synchronize();
  CHECK_THROWS_WITH(end.milliseconds_since(begin), Catch::Contains("never recorded"));
  end.record(a);
  CHECK_THROWS_WITH(end.milliseconds_since(begin), Catch::Contains("not ready"));
  end.synchronize();
  CHECK(end.milliseconds_since(begin) >= 0);
  of_other.record(other);
  of_other.synchronize();
  CHECK_THROWS_WITH(of_other.milliseconds_since(begin), Catch::Contains("events of two GPUs"));
  const Graph graph = Graph::record(a, [&] { end.record(a); });
  CHECK_THROWS_WITH(end.milliseconds_since(begin), Catch::Contains("recorded into a graph"));
  settings = before;
}

TEST_CASE("an error is reported once, by the stream that it happened on") {
  for_each_policy([] {
    Stream a = Stream::cuda(0), b = Stream::cuda(0);
    launch(
        "trap", a, {.grid = 1, .block = 1}, +[] { __trap(); });
    b.synchronize();
    CHECK(contains(failure_of(a, [] {}), "__trap"));
    CHECK(failure_of(a, [] {}).empty());
  });
}

TEST_CASE("copies between host and device follow the stream") {
  for_each_policy([] {
    Stream a = Stream::cuda(0);
    DeviceBuffer x(a, DType::f32, {32});
    float* pinned = static_cast<float*>(cuda::allocate_pinned(32 * sizeof(float)));
    for (int i = 0; i < 32; ++i) pinned[i] = 1.0f;
    cuda::copy(device_pointer<float>(x), pinned, 32 * sizeof(float), a.native());
    launch("affine", a, {.grid = 1, .block = 32}, affine, device_pointer<float>(x), 1.0f, 4.0f);
    cuda::copy(pinned, device_pointer<float>(x), 32 * sizeof(float), a.native());
    cuda::fill_zero(device_pointer<float>(x), 32 * sizeof(float), a.native());
    a.synchronize();
    CHECK(pinned[7] == 5.0f);
    CHECK(x.floats()[7] == 0.0f);
    cuda::release_pinned(pinned);
  });
}

#if !defined(__SANITIZE_THREAD__)  // which reports it, as it should
TEST_CASE("pageable memory is read before the call returns, or late") {
  auto& settings = cuda_host::settings();
  const auto before = settings;
  settings.streams = Streams::lazy;
  for (auto mode : {cuda_host::Pageable::staged, cuda_host::Pageable::late}) {
    settings.pageable = mode;
    Stream a = Stream::cuda(0);
    DeviceBuffer x(a, DType::f32, {32});
    std::vector<float> values(32, 1.0f);
    cuda::copy(device_pointer<float>(x), values.data(), 32 * sizeof(float), a.native());
    values.assign(32, 2.0f);
    CHECK(x.floats()[7] == (mode == cuda_host::Pageable::staged ? 1.0f : 2.0f));
  }
  settings = before;
}
#endif
