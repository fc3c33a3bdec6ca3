// NCCL's stand-in: what it refuses, what it spoils, and how errors and aborted calls come to an end.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/stopwatch.h"
#include "parallel/comm/all_ranks.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/cuda_host/selftest/fixture.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using namespace ottava::conformance;

namespace {

/// A communicator of one rank, without the project's code around it.
struct Alone {
  ncclComm_t comm = nullptr;
  Stream stream = Stream::cuda(0);
  Alone() {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInProgress);
    settle();
  }
  ~Alone() {
    stream.synchronize();
    ncclCommDestroy(comm);
  }
  cudaStream_t native() { return static_cast<cudaStream_t>(stream.native()); }
  void settle() {
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress) ncclCommGetAsyncError(comm, &result);
    CHECK(result == ncclSuccess);
  }
};

std::string refusal(ncclResult_t result) {
  return result == ncclInvalidArgument ? ncclGetLastError(nullptr) : "";
}

}  // namespace

TEST_CASE("buffers that are not in place as NCCL defines it, or not the GPU's, are refused") {
  Alone alone;
  DeviceBuffer x(alone.stream, DType::f32, {16}, std::vector<float>(16, 1.0f));
  float* data = device_pointer<float>(x);
  float host[4] = {};
  CHECK(contains(refusal(ncclAllReduce(data, data + 4, 8, ncclFloat32, ncclSum, alone.comm, alone.native())),
                 "buffers overlap"));
  CHECK(contains(refusal(ncclAllGather(data + 1, data, 4, ncclFloat32, alone.comm, alone.native())),
                 "buffers overlap"));
  CHECK(contains(
      refusal(ncclReduceScatter(data, data + 1, 4, ncclFloat32, ncclSum, alone.comm, alone.native())),
      "buffers overlap"));
  CHECK(contains(refusal(ncclAllReduce(host, host, 4, ncclFloat32, ncclSum, alone.comm, alone.native())),
                 "not memory of the GPU"));
  CHECK(contains(
      refusal(ncclAllReduce(data + 8, data + 8, 9, ncclFloat32, ncclSum, alone.comm, alone.native())),
      "past its allocation"));
  CHECK(contains(refusal(ncclSend(data, 4, ncclFloat32, 1, alone.comm, alone.native())), "no such rank"));
  CHECK(contains(refusal(ncclAllReduce(data, data, 4, ncclFloat16, ncclSum, alone.comm, alone.native())),
                 "this type is not reduced"));
  Stream other = Stream::cuda(1);
  CHECK(contains(refusal(ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, alone.comm,
                                       static_cast<cudaStream_t>(other.native()))),
                 "not one of the communicator's GPU"));
  DeviceBuffer elsewhere(other, DType::f32, {16}, std::vector<float>(16, 1.0f));
  CHECK(contains(refusal(ncclAllReduce(device_pointer<float>(elsewhere), device_pointer<float>(elsewhere), 4,
                                       ncclFloat32, ncclSum, alone.comm, alone.native())),
                 "on another GPU"));
  CHECK(ncclSend(data, 4, ncclFloat32, 0, alone.comm, alone.native()) == ncclInvalidUsage);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  CHECK(x.floats()[5] == 1.0f);
}

TEST_CASE("in place works where NCCL defines it, and calls of a group go together") {
  Alone alone;
  DeviceBuffer x(alone.stream, DType::f32, {4}, std::vector<float>{1, 2, 3, 4}),
      y(alone.stream, DType::f32, {4});
  ncclGroupStart();
  CHECK(ncclSend(device_pointer<float>(x), 4, ncclFloat32, 0, alone.comm, alone.native()) == ncclSuccess);
  CHECK(ncclRecv(device_pointer<float>(y), 4, ncclFloat32, 0, alone.comm, alone.native()) == ncclSuccess);
  CHECK(ncclGroupEnd() == ncclInProgress);
  alone.settle();
  CHECK(ncclAllReduce(device_pointer<float>(x), device_pointer<float>(x), 4, ncclFloat32, ncclSum, alone.comm,
                      alone.native()) == ncclInProgress);
  alone.settle();
  CHECK(x.floats() == y.floats());
}

