#include "core/cost.h"
#include "parallel/comm/all_ranks.h"
#include "tests/parallel/comm/communicator_conformance.h"

namespace ottava::conformance {
namespace {

void refuses_bad_arguments(Communicator& world) {
  Stream stream = stream_for(world);
  int64_t n = world.size();
  Values<float> a(static_cast<size_t>(8 * n)), b(static_cast<size_t>(8 * n));
  Values<uint8_t> bytes(8);
  Tensor whole = view_of(a.data(), {8 * n}), other = view_of(b.data(), {8 * n}),
         block = view_of(b.data(), {8});
  auto shape_error = [&](std::string_view text, auto body) { expect_error<ShapeError>(text, body); };

  shape_error("sent as f32 [8] and received as f32 [4]",
              [&] { world.all_reduce(stream, {.send = block, .recv = block.slice(0, 4), .label = "x"}); });
  shape_error("sent as f32 and received as u8", [&] {
    world.all_reduce(stream, {.send = block, .recv = view_of(bytes.data(), {8}), .label = "x"});
  });
  shape_error("'x' is u8, which cannot be reduced",
              [&] { world.all_reduce(stream, {.send = view_of(bytes.data(), {8}), .label = "x"}); });
  shape_error("in place, recv is send itself", [&] {
    world.all_reduce(stream, {.send = whole.slice(0, 5), .recv = whole.slice(1, 6), .label = "x"});
  });
  shape_error("elements in all blocks together", [&] {
    world.all_gather(stream, {.send = block, .recv = whole.slice(0, 8 * n - 1), .label = "x"});
  });
  shape_error("send is this rank's block of recv", [&] {
    int64_t wrong = 8 * world.rank() + (world.rank() ? -1 : 1);
    world.all_gather(
        stream, {.send = view_of(a.data() + wrong, {8}), .recv = view_of(a.data(), {8 * n}), .label = "x"});
  });
  shape_error("recv is this rank's block of send", [&] {
    int64_t wrong = 8 * world.rank() + (world.rank() ? -1 : 1);
    world.reduce_scatter(stream, {.send = whole, .recv = view_of(a.data() + wrong, {8}), .label = "x"});
  });
  shape_error("elements in all blocks together", [&] {
    world.reduce_scatter(stream, {.send = whole.slice(0, 1), .recv = block, .label = "x"});
  });
  shape_error("all_to_all is never in place",
              [&] { world.all_to_all(stream, {.send = whole, .recv = whole, .label = "x"}); });
  if (n > 1) {
    shape_error("expected the same multiple", [&] {
      world.all_to_all(stream,
                       {.send = whole.slice(0, 8 * n - 1), .recv = other.slice(0, 8 * n - 1), .label = "x"});
    });
  }
  shape_error(fmt::format("names rank {}, but axis world", n),
              [&] { world.send(stream, {.tensor = block, .to = static_cast<int>(n), .label = "x"}); });
  shape_error("names rank -1", [&] { world.recv(stream, {.tensor = block, .from = -1, .label = "x"}); });
  shape_error("to itself", [&] { world.send(stream, {.tensor = block, .to = world.rank(), .label = "x"}); });
  shape_error("must ascend", [&] { world.split("x", {world.rank(), world.rank()}); });
  shape_error("must ascend", [&] { world.split("x", {static_cast<int>(n)}); });
  shape_error("is not among its own group", [&] { world.split("x", {}); });
  expect(world.stats().calls() == 0, "a refused call was counted");
}

void groups_are_transactions(Communicator& world) {
  Stream stream = stream_for(world), second = stream_for(world);
  Values<float> x(4, 1.0f), y(4, 1.0f);
  expect_error<CommError>("no group is open", [&] { world.group_end(); });
  {
    Group group(world);
    expect_error<CommError>("groups do not nest", [&] { world.group_begin(); });
    Request inside = world.all_reduce(stream, {.send = view_of(x.data(), {4}), .label = "x"});
    expect_error<CommError>("end the group first", [&] { finish(inside, stream); });
    expect_error<CommError>("cannot be part of a group", [&] { world.barrier(stream, "b"); });
    expect_error<CommError>("another stream than its group", [&] {
      world.all_reduce(second, {.send = view_of(x.data(), {4}), .label = "x"});
    });
    world.all_reduce(stream, {.send = view_of(y.data(), {4}), .label = "y"});
    finish(group.end(), stream);
    finish(inside, stream);
  }
  expect(world.stats().calls() == 2, "a group of two calls was counted as {}", world.stats().calls());
  {
    Group empty(world);
    empty.end().wait(stream);
  }
  try {
    Group dropped(world);
    world.all_reduce(stream, {.send = view_of(x.data(), {4}), .label = "x"});
    throw 1;
  } catch (int) {
  }
  expect(world.stats().calls() == 2, "a dropped group was issued");
  finish(world.all_reduce(stream, {.send = view_of(x.data(), {4}), .label = "x"}), stream);
}

void counts_bytes(Communicator& world) {
  Stream stream = stream_for(world);
  int64_t n = world.size(), r = world.rank();
  Values<float> a(static_cast<size_t>(10 * n)), b(static_cast<size_t>(10 * n));
  Tensor whole = view_of(a.data(), {10 * n}), target = view_of(b.data(), {10 * n});
  Tensor block = view_of(b.data() + 10 * r, {10});
  auto expect_sum = [&](Collective kind, int64_t calls, int64_t payload, int64_t sent) {
    CommStats::Total sum = world.stats().sum(kind, "world");
    expect(sum.calls == calls && sum.payload_bytes == payload && sum.sent_bytes == sent,
           "{}: {} calls, {} payload, {} sent; expected {}, {}, {}", name_of(kind), sum.calls,
           sum.payload_bytes, sum.sent_bytes, calls, payload, sent);
  };
  finish(world.all_reduce(stream, {.send = whole, .label = "a"}), stream);
  expect_sum(Collective::all_reduce, 1, 40 * n, 80 * (n - 1));
  finish(world.reduce_scatter(stream, {.send = whole, .recv = block, .label = "a"}), stream);
  finish(world.reduce_scatter(stream, {.send = whole, .recv = block, .label = "b"}), stream);
  expect_sum(Collective::reduce_scatter, 2, 80 * n, 80 * (n - 1));
  finish(world.all_gather(stream, {.send = block, .recv = target, .label = "a"}), stream);
  expect_sum(Collective::all_gather, 1, 40 * n, 40 * (n - 1));
  finish(world.all_to_all(stream, {.send = whole, .recv = target, .label = "a"}), stream);
  expect_sum(Collective::all_to_all, 1, 40 * n, 40 * (n - 1));
  world.barrier(stream, "a");
  expect_sum(Collective::barrier, 1, 0, 0);

  // An uneven sum: the ranks together send 2 (n - 1) times the payload.
  world.stats().reset();
  expect(world.stats().totals().empty(), "reset left counts behind");
  int64_t odd = 4 * n + 3;
  finish(world.all_reduce(stream, {.send = whole.slice(0, odd), .label = "odd"}), stream);
  int64_t slice = (odd * (r + 1) / n - odd * r / n) * 4;
  expect_sum(Collective::all_reduce, 1, odd * 4, odd * 4 - slice + (n - 1) * slice);

  // Without data, on a meta stream: counted under the label, nothing else.
  world.stats().reset();
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, Device{});
  Request planned = world.all_gather(meta, {.send = {nullptr, DType::bf16, {1 << 20}},
                                            .recv = {nullptr, DType::bf16, {n << 20}},
                                            .label = "layers.0"});
  planned.wait(meta);
  auto totals = world.stats().totals();
  expect(totals.size() == 1 && totals[0].label == "layers.0" && totals[0].axis == "world" &&
             totals[0].sent_bytes == (n - 1) << 21,
         "planned totals are wrong");
}

void splits_share_counters(Communicator& world) {
  Stream stream = stream_for(world);
  auto same = world.split("dp_shard", all_ranks(world.size()));
  auto alone = world.split("tp", {world.rank()});
  expect(same->size() == world.size() && same->rank() == world.rank() && same->axis() == "dp_shard", "split");
  expect(alone->size() == 1 && alone->rank() == 0 && alone->world_ranks()[0] == world.rank(), "split alone");
  Values<float> x(4, 2.0f), y(4);
  finish(same->all_reduce(stream, {.send = view_of(x.data(), {4}), .label = "x"}), stream);
  finish(alone->all_gather(stream,
                           {.send = view_of(x.data(), {4}), .recv = view_of(y.data(), {4}), .label = "y"}),
         stream);
  expect(x == y, "one rank alone did not copy");
  expect(world.stats().sum(Collective::all_gather, "tp").calls == 1,
         "tp was not counted in the world's counters");
  expect(world.stats().sum(Collective::all_reduce, "dp_shard").calls == 1, "dp_shard was not counted");
}

}  // namespace

const std::vector<Case>& contract_cases() {
  static const std::vector<Case> cases = {{"refuses bad arguments", refuses_bad_arguments},
                                          {"groups are transactions", groups_are_transactions},
                                          {"counts bytes", counts_bytes},
                                          {"splits share counters", splits_share_counters}};
  return cases;
}

}  // namespace ottava::conformance
