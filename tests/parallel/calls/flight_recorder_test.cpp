#include "parallel/calls/flight_recorder.h"

#include "parallel/comm/clock_offset.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using conformance::expect;

TEST_CASE("every call of a rank is kept, with its times, sizes and end") {
  CHECK_NOTHROW(run_thread_ranks({.ranks = 3}, [](Communicator& world) {
    Stream stream = Stream::cpu();
    world.state().set_step(7);
    const int64_t first = world.state().calls().next_id();
    std::vector<float> mine(4, 1), all(12);
    auto pair = world.split("pair", world.rank() == 2 ? std::vector<int>{2} : std::vector<int>{0, 1});
    world
        .all_gather(stream,
                    {.send = view_of(mine.data(), {4}), .recv = view_of(all.data(), {12}), .label = "x"})
        .wait(stream);
    world.all_reduce(stream, {.send = view_of(mine.data(), {4}), .label = "y"}).wait(stream);
    pair->all_reduce(stream, {.send = view_of(mine.data(), {4}), .label = "z"}).wait(stream);
    const std::vector<CallRecord> calls = world.state().calls().records(first);
    // Alone on its axis a rank waits for nobody: nothing to record.
    expect(calls.size() == (world.rank() == 2 ? 2U : 3U), "{} calls are kept", calls.size());
    int64_t before = 0;
    for (const CallRecord& c : calls) {
      expect(c.step == 7, "step {}", c.step);
      expect(c.state == CallRecord::State::completed, "'{}' has not ended", c.label);
      expect(c.issued_ns >= before && c.began_ns >= c.issued_ns && c.ended_ns >= c.began_ns,
             "'{}' was issued at {}, began at {} and ended at {}, after one issued at {}", c.label,
             c.issued_ns, c.began_ns, c.ended_ns, before);
      before = c.issued_ns;
    }
    expect(calls[0].collective == Collective::all_gather && calls[0].label == "x", "the first call is '{}'",
           calls[0].label);
    expect(calls[0].in_elements == 4 && calls[0].out_elements == 12, "{} and {} elements",
           calls[0].in_elements, calls[0].out_elements);
    expect(calls[0].payload_bytes == 48 && calls[0].sent_bytes == 32, "{} bytes, {} sent",
           calls[0].payload_bytes, calls[0].sent_bytes);
    expect(calls[1].sequence == calls[0].sequence + 1, "sequence {} after {}", calls[1].sequence,
           calls[0].sequence);
    if (world.rank() != 2) {
      expect(calls[2].axis == "pair" && calls[2].group_size == 2 && calls[2].sequence == 1,
             "axis {} of {}, sequence {}", calls[2].axis, calls[2].group_size, calls[2].sequence);
    }
  }));
}

TEST_CASE("the recorder keeps the last calls only") {
  FlightRecorder recorder;
  recorder.set_capacity(3);
  for (int i = 0; i < 8; ++i) {
    const int64_t id = recorder.issued({.axis = "a", .label = std::to_string(i)});
    CHECK(id == i);
    recorder.began(id);
    if (i != 6) recorder.ended(id);
  }
  recorder.ended(2);  // gone: nothing is written over another
  const std::vector<CallRecord> calls = recorder.records();
  REQUIRE(calls.size() == 3);
  CHECK(calls[0].label == "5");
  CHECK(calls[1].state == CallRecord::State::started);
  CHECK(calls[2].label == "7");
  CHECK(recorder.records(7).size() == 1);
  recorder.set_capacity(0);
  recorder.issued({.axis = "a"});
  CHECK(recorder.records().empty());
  CHECK(recorder.next_id() == 9);
}

TEST_CASE("calls are written under the names of PyTorch's flight recorder") {
  FlightRecorder recorder;
  recorder.issued({.step = 4,
                   .collective = Collective::reduce_scatter,
                   .axis = "dp_shard",
                   .label = "layers.1",
                   .group_size = 4,
                   .dtype = DType::bf16,
                   .in_elements = 64,
                   .out_elements = 16,
                   .sent_bytes = 96});
  const Json json = flight_record(recorder.records(), 2, 4, "rank 3 is gone");
  CHECK(json.at("reason", "j").as_string("reason") == "rank 3 is gone");
  CHECK(json.at("rank", "j").as_integer("rank") == 2);
  CHECK(json.at("pg_config", "j").at("dp_shard", "j").at("size", "j").as_integer("size") == 4);
  const Json& entry = json.at("entries", "j").as_array("entries").at(0);
  CHECK(entry.at("record_id", "e").as_integer("id") == 0);
  CHECK(entry.at("collective_seq_id", "e").as_integer("seq") == 1);
  CHECK(entry.at("profiling_name", "e").as_string("name") == "reduce_scatter:layers.1");
  CHECK(entry.at("state", "e").as_string("state") == "scheduled");
  CHECK(entry.at("input_dtypes", "e").as_array("d").at(0).as_string("d") == "bf16");
  CHECK(entry.at("time_discovered_started_ns", "e").is_null());
  CHECK_FALSE(entry.at("retired", "e").as_bool("retired"));
  CHECK(flight_record({}, 0, 1, "").at("entries", "j").as_array("entries").empty());
}

TEST_CASE("ranks of one machine have one clock") {
  CHECK_NOTHROW(run_thread_ranks({.ranks = 3}, [](Communicator& world) {
    const ClockOffset offset = measure_clock_offset(world);
    expect(offset.nanoseconds == 0 && offset.uncertainty_ns == 0, "{} ns, within {} ns", offset.nanoseconds,
           offset.uncertainty_ns);
  }));
}