TEST_CASE("a communicator is not used before its last call is known to have ended") {
  Alone alone;
  DeviceBuffer x(alone.stream, DType::f32, {4}, std::vector<float>(4, 1.0f));
  float* data = device_pointer<float>(x);
  const auto all_reduce = [&] {
    return ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, alone.comm, alone.native());
  };
  CHECK(all_reduce() == ncclInProgress);
  ncclComm_t part = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (const ncclResult_t result :
       {all_reduce(), ncclCommSplit(alone.comm, 0, 0, &part, &config), ncclCommFinalize(alone.comm)})
    CHECK(contains(refusal(result), "before its last call is known to have ended"));
  alone.settle();
  CHECK(all_reduce() == ncclInProgress);
  alone.settle();
}

TEST_CASE("a collective is in a graph on all ranks or on none") {
  CHECK_THROWS_WITH(
      run_nccl_ranks(
          {.ranks = 2},
          [](Communicator&, Communicator& world) {
            Stream stream = stream_for(world);
            Values<float> x(8, 1.0f);
            const auto sum = [&] {
              world.all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "x"}).wait(stream);
            };
            std::optional<cuda::Graph> graph;
            if (world.rank() == 0) {
              graph = cuda::Graph::record(stream, sum);
              graph->launch(stream);
            } else {
              sum();
            }
            stream.synchronize();  // comes back because the call is aborted
            throw CommError(world.state().failure());
          }),
      Catch::Contains("makes another collective than the others") && Catch::Contains("graph"));
}

TEST_CASE("a communicator serves one thread at a time, and none after an abort") {
  Alone alone;
  DeviceBuffer x(alone.stream, DType::f32, {4}, std::vector<float>(4, 1.0f));
  float* data = device_pointer<float>(x);
  const auto all_reduce = [&] {
    return ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, alone.comm, alone.native());
  };
  ncclGroupStart();
  CHECK(all_reduce() == ncclSuccess);
  ncclResult_t seen = ncclSuccess, aborted = ncclSuccess;
  std::thread([&] {
    ncclResult_t error = ncclSuccess;
    seen = ncclCommGetAsyncError(alone.comm, &error);
    aborted = ncclCommAbort(alone.comm);
  }).join();
  CHECK(seen == ncclInvalidUsage);
  CHECK(aborted == ncclInvalidUsage);
  CHECK(contains(ncclGetLastError(nullptr), "another thread"));
  CHECK(ncclGroupEnd() == ncclInProgress);
  alone.settle();
  Alone other;
  CHECK(ncclCommAbort(other.comm) == ncclSuccess);
  ncclResult_t error = ncclSuccess;
  CHECK(ncclCommGetAsyncError(other.comm, &error) == ncclInvalidUsage);
  CHECK(contains(ncclGetLastError(nullptr), "was aborted"));
  CHECK(ncclCommAbort(other.comm) == ncclInvalidUsage);
}

