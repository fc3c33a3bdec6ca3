#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string_view>
#include <thread>

#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/skip.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using namespace ottava::conformance;
using Catch::Contains;

namespace {

bool is_host_layer() { return cuda::device_name(0) == "host execution layer"; }

// Whether a GPU carries out one of NCCL's kernels after the other (tests/support/cuda_host/settings.h).
bool runs_in_order() {
  const char* collectives = std::getenv("OTTAVA_CUDA_HOST_COLLECTIVES");
  return collectives && std::string_view(collectives) == "in_order";
}

}  // namespace

TEST_CASE("NCCL communicator conforms") {
  for (int ranks : {1, 2, 3, 4}) {
    if (nccl_ranks(ranks) < ranks) return skip("NCCL needs a GPU for each rank");
    for (auto* cases : {&contract_cases(), &data_cases()}) {
      for (const auto& item : *cases) {
        INFO(item.name << " on " << ranks << " ranks");
        CHECK_NOTHROW(
            run_nccl_ranks({.ranks = ranks}, [&](Communicator&, Communicator& world) { item.run(world); }));
      }
    }
  }
}

// In one stream rank 0's sum would wait behind its receive, and rank 1 sends only after the sum.
TEST_CASE("NCCL: calls of tensor parallel do not queue behind what a pipeline receives ahead") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  if (runs_in_order()) return skip("two of NCCL's kernels must run at once");
  CHECK_NOTHROW(run_nccl_ranks({.ranks = 2}, [](Communicator&, Communicator& world) {
    constexpr int64_t kCount = 1000;
    // They outlive the communicators, and with them the calls, also where a call throws.
    Values<float> sum(kCount), message(kCount);
    Stream stream = stream_for(world);
    const auto pp = world.split("pp", {0, 1}), tp = world.split("tp", {0, 1});
    pp->connect_pairs({0, 1});
    expect(world.carries_axes_apart(), "lanes are what this is about");
    std::ranges::fill(sum, 1.0f);
    std::ranges::fill(message, world.rank() == 1 ? 5.0f : 0.0f);
    const Tensor sums = view_of(sum.data(), {kCount}), text = view_of(message.data(), {kCount});
    Request received;
    if (world.rank() == 0) received = pp->recv(stream, {.tensor = text, .from = 1, .label = "ahead"});
    tp->all_reduce(stream, {.send = sums, .recv = {}, .label = "sum"}).wait(stream);
    stream.synchronize();
    if (world.rank() == 1) received = pp->send(stream, {.tensor = text, .to = 0, .label = "ahead"});
    received.wait(stream);
    stream.synchronize();
    expect(std::ranges::all_of(sum, [](float x) { return x == 2; }), "the sum is wrong");
    expect(std::ranges::all_of(message, [](float x) { return x == 5; }), "the message is wrong");
  }));
}

// Such a graph must be gone before the communicator is; a group of one rank that is split off needs no NCCL,
// the world has.
TEST_CASE("NCCL's collectives of one rank are recorded in a graph and repeated by it") {
  if (nccl_ranks(1) < 1) return skip("NCCL needs 1 GPU");
  CHECK_NOTHROW(run_nccl_ranks({.ranks = 1}, [](Communicator&, Communicator& world) {
    constexpr int64_t kCount = 1000;
    Stream stream = stream_for(world);
    Values<float> x(kCount), reduced(kCount), gathered(kCount), scattered(kCount);
    const Tensor send = view_of(x.data(), {kCount});
    auto collectives = [&] {
      world.all_reduce(stream, {.send = send, .recv = view_of(reduced.data(), {kCount}), .label = "a"})
          .wait(stream);
      world.all_gather(stream, {.send = send, .recv = view_of(gathered.data(), {kCount}), .label = "b"})
          .wait(stream);
      world.reduce_scatter(stream, {.send = send, .recv = view_of(scattered.data(), {kCount}), .label = "c"})
          .wait(stream);
    };
    collectives();  // NCCL sets up what it needs in the first calls
    stream.synchronize();
    const cuda::Graph graph = cuda::Graph::record(stream, collectives);
    expect(graph.nodes() >= 3, "{} operations were recorded, expected 3 or more", graph.nodes());
    for (float value : {1.5f, -2.0f}) {
      std::ranges::fill(x, value);
      for (Values<float>* result : {&reduced, &gathered, &scattered}) std::ranges::fill(*result, 0.0f);
      graph.launch(stream);
      world.graph_launched(stream, "the collectives", 3);
      stream.synchronize();
      for (const Values<float>* result : {&reduced, &gathered, &scattered})
        expect(*result == x, "a launch for {} gave {}", value, (*result)[0]);
    }
  }));
}

