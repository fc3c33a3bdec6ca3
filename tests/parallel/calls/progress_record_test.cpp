#include "parallel/calls/progress_record.h"

#include <fmt/core.h>

#include "parallel/calls/message_counts.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using State = ProgressRecord::State;

namespace {

constexpr uint32_t kGroup = 77;

// Of 512 ranks that all make the call.
ProgressRecord at(int rank, State state, int64_t sequence, std::string label = "layers.1") {
  return {.rank = rank,
          .state = state,
          .was_inside = state == State::inside,
          .step = 7,
          .call = {.collective = Collective::all_gather,
                   .axis = "dp_shard",
                   .label = std::move(label),
                   .elements = 64,
                   .group = kGroup,
                   .ranks = {{.first = 0, .count = 512}},
                   .sequence = sequence,
                   .place = sequence},
          .collectives = {{kGroup, sequence}}};
}

// In a receive from `from`, or after one; such a rank has made `collectives` calls that all make.
ProgressRecord receiving(int rank, State state, int from, int64_t sequence, int64_t collectives = 0) {
  ProgressRecord r = at(rank, state, sequence, fmt::format("from {}", from));
  r.call.collective = Collective::recv;
  r.call.ranks = {{.first = from}};
  r.call.collectives = r.call.place = 0;
  r.collectives = {{kGroup, collectives}};
  return r;
}

}  // namespace

TEST_CASE("blame names the rank that is behind") {
  std::string text = blame({at(0, State::inside, 9), at(1, State::done, 8), at(2, State::inside, 9)});
  CHECK(text ==
        "behind: rank 1 is after all_gather 'layers.1' (axis dp_shard, call 8, step 7); waiting: ranks 0, 2 "
        "are "
        "in all_gather 'layers.1' (axis dp_shard, call 9, step 7)");
  CHECK_THAT(blame({at(0, State::inside, 1), ProgressRecord{.rank = 1}}),
             Contains("behind: rank 1 is before its first call"));
}

TEST_CASE("blame names ranks that are gone before ranks that are behind") {
  ProgressRecord gone = at(2, State::closed, 9);
  gone.was_inside = true;
  CHECK_THAT(blame({at(0, State::inside, 9), at(1, State::done, 8), gone}),
             Catch::StartsWith(
                 "rank 2 is gone, last seen in all_gather 'layers.1' (axis dp_shard, call 9, step 7); "));
  CHECK_THAT(blame({at(0, State::inside, 9), at(1, State::silent, 9)}),
             Catch::StartsWith("rank 1 is not answering, last seen after"));
  CHECK_THAT(blame({at(0, State::inside, 9), at(1, State::failed, 9)}),
             Catch::StartsWith("rank 1 is stopped by an error"));
  CHECK_THAT(blame({at(0, State::inside, 9), ProgressRecord{.rank = 1, .state = State::closed}}),
             Contains("rank 1 is gone, last seen before its first call"));
}

TEST_CASE("blame tells disagreement from a broken connection") {
  CHECK_THAT(blame({at(0, State::inside, 9, "a"), at(1, State::inside, 9, "b")}),
             Contains("the ranks disagree about the call"));
  CHECK_THAT(
      blame({at(0, State::inside, 9), at(1, State::inside, 9)}),
      Contains("no rank is behind: all have entered the call, and its data does not arrive: ranks 0, 1 "
               "are in all_gather"));
  CHECK(blame({}) == "no rank has reported");
}

TEST_CASE("blame says that a graph may only take long, where no rank is behind") {
  const std::string advice =
      "; a graph that takes longer than comm.train_timeout_seconds looks the same: if this one may, raise "
      "it, or set training.cuda_graphs to off";
  std::vector<ProgressRecord> records = {at(0, State::inside, 9, "the micro-batch"),
                                         at(1, State::inside, 9, "the micro-batch")};
  for (ProgressRecord& r : records) r.call.collective = Collective::graph;
  CHECK_THAT(blame(records),
             Catch::StartsWith("no rank is behind: all have entered the call") && Catch::EndsWith(advice));
  ++records[0].call.place, ++records[0].collectives[kGroup];
  CHECK_THAT(blame(records), Catch::StartsWith("no rank is behind, but data does not arrive in a call") &&
                                 Catch::EndsWith(advice));
  records[1].state = State::done;
  CHECK_THAT(blame(records), Catch::StartsWith("behind: rank 1 is after CUDA graph") && !Contains(advice));
}

