// Recording and replay: what is recorded is not done, a launch does it in any order that the events allow,
// and what cannot be recorded is refused.
#include "core/cuda/graph.h"

#include <thread>

#include "core/cuda/blas_plans.h"
#include "tests/support/cuda_host/selftest/fixture.h"

using namespace ottava;
using namespace ottava::cuda;
using namespace ottava::test;

namespace {

void apply(Stream& stream, const DeviceBuffer& x, float factor, float offset) {
  launch("affine", stream, {.grid = 1, .block = 32}, affine, device_pointer<float>(x), factor, offset);
}

std::string lost(Stream& stream, const std::function<void()>& body) {
  try {
    Graph::record(stream, body);
  } catch (const DeviceError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("what is recorded happens at every launch, and not before") {
  for_each_policy([] {
    Stream a = Stream::cuda(0);
    DeviceBuffer x(a, DType::f32, {32}, std::vector<float>(32, 1.0f)), y(a, DType::f32, {32});
    const Graph graph = Graph::record(a, [&] {
      apply(a, x, 2, 1);
      cuda::copy(y.tensor().data, x.tensor().data, 128, a.native());
      cuda::fill_zero(x.tensor().data, 4, a.native());
    });
    CHECK(graph.nodes() == 3);
    CHECK(x.floats()[3] == 1.0f);
    graph.launch(a);
    graph.launch(a);
    apply(a, x, 1, 10);
    graph.launch(a);
    CHECK(y.floats()[3] == ((1 * 2 + 1) * 2 + 1 + 10) * 2 + 1);
    CHECK(y.floats()[0] == 10 * 2 + 1);
    CHECK(x.floats()[0] == 0);
  });
}

TEST_CASE("other streams take part by events, and keep their order in every replay") {
  for_each_policy([] {
    Stream a = Stream::cuda(0), b = Stream::cuda(0);
    DeviceBuffer x(a, DType::f32, {32}, std::vector<float>(32, 1.0f));
    Event there(a.device()), back(a.device());
    const Graph graph = Graph::record(a, [&] {
      for (int i = 0; i < 3; ++i) {
        apply(a, x, 2, 1);
        there.record(a);
        there.wait(b);
        apply(b, x, 3, 0);
        back.record(b);
        back.wait(a);
      }
    });
    CHECK(graph.nodes() == 6);
    float want = 1;
    for (int launches = 0; launches < 3; ++launches) {
      graph.launch(a);
      for (int i = 0; i < 3; ++i) want = (want * 2 + 1) * 3;
    }
    CHECK(x.floats()[7] == want);
    // Both streams are their own again.
    apply(b, x, 0, 4);
    b.synchronize();
    CHECK(x.floats()[7] == 4);
  });
}

TEST_CASE("matrix products are recorded once their plan exists") {
  Stream a = Stream::cuda(0);
  DeviceBuffer x(a, DType::f32, {4}, std::vector<float>{1, 2, 3, 4}),
      y(a, DType::f32, {4}, std::vector<float>(4, 0));
  const BlasProblem p{
      .result = BlasProblem::Result::accumulate, .m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldd = 2};
  const BlasOperands operands{
      .a = device_pointer<float>(x), .b = device_pointer<float>(x), .d = device_pointer<float>(y)};
  a.blas_plans().run(a, p, operands);
  const Graph graph = Graph::record(a, [&] { a.blas_plans().run(a, p, operands); });
  graph.launch(a);
  graph.launch(a);
  CHECK(y.floats()[0] == 3 * (1 * 1 + 2 * 3));
}

TEST_CASE("what must not happen while a stream is recorded loses the recording, with its name") {
  Stream a = Stream::cuda(0), b = Stream::cuda(0);
  DeviceBuffer x(a, DType::f32, {32}, std::vector<float>(32, 1.0f));
  std::vector<float> host(32);
  Event outside(a.device()), event(a.device());
  outside.record(b);
  auto refused = [&](const std::string& name, const std::function<void()>& body) {
    const std::string message = lost(a, body);
    INFO(message);
    CHECK(contains(message, name));
    apply(a, x, 1, 0);  // and the stream works
    a.synchronize();
  };
  refused("cudaMalloc while a stream is captured", [&] { cuda::allocate(0, 16); });
  refused("cudaHostAlloc", [&] { cuda::allocate_pinned(16); });
  refused("cudaStreamSynchronize", [&] { a.synchronize(); });
  refused("cudaStreamSynchronize", [&] { b.synchronize(); });
  refused("cudaEventSynchronize", [&] { outside.synchronize(); });
  refused("from or to pageable host memory",
          [&] { cuda::copy(host.data(), x.tensor().data, 128, a.native()); });
  refused("from or to pageable host memory",
          [&] { cuda::copy(x.tensor().data, host.data(), 128, a.native()); });
  refused("recorded outside the capture", [&] { outside.wait(a); });
  refused("work that the first stream does not wait for", [&] {
    event.record(a);
    event.wait(b);
    apply(b, x, 2, 0);
  });
  refused("a second capture", [&] { Graph::record(b, [] {}); });
  // Lost even when the caller goes on.
  refused("the capture is lost: cudaMalloc", [&] {
    try {
      cuda::allocate(0, 16);
    } catch (const DeviceError&) {
    }
    apply(a, x, 2, 0);
  });
  CHECK(x.floats()[0] == 1.0f);
  CHECK_THROWS_WITH(Graph::record(a, [] { throw std::runtime_error("mine"); }), "mine");
  Stream cpu = Stream::cpu();
  CHECK_THROWS_WITH(Graph::record(cpu, [] {}), Catch::Contains("work on cpu cannot be recorded"));
}

TEST_CASE("an event of a recording cannot be asked afterwards, and other threads go on meanwhile") {
  Stream a = Stream::cuda(0);
  DeviceBuffer x(a, DType::f32, {32}, std::vector<float>(32, 1.0f));
  Event event(a.device());
  const Graph graph = Graph::record(a, [&] {
    apply(a, x, 2, 0);
    event.record(a);
    std::thread([] {
      Stream own = Stream::cuda(0);
      DeviceBuffer y(own, DType::f32, {4});
      own.synchronize();
    }).join();
  });
  CHECK_THROWS_WITH(event.synchronize(), Catch::Contains("recorded into a graph"));
  CHECK_THROWS_WITH(event.wait(a), Catch::Contains("after the capture"));
  graph.launch(a);
  CHECK(x.floats()[0] == 2.0f);
}

TEST_CASE("a kernel that fails in a graph fails the stream it was launched on") {
  for_each_policy([] {
    Stream a = Stream::cuda(0);
    const Graph graph = Graph::record(a, [&] {
      launch(
          "trap", a, {.grid = 1, .block = 1}, +[] { __trap(); });
    });
    CHECK(contains(failure_of(a, [&] { graph.launch(a); }), "__trap"));
    CHECK(failure_of(a, [] {}).empty());
  });
}