TEST_CASE("a group with a call that was refused does nothing, and ends") {
  Alone alone;
  DeviceBuffer x(alone.stream, DType::f32, {4}, std::vector<float>{1, 2, 3, 4}),
      y(alone.stream, DType::f32, {4}, std::vector<float>(4, 0.0f));
  ncclGroupStart();
  CHECK(ncclAllReduce(device_pointer<float>(x), device_pointer<float>(y), 4, ncclFloat32, ncclSum, alone.comm,
                      alone.native()) == ncclSuccess);
  CHECK(ncclSend(device_pointer<float>(x), 4, ncclFloat32, 1, alone.comm, alone.native()) ==
        ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  alone.settle();
  CHECK(y.floats()[1] == 0.0f);
  CHECK(ncclAllReduce(device_pointer<float>(x), device_pointer<float>(y), 4, ncclFloat32, ncclSum, alone.comm,
                      alone.native()) == ncclInProgress);
  alone.settle();
  CHECK(y.floats()[1] == 2.0f);
}

// Communicators that do not block put their calls on the stream from a thread of NCCL's own, some time after
// ncclGroupEnd has returned: whatever follows must wait until the communicator says that they are there.
TEST_CASE("a capture takes what NCCL's own thread puts on its stream, if it waits for it") {
  for (bool waits : {false, true}) {
    Alone alone;
    DeviceBuffer x(alone.stream, DType::f32, {4}, std::vector<float>{1, 2, 3, 4});
    const cuda::Graph graph = cuda::Graph::record(alone.stream, [&] {
      CHECK(ncclAllReduce(device_pointer<float>(x), device_pointer<float>(x), 4, ncclFloat32, ncclSum,
                          alone.comm, alone.native()) == ncclInProgress);
      if (waits) alone.settle();
    });
    CHECK(graph.nodes() == (waits ? 1 : 0));
    alone.settle();
  }
}

#if !defined(__SANITIZE_THREAD__)  // which reports the read, as it should
TEST_CASE("an abort lasts until graphs with calls of its communicator are gone") {
  Alone alone;
  DeviceBuffer x(alone.stream, DType::f32, {4}, std::vector<float>(4, 1.0f));
  float* data = device_pointer<float>(x);
  std::optional<cuda::Graph> graph = cuda::Graph::record(alone.stream, [&] {
    ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, alone.comm, alone.native());
    alone.settle();
  });
  auto abort = std::async(std::launch::async, [&] { return ncclCommAbort(alone.comm); });
  CHECK(abort.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  graph.reset();
  CHECK(abort.get() == ncclSuccess);
}

TEST_CASE("a result is spoilt from the start of a call to its end, and late calls end last") {
  auto& settings = cuda_host::settings();
  const auto before = settings;
  settings.collectives = cuda_host::Collectives::late;
  {
    Alone alone;
    DeviceBuffer x(alone.stream, DType::f32, {4}, std::vector<float>(4, 1.0f)),
        y(alone.stream, DType::f32, {4}, std::vector<float>(4, 2.0f));
    Stream other = Stream::cuda(0);
    DeviceBuffer seen(other, DType::f32, {4});
    ncclAllReduce(device_pointer<float>(x), device_pointer<float>(y), 4, ncclFloat32, ncclSum, alone.comm,
                  alone.native());
    alone.settle();
    cuda::copy(seen.tensor().data, y.tensor().data, 16, other.native());  // without an event
    CHECK(std::isnan(seen.floats()[0]));
    CHECK(y.floats()[0] == 1.0f);
  }
  settings = before;
}
#endif

TEST_CASE("the limit on CTAs reaches NCCL, for all ranks and for the parts of a communicator") {
  const auto limited = [](int limit) {
    const std::vector<int> all = cuda_host::nccl_cta_limits();
    return std::count(all.begin(), all.end(), limit);
  };
  const auto before = limited(7);
  CHECK_NOTHROW(run_nccl_ranks({.ranks = 4, .max_ctas = 7}, [&](Communicator& control, Communicator& world) {
    const int first = world.rank() / 2 * 2;
    auto pair = world.split("pair", {first, first + 1});
    Stream host = Stream::cpu();
    control.barrier(host, "all are made");
    if (limited(7) != before + 8) throw std::runtime_error("not every communicator has the limit");
    control.barrier(host, "all were counted");
  }));
  CHECK(limited(7) == before);
  CHECK_THROWS_WITH(run_nccl_ranks({.ranks = 1, .max_ctas = 65}, [](Communicator&, Communicator&) {}),
                    Catch::Contains("ncclCommInitRankConfig failed") && Catch::Contains("maxCTAs"));
}

TEST_CASE("communicators of the same ranks share NCCL's, unless they run in different lanes") {
  const auto count = [] { return std::ssize(cuda_host::nccl_cta_limits()); };
  const auto before = count();
  CHECK_NOTHROW(run_nccl_ranks({.ranks = 2}, [&](Communicator& control, Communicator& world) {
    Stream host = Stream::cpu();
    const auto loss = world.split("loss", {0, 1}), tp = world.split("tp", {0, 1}),
               heads = tp->split("kv_heads", {0, 1});
    control.barrier(host, "all are made");
    if (count() != before + 2 * 3) throw std::runtime_error("expected those of world, tp and kv_heads");
    control.barrier(host, "all were counted");
  }));
}

// A first send holds the host until the receiver makes its call, which here comes only afterwards.
TEST_CASE("ranks that have connected in pairs send before the others receive") {
  CHECK_NOTHROW(run_nccl_ranks({.ranks = 3}, [&](Communicator& control, Communicator& world) {
    const auto part = world.split("tp", {0, 1, 2});
    for (Communicator* comm : {&world, part.get(), part.get()}) comm->connect_pairs(all_ranks(3));
    world.state().set_timeout_seconds(30);
    Stream stream = Stream::cuda(world.rank()), host = Stream::cpu();
    DeviceBuffer x(stream, DType::f32, {4}, std::vector<float>(4, 1.0f + static_cast<float>(world.rank())));
    for (Communicator* comm : {&world, part.get()}) {
      Request request;
      if (world.rank() == 2) request = comm->send(stream, {.tensor = x.tensor(), .to = 0, .label = "ahead"});
      control.barrier(host, "it was sent");
      if (world.rank() == 0)
        request = comm->recv(stream, {.tensor = x.tensor(), .from = 2, .label = "ahead"});
      request.wait(stream);
      stream.synchronize();
      if (world.rank() == 0 && x.floats()[3] != 3) throw std::runtime_error("another message came");
    }
  }));
}

TEST_CASE("NCCL's calls have the highest priority, in graphs too") {
  cuda_host::nccl_stream_priorities();
  run_nccl_ranks({.ranks = 2}, [](Communicator&, Communicator& world) {
    Stream stream = stream_for(world);
    Values<float> x(8, 1.0f);
    for (const char* axis : {"dp_shard", "tp"}) {
      const auto part = world.split(axis, {0, 1});
      const auto sum = [&] {
        part->all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "x"}).wait(stream);
      };
      sum();
      stream.synchronize();
      const cuda::Graph graph = cuda::Graph::record(stream, sum);
      graph.launch(stream);
      stream.synchronize();
    }
  });
  CHECK(cuda_host::nccl_stream_priorities() == std::set{cuda_host::kHighestPriority});
  Alone alone;  // on a stream as others are
  DeviceBuffer x(alone.stream, DType::f32, {16}, std::vector<float>(16, 1.0f));
  CHECK(ncclAllReduce(device_pointer<float>(x), device_pointer<float>(x), 16, ncclFloat32, ncclSum,
                      alone.comm, alone.native()) == ncclInProgress);
  alone.settle();
  CHECK(cuda_host::nccl_stream_priorities() == std::set{0});
}