TEST_CASE("blame says what may keep GPUs apart, where the first call between them does not end") {
  const char* advice = "NCCL_P2P_DISABLE=1 does without";
  std::vector<ProgressRecord> records = {at(0, State::inside, 1, kConnecting),
                                         at(1, State::inside, 1, kConnecting)};
  CHECK_THAT(blame(records),
             Catch::StartsWith("no rank is behind: all have entered the call") && Catch::EndsWith(advice));
  records[1].state = State::closed;
  CHECK_THAT(blame(records), Catch::StartsWith("rank 1 is gone") && !Contains(advice));
}

TEST_CASE("blame shortens long lists") {
  std::vector<ProgressRecord> records = {at(0, State::done, 8)};
  for (int r = 1; r < 512; ++r) records.push_back(at(r, State::inside, 9));
  CHECK_THAT(blame(records), Contains("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 503 more are in"));
}

TEST_CASE("blame follows the waits of a pipeline, whose ranks make different numbers of transfers") {
  const std::string text = blame({receiving(0, State::inside, 1, 311), receiving(1, State::done, 2, 522),
                                  receiving(2, State::inside, 1, 525), receiving(3, State::inside, 2, 312)});
  CHECK_THAT(text, Catch::StartsWith("behind: rank 1 is after recv 'from 2' (axis dp_shard, call 522") &&
                       Contains("; waiting: rank 0 is in recv") && Contains("; rank 3 is in recv 'from 2'"));
}

TEST_CASE("blame counts the calls that all ranks make, whatever sends and receives lie between them") {
  ProgressRecord sender = at(0, State::inside, 680), busy = at(1, State::inside, 704),
                 late = at(2, State::done, 701);
  sender.collectives = busy.collectives = {{kGroup, 30}};
  sender.call.place = busy.call.place = 30;
  late.collectives = {{kGroup, 29}, {kGroup + 1, 500}};
  CHECK_THAT(blame({sender, busy, late}), Catch::StartsWith("behind: rank 2 is after all_gather") &&
                                              Contains("waiting: rank 0 is in") && Contains("rank 1 is in"));
  busy.state = State::done;
  busy.call.ranks = sender.call.ranks = {{.first = 0, .count = 2}};  // rank 2 is of no concern to them
  sender.collectives = {{kGroup, 31}};
  sender.call.place = 31;
  CHECK_THAT(
      blame({sender, busy, late}),
      Catch::StartsWith("behind: rank 1 is after all_gather 'layers.1' (axis dp_shard, call 704, step 7); "
                        "waiting: rank 0 is in") &&
          Contains("; not waited for: rank 2 is after"));
}

TEST_CASE("a rank in a call that all have entered is not behind, whatever the others have entered since") {
  CHECK(blame({at(0, State::inside, 10), at(1, State::inside, 9), at(2, State::inside, 10)}) ==
        "no rank is behind, but data does not arrive in a call that all its ranks have entered: rank 1 is in "
        "all_gather 'layers.1' (axis dp_shard, call 9, step 7); waiting: ranks 0, 2 are in all_gather "
        "'layers.1' (axis dp_shard, call 10, step 7)");
  // The GPU of rank 0 works on the call before the last that the rank has entered.
  ProgressRecord ahead = at(0, State::inside, 9);
  ahead.collectives = {{kGroup, 10}};
  CHECK_THAT(blame({ahead, at(1, State::inside, 9), at(2, State::inside, 9)}),
             Catch::StartsWith("no rank is behind: all have entered the call"));
  // Rank 1 has not received; rank 3, which computes, is behind.
  CHECK_THAT(blame({at(0, State::inside, 10), at(1, State::inside, 9), at(2, State::inside, 10),
                    at(3, State::done, 9)}),
             Catch::StartsWith("behind: rank 3 is after") &&
                 Contains("; in a call that all its ranks have entered: rank 1 is in") &&
                 Contains("; waiting: ranks 0, 2 are in"));
}