// Calls that go into a graph would never be seen to end, and be what a report after a failure points at.
TEST_CASE("NCCL: the flight recorder keeps the launches of a graph, not the calls that went into it") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  CHECK_NOTHROW(run_nccl_ranks({.ranks = 2}, [](Communicator&, Communicator& world) {
    constexpr int64_t kCount = 1000;
    Stream stream = stream_for(world);
    Values<float> x(kCount);
    std::ranges::fill(x, 1.0f);
    auto sums = [&](std::string_view label) {
      for (int i = 0; i < 3; ++i) {
        world.all_reduce(stream, {.send = view_of(x.data(), {kCount}), .recv = {}, .label = label})
            .wait(stream);
      }
    };
    sums("plain");
    stream.synchronize();
    const cuda::Graph graph = cuda::Graph::record(stream, [&] { sums("captured"); });
    for (int launches = 0; launches < 2; ++launches) {
      graph.launch(stream);
      world.graph_launched(stream, "the sums", 3);
    }
    stream.synchronize();
    const auto have_ended = [&](const std::vector<CallRecord>& calls) {
      return std::ranges::all_of(calls,
                                 [](const auto& c) { return c.state == CallRecord::State::completed; });
    };
    FlightRecorder& recorder = world.state().calls();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!have_ended(recorder.records()) && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::vector<CallRecord> calls = recorder.records();
    expect(have_ended(calls), "a call is not seen to end");
    const auto count = [&](std::string_view label) {
      return std::ranges::count(calls, label,
                                [](const CallRecord& c) -> std::string_view { return c.label; });
    };
    expect(count("plain") == 3, "{} plain calls were recorded, expected 3", count("plain"));
    expect(count("captured") == 0, "{} captured calls were recorded", count("captured"));
    expect(count("the sums") == 2, "{} launches were recorded, expected 2", count("the sums"));
    expect(calls.back().collective == Collective::graph && calls.back().calls == 3,
           "the last is {} of {} calls", name_of(calls.back().collective), calls.back().calls);
  }));
}

TEST_CASE("without NCCL or a GPU its communicator is refused") {
  if (nccl_ranks(1) > 0) return skip("NCCL has a GPU here");
  auto start = [] { run_nccl_ranks({.ranks = 1}, [](Communicator&, Communicator&) {}); };
  if (nccl::available()) {
    CHECK_THROWS(start());
  } else {
    CHECK_THROWS_WITH(start(), Contains("[nccl] this binary was built without NCCL: use comm.backend mpi, or "
                                        "build with nccl.h and libnccl"));
  }
}

TEST_CASE("NCCL moves tensors of the GPU only") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  CHECK_NOTHROW(run_nccl_ranks({.ranks = 2}, [](Communicator&, Communicator& world) {
    Stream host = Stream::cpu();
    std::vector<float> x(4);
    expect_error<CommError>("'x' is on cpu, but NCCL transfers only GPU tensors",
                            [&] { world.all_reduce(host, {.send = view_of(x.data(), {4}), .label = "x"}); });
    if (!is_host_layer()) return;  // NCCL itself looks at pointers only when it is told to
    Stream stream = stream_for(world);
    expect_error<CommError>("a buffer is not memory of the GPU", [&] {
      world.all_reduce(stream, {.send = view_of(x.data(), {4}), .label = "x"});
    });
  }));
}

TEST_CASE("two ranks on one GPU are refused by NCCL") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  CHECK_THROWS_WITH(run_thread_ranks({.ranks = 2, .timeout_seconds = 20},
                                     [](Communicator& control) {
                                       CommunicatorBootstrap bootstrap(control);
                                       nccl::make_world(bootstrap, control.shared_state(),
                                                        {.gpu = 0, .advice = "; show it all GPUs"});
                                     }),
                    Contains("[nccl] ncclCommInitRankConfig failed: ") &&
                        Contains("Duplicate GPU detected") &&
                        Contains("; set NCCL_DEBUG=INFO for details from NCCL, or comm.backend to mpi or tcp "
                                 "to train without it; show it all GPUs"));
}