TEST_CASE("NCCL that cannot connect is one error, on every rank") {
  for (int ranks : {1, 3}) {
    std::vector<std::string> says(static_cast<size_t>(ranks));
    cuda_host::break_next_connection("Bootstrap : no socket interface found");
    CHECK_THROWS_WITH(run_thread_ranks({.ranks = ranks, .timeout_seconds = 20},
                                       [&](Communicator& control) {
                                         try {
                                           CommunicatorBootstrap bootstrap(control);
                                           nccl::make_world(bootstrap, control.shared_state(),
                                                            {.gpu = control.rank()});
                                         } catch (const CommError& error) {
                                           says[static_cast<size_t>(control.rank())] = error.what();
                                           throw;
                                         }
                                       }),
                      Catch::Contains("[nccl] ncclCommInitRankConfig failed: unhandled system error "
                                      "(Bootstrap : no socket interface found)"));
    for (const std::string& said : says) CHECK(contains(said, "no socket interface found"));
  }
}

TEST_CASE("a rank whose end breaks the network is named, not the network") {
  using cuda_host::Breakage;
  const auto breakage = GENERATE(Breakage::remote, Breakage::system, Breakage::internal);
  CHECK_THROWS_WITH(
      run_nccl_ranks({.ranks = 2},
                     [=](Communicator& control, Communicator& world) {
                       Stream stream = stream_for(world), host = Stream::cpu();
                       Values<float> x(8, 1.0f);
                       control.barrier(host, "both are here");
                       if (world.rank() == 0) {
                         world.all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "broken"});
                         cuda_host::break_network(breakage);
                         // The ledger hears of it later than NCCL does.
                         const Stopwatch watch;
                         while (!world.state().failed() && watch.seconds() < 0.5)
                           std::this_thread::sleep_for(std::chrono::milliseconds(1));
                         control.state().fail("[comm] rank 1 is gone, last seen in barrier");
                       }
                       while (!world.state().failed())
                         std::this_thread::sleep_for(std::chrono::milliseconds(1));
                       expect_error<CommError>("[comm] rank 1 is gone, last seen in barrier", [&] {
                         world.all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "after"});
                       });
                       stream.synchronize();
                       throw CommError(world.state().failure());
                     }),
      "[comm] rank 1 is gone, last seen in barrier");
}

TEST_CASE("a network that breaks fails the ranks, and calls under way are given up") {
  CHECK_THROWS_WITH(
      run_nccl_ranks(
          {.ranks = 2},
          [](Communicator& control, Communicator& world) {
            Stream stream = stream_for(world);
            Values<float> x(8, 1.0f);
            finish(world.all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "x"}), stream);
            Stream host = Stream::cpu();
            control.barrier(host, "both are here");
            if (world.rank() == 0) {
              world.all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "broken"}).wait(stream);
              cuda_host::break_network();
            }
            stream.synchronize();
            while (!world.state().failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            throw CommError(world.state().failure());
          }),
      Catch::Contains("a collective failed: remote process exited"));
}