TEST_CASE("blame names a rank in whose communicator another waits, through a call of a third") {
  ProgressRecord stage = at(1, State::inside, 40);
  stage.call.group = kGroup + 1;
  stage.call.ranks = {{.first = 1, .count = 2}};
  stage.collectives = {{kGroup + 1, 8}};
  ProgressRecord late = at(2, State::done, 90);
  late.collectives = {{kGroup + 1, 7}};
  CHECK_THAT(blame({receiving(0, State::inside, 1, 20), stage, late}),
             Catch::StartsWith("behind: rank 2 is after"));
}

TEST_CASE("blame names no rank where each waits for another") {
  CHECK_THAT(blame({receiving(0, State::inside, 1, 5), receiving(1, State::inside, 0, 9)}),
             Catch::StartsWith("the ranks disagree about the call, or a connection is at fault: rank 0 is in "
                               "recv 'from 1 of 64 elements'"));
}

TEST_CASE("blame names the connection on which a message is missing") {
  ProgressRecord zero = at(0, State::inside, 10), one = at(1, State::inside, 9),
                 two = at(2, State::inside, 10);
  zero.messages = {{{.first = 1, .count = 2}, 20, 20, false}};
  one.messages = {{{.first = 0}, 18, 17, true}, {{.first = 2}, 18, 18, true}};
  two.messages = {{{.first = 0, .count = 2}, 18, 18, true}};
  CHECK_THAT(
      blame({zero, one, two}),
      Catch::StartsWith("a connection is at fault, or its ranks disagree about the call: rank 0 -> rank 1 "
                        "(20 messages sent, 17 received), rank 0 -> rank 2 (20 messages sent, 18 "
                        "received); ranks 0, 2 are in all_gather 'layers.1 of 64 elements'"));
  one.messages[0].is_awaited = two.messages[0].is_awaited = false;
  CHECK_THAT(blame({zero, one, two}), Catch::StartsWith("no rank is behind, but data does not arrive in"));
  one.messages[0].is_awaited = true;
  CHECK_THAT(blame({zero, one, two, at(3, State::done, 8)}), Catch::StartsWith("behind: rank 3"));
}

TEST_CASE("messages are counted by rank, and awaited after a while") {
  MessageCounts messages;
  for (int rank : {1, 2, 5}) messages.sent(rank);
  messages.asked(1);
  messages.asked(1);
  messages.received(1);
  messages.asked(2);
  CHECK(messages.counts(3600) ==
        std::vector<PeerMessages>{{{.first = 2, .count = 2, .stride = 3}, 1, 0, false},
                                  {{.first = 1}, 1, 1, false}});
  CHECK(messages.counts(0) == std::vector<PeerMessages>{{{.first = 5}, 1, 0, false},
                                                        {{.first = 2}, 1, 0, true},
                                                        {{.first = 1}, 1, 1, true}});
  messages.received(1);
  messages.received(2);
  CHECK(messages.counts(0) == std::vector<PeerMessages>{{{.first = 5}, 1, 0, false},
                                                        {{.first = 2}, 1, 1, false},
                                                        {{.first = 1}, 1, 2, false}});
}

TEST_CASE("ranks are listed in few runs") {
  const auto same = [](std::vector<int> ranks, const std::vector<RankRun>& want) {
    return runs_of(ranks) == want;
  };
  CHECK(same({}, {}));
  CHECK(same({3}, {{.first = 3}}));
  CHECK(same({0, 1, 2, 3}, {{.first = 0, .count = 4}}));
  CHECK(same({1, 5, 9, 10, 11}, {{.first = 1, .count = 3, .stride = 4}, {.first = 10, .count = 2}}));
}