TEST_CASE("a rank that does not come ends the others' collectives") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  std::promise<void> ended;
  CHECK_THROWS_WITH(
      run_nccl_ranks(
          {.ranks = 2},
          [&](Communicator&, Communicator& world) {
            world.state().set_timeout_seconds(1);  // short only now: ranks may find each other late
            if (world.rank() == 1) {
              ended.get_future().wait_for(std::chrono::seconds(60));
              return;
            }
            Stream stream = stream_for(world);
            Values<float> x(8, 1.0f);
            world.all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "alone"}).wait(stream);
            stream.synchronize();  // comes back because the call is aborted
            ended.set_value();
            if (world.state().failed()) throw CommError(world.state().failure());
          }),
      Contains("all_reduce 'alone") && Contains("made no progress") && Contains("for 1 s"));
}

// The abort of a communicator lasts until such graphs are gone.
TEST_CASE("NCCL: a graph that another rank does not launch is named, and comes to its end") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  std::promise<void> ended;
  CHECK_THROWS_WITH(
      run_nccl_ranks(
          {.ranks = 2},
          [&](Communicator&, Communicator& world) {
            Stream stream = stream_for(world);
            Values<float> x(8, 1.0f);
            const auto sum = [&] {
              world.all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "recorded"}).wait(stream);
            };
            sum();
            stream.synchronize();
            const cuda::Graph graph = cuda::Graph::record(stream, sum);
            world.state().set_timeout_seconds(1);
            if (world.rank() == 1) {
              ended.get_future().wait_for(std::chrono::seconds(60));
              return;
            }
            graph.launch(stream);
            world.graph_launched(stream, "the sum", 1);
            stream.synchronize();  // comes back because the call is aborted
            ended.set_value();
            if (world.state().failed()) throw CommError(world.state().failure());
          }),
      Contains("rank 0 made no progress in CUDA graph 'the sum'") && Contains("for 1 s"));
}

TEST_CASE("NCCL: a call that hangs in one lane is named, although another lane's calls end") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  if (runs_in_order()) return skip("two of NCCL's kernels must run at once");
  std::promise<void> ended;
  CHECK_THROWS_WITH(
      run_nccl_ranks({.ranks = 2},
                     [&](Communicator& control, Communicator& world) {
                       const auto tp = world.split("tp", {0, 1});
                       Stream stream = stream_for(world);
                       Values<float> x(8, 1.0f), y(8, 1.0f);
                       Request hanging;
                       if (world.rank() == 0) {
                         hanging = tp->all_reduce(stream, {.send = view_of(x.data(), {8}), .label = "hangs"});
                         while (world.state().progress().call.label != "hangs")
                           std::this_thread::sleep_for(std::chrono::milliseconds(1));
                       }
                       finish(world.all_reduce(stream, {.send = view_of(y.data(), {8}), .label = "ends"}),
                              stream);
                       Stream host = Stream::cpu();
                       control.barrier(host, "the other lane's call has ended");
                       world.state().set_timeout_seconds(1);
                       if (world.rank() == 1) {
                         ended.get_future().wait_for(std::chrono::seconds(60));
                         return;
                       }
                       hanging.wait(stream);
                       stream.synchronize();  // comes back because the call is aborted
                       ended.set_value();
                       if (world.state().failed()) throw CommError(world.state().failure());
                     }),
      Contains("rank 0 made no progress in all_reduce 'hangs' (axis tp") &&
          Contains("behind: rank 1 is after "));
}

TEST_CASE("ranks that make different calls over NCCL do not hang") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  bool has_thrown = false;
  try {
    run_nccl_ranks({.ranks = 2}, [](Communicator&, Communicator& world) {
      world.state().set_timeout_seconds(1);
      Stream stream = stream_for(world);
      Values<float> x(8, 1.0f);
      const int64_t count = world.rank() == 0 ? 8 : 4;
      finish(world.all_reduce(stream, {.send = view_of(x.data(), {count}), .label = "x"}), stream);
      if (world.state().failed()) throw CommError(world.state().failure());
    });
  } catch (const CommError&) {
    has_thrown = true;
  }
  if (is_host_layer()) CHECK(has_thrown);  // NCCL does not compare counts, and few bytes may come through
}
