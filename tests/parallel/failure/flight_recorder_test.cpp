#include "parallel/failure/flight_recorder.h"

#include "parallel/ranks/clock_offset.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("every call of a rank is kept, with its times, sizes and end") {
  run_thread_ranks({.ranks = 3}, [](Communicator& world) {
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
    CHECK(calls.size() == (world.rank() == 2 ? 2U : 3U));
    int64_t before = 0;
    for (const CallRecord& c : calls) {
      CHECK(c.step == 7);
      CHECK(c.state == CallRecord::State::completed);
      CHECK(c.issued_ns >= before);
      CHECK(c.began_ns >= c.issued_ns);
      CHECK(c.ended_ns >= c.began_ns);
      before = c.issued_ns;
    }
    CHECK(calls[0].collective == Collective::all_gather);
    CHECK(calls[0].label == "x");
    CHECK(calls[0].in_elements == 4);
    CHECK(calls[0].out_elements == 12);
    CHECK(calls[0].payload_bytes == 48);
    CHECK(calls[0].sent_bytes == 32);
    CHECK(calls[1].sequence == calls[0].sequence + 1);
    if (world.rank() != 2) {
      CHECK(calls[2].axis == "pair");
      CHECK(calls[2].group_size == 2);
      CHECK(calls[2].sequence == 1);
    }
  });
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
  run_thread_ranks({.ranks = 3}, [](Communicator& world) {
    const ClockOffset offset = measure_clock_offset(world);
    CHECK(offset.nanoseconds == 0);
    CHECK(offset.uncertainty_ns == 0);
  });
}
