#include "parallel/pipeline/schedule.h"

#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "parallel/pipeline/pipeline_program.h"
#include "parallel/pipeline/simulated_pipeline.h"
#include "tests/support/catch.h"

using namespace ottava;
using Kind = Action::Kind;
using enum ScheduleKind;

namespace {

constexpr ScheduleKind kAll[] = {
    gpipe, one_f_one_b, interleaved_1f1b, looped_bfs, interleaved_zero_bubble, zbv_zero_bubble};

/// Every shape without a complaint for p <= 8, v <= 4, M <= 32.
template <typename F>
void for_all_shapes(F&& body) {
  for (ScheduleKind kind : kAll)
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int chunks = 1; chunks <= 4; ++chunks)
        for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
          const PipelineShape shape{kind, ranks, chunks, micro_batches};
          if (complaint_about(shape).empty()) body(shape);
        }
}

double idle_percent(const PipelineShape& shape) { return 100 * simulate(make_schedule(shape)).idle_share; }

/// Each transfer where it is needed: received just before its reader, sent right after its maker.
PipelineProgram naive_program(const PipelineSchedule& schedule) {
  PipelineProgram out = make_program(schedule, Receives::late);
  for (size_t rank = 0; rank < out.ranks.size(); ++rank) {
    std::vector<PipelineStep> steps;
    for (const Action& a : schedule.ranks[rank]) {
      const int stage = schedule.shape.stage_of(static_cast<int>(rank), a.chunk);
      const bool backward = a.kind != Kind::F;
      auto add = [&](PipelineStep::Kind kind, int maker) {
        for (size_t t = 0; t < out.transfers.size(); ++t) {
          const StageTransfer& transfer = out.transfers[t];
          if (transfer.stage != maker || transfer.micro_batch != a.micro_batch ||
              transfer.is_gradient != backward)
            continue;
          steps.push_back({kind, static_cast<int64_t>(t)});
          if (kind == PipelineStep::Kind::recv)
            steps.push_back({PipelineStep::Kind::wait, static_cast<int64_t>(t)});
        }
      };
      add(PipelineStep::Kind::recv, stage + (backward ? 1 : -1));
      steps.push_back({PipelineStep::Kind::run, -1, a});
      add(PipelineStep::Kind::send, stage);
    }
    out.ranks[rank] = std::move(steps);
  }
  return out;
}

/// Ranks that carry out their steps, each with one lane: its transfers go one after another as they were
/// started, and one ends only when it is the next of both its ranks. Nothing knows of times or schedules.
class Rendezvous {
 public:
  Rendezvous(const PipelineSchedule& schedule, const PipelineProgram& program)
      : shape_(schedule.shape), program_(program), ranks_(program.ranks.size()) {}

  /// What goes wrong; empty: every rank ends, and reads only what has come or what it made itself.
  std::string run() {
    for (bool moves = true; moves && complaint_.empty();) {
      moves = false;
      for (size_t r = 0; r < ranks_.size(); ++r)
        while (complaint_.empty() && step(static_cast<int>(r))) moves = true;
      for (Rank& rank : ranks_)
        while (!rank.lane.empty() && meet(rank.lane.front())) moves = true;
    }
    for (size_t r = 0; r < ranks_.size() && complaint_.empty(); ++r) {
      if (ranks_[r].next < program_.ranks[r].size())
        complaint_ = fmt::format("no rank can go on: rank {} waits at its step {}", r, ranks_[r].next);
      else if (!ranks_[r].lane.empty())
        complaint_ = fmt::format("rank {} ends before its transfers do", r);
    }
    return complaint_;
  }

 private:
  using Made = std::tuple<int, int, bool>;  // by stage, of micro-batch, is a gradient
  struct Rank {
    size_t next = 0;
    std::deque<int64_t> lane;
    std::set<int64_t> ended;
    std::set<Made> has;
  };

  bool step(int r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const auto& steps = program_.ranks[static_cast<size_t>(r)];
    if (rank.next == steps.size()) return false;
    const PipelineStep& s = steps[rank.next];
    if (s.kind == PipelineStep::Kind::run) {
      act(r, s.action);
    } else {
      const StageTransfer& t = program_.transfers[static_cast<size_t>(s.transfer)];
      const Made what{t.stage, t.micro_batch, t.is_gradient};
      if (s.kind == PipelineStep::Kind::wait) {
        if (!rank.ended.contains(s.transfer)) return false;
        if (t.to == r) rank.has.insert(what);
      } else {
        if ((s.kind == PipelineStep::Kind::send ? t.from : t.to) != r)
          complaint_ = fmt::format("rank {} starts transfer {}, which is not its own", r, s.transfer);
        if (s.kind == PipelineStep::Kind::send && !rank.has.contains(what))
          complaint_ = fmt::format("rank {} sends what is not made, transfer {}", r, s.transfer);
        rank.lane.push_back(s.transfer);
      }
    }
    ++rank.next;
    return true;
  }

  void act(int r, const Action& a) {
    if (a.kind == Kind::W) return;
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const int stage = shape_.stage_of(r, a.chunk);
    const bool backward = a.kind != Kind::F;
    const int maker = stage + (backward ? 1 : -1);
    if (maker >= 0 && maker < shape_.stages() && !rank.has.contains({maker, a.micro_batch, backward}))
      complaint_ = fmt::format("rank {} reads what has not come: of micro-batch {} from stage {}", r,
                               a.micro_batch, maker);
    rank.has.insert({stage, a.micro_batch, backward});
  }

  bool meet(int64_t transfer) {
    const StageTransfer& t = program_.transfers[static_cast<size_t>(transfer)];
    Rank &from = ranks_[static_cast<size_t>(t.from)], &to = ranks_[static_cast<size_t>(t.to)];
    if (from.lane.empty() || to.lane.empty() || from.lane.front() != transfer || to.lane.front() != transfer)
      return false;
    for (Rank* rank : {&from, &to}) {
      rank->lane.pop_front();
      rank->ended.insert(transfer);
    }
    return true;
  }

  PipelineShape shape_;
  const PipelineProgram& program_;
  std::vector<Rank> ranks_;
  std::string complaint_;
};

}  // namespace

TEST_CASE("a list does every micro-batch of each chunk once, in ascending order") {
  for_all_shapes([](const PipelineShape& shape) {
    const PipelineSchedule schedule = make_schedule(shape);
    REQUIRE(static_cast<int>(schedule.ranks.size()) == shape.ranks);
    for (const auto& list : schedule.ranks) {
      std::map<std::pair<int, int>, int> next;  // forward, input gradient, weight gradient of a chunk
      bool in_order = true;
      for (const Action& a : list) {
        auto take = [&](int what) { in_order &= next[{a.chunk, what}]++ == a.micro_batch; };
        if (a.kind == Kind::F) take(0);
        if (a.kind == Kind::B || a.kind == Kind::I) take(1);
        if (a.kind == Kind::B || a.kind == Kind::W) take(2);
        in_order &= next[{a.chunk, 0}] >= next[{a.chunk, 1}] && next[{a.chunk, 1}] >= next[{a.chunk, 2}];
      }
      REQUIRE(in_order);
      REQUIRE(next.size() == 3 * static_cast<size_t>(shape.chunks));
      for (const auto& [what, count] : next) REQUIRE(count == shape.micro_batches);
    }
  });
}

TEST_CASE("stages lie on ranks in turn, and on the way back in a V") {
  const PipelineShape looped{interleaved_1f1b, 4, 3, 4}, v{zbv_zero_bubble, 4, 2, 8};
  CHECK(looped.stage_of(1, 2) == 9);
  CHECK(v.stage_of(1, 1) == 6);
  CHECK(v.rank_of(7) == 0);
  for (const PipelineShape& shape : {looped, v})
    for (int stage = 0; stage < shape.stages(); ++stage)
      CHECK(shape.stage_of(shape.rank_of(stage), stage / shape.ranks) == stage);
}

TEST_CASE("idle shares are those that the schedules are known for") {
  CHECK(idle_percent({gpipe, 4, 1, 8}) == Approx(100 * 9.0 / 33));
  CHECK(idle_percent({one_f_one_b, 4, 1, 8}) == Approx(100 * 9.0 / 33));
  CHECK(idle_percent({one_f_one_b, 8, 1, 32}) == Approx(100 * 21.0 / 117));
  CHECK(idle_percent({interleaved_1f1b, 4, 2, 8}) == Approx(100 * 4.5 / 28.5));
  CHECK(idle_percent({interleaved_1f1b, 4, 4, 8}) == Approx(100 * 2.25 / 26.25));
  CHECK(idle_percent({interleaved_1f1b, 8, 2, 32}) == Approx(100 * 10.5 / 106.5));
  CHECK(idle_percent({interleaved_1f1b, 8, 4, 32}) == Approx(100 * 5.25 / 101.25));
  CHECK(idle_percent({looped_bfs, 4, 2, 8}) == Approx(100 * 4.5 / 28.5));
  CHECK(idle_percent({looped_bfs, 8, 2, 32}) == Approx(100 * 10.5 / 106.5));
  CHECK(idle_percent({interleaved_zero_bubble, 4, 2, 8}) == Approx(100 * 1.5 / 25.5));
  CHECK(idle_percent({interleaved_zero_bubble, 8, 2, 32}) == Approx(100 * 3.5 / 99.5));
  CHECK(idle_percent({zbv_zero_bubble, 4, 2, 8}) == Approx(100 * 1.5 / 25.5));
  CHECK(idle_percent({zbv_zero_bubble, 8, 2, 32}) == Approx(100 * 3.5 / 99.5));
  // With full recomputation the input's gradient takes a forward more.
  const ActionCosts recomputed{.input_gradient = 2};
  CHECK(100 * simulate(make_schedule({zbv_zero_bubble, 4, 2, 8}), recomputed).idle_share ==
        Approx(9).margin(0.6));
  CHECK(100 * simulate(make_schedule({interleaved_zero_bubble, 8, 2, 32}), recomputed).idle_share ==
        Approx(5).margin(0.6));
}

TEST_CASE("micro-batches in flight") {
  auto in_flight = [](const PipelineShape& shape) { return simulate(make_schedule(shape)).in_flight; };
  CHECK(in_flight({gpipe, 4, 1, 8}) == std::vector<double>{8, 8, 8, 8});
  CHECK(in_flight({one_f_one_b, 4, 1, 8}) == std::vector<double>{4, 3, 2, 1});
  CHECK(in_flight({interleaved_1f1b, 4, 2, 8}).front() == 4 + 1.5);
  CHECK(in_flight({interleaved_1f1b, 4, 2, 8}).back() == 4 - 1.5);
  CHECK(in_flight({looped_bfs, 4, 2, 8}) == std::vector<double>{8, 8, 8, 8});
  CHECK(in_flight({zbv_zero_bubble, 4, 2, 8}) == std::vector<double>{4, 4, 4, 4});
  for (double most : in_flight({interleaved_zero_bubble, 4, 2, 8})) CHECK(most <= 4.5);
}

TEST_CASE("every list runs where sends are not buffered") {
  int shapes = 0;
  std::set<ScheduleKind> kinds;
  for (Receives receives : {Receives::early, Receives::late}) {
    for_all_shapes([&](const PipelineShape& shape) {
      const PipelineSchedule schedule = make_schedule(shape);
      const PipelineProgram program = make_program(schedule, receives);
      const std::string complaint = Rendezvous(schedule, program).run();
      if (complaint.empty()) {
        ++shapes;
        kinds.insert(shape.schedule);
        return;
      }
      FAIL(name_of(shape.schedule) << ", " << shape.ranks << " ranks of " << shape.chunks << " chunks, "
                                   << shape.micro_batches << " micro-batches: " << complaint);
    });
  }
  CHECK(shapes > 2000);
  CHECK(kinds.size() == std::size(kAll));
}

TEST_CASE("sends right after the forward hang, and so the order of transfers is needed") {
  const PipelineSchedule schedule = make_schedule({one_f_one_b, 4, 1, 8});
  CHECK_THROWS_AS(simulate(schedule, naive_program(schedule)), Error);
  CHECK_THAT(Rendezvous(schedule, naive_program(schedule)).run(),
             Catch::Matchers::Contains("no rank can go on"));
  const PipelineSchedule runs = make_schedule({gpipe, 4, 1, 8});
  CHECK_NOTHROW(simulate(runs, naive_program(runs)));
  CHECK(Rendezvous(runs, naive_program(runs)).run().empty());
  PipelineProgram early = make_program(schedule, Receives::late);
  std::erase_if(early.ranks[1], [](const PipelineStep& s) { return s.kind == PipelineStep::Kind::wait; });
  CHECK_THAT(Rendezvous(schedule, early).run(), Catch::Matchers::Contains("reads what has not come"));
}

TEST_CASE("transfers in one order cost little beside free ones") {
  for (const PipelineShape& shape : {PipelineShape{one_f_one_b, 4, 1, 8},
                                     {interleaved_1f1b, 4, 2, 8},
                                     {looped_bfs, 4, 2, 8},
                                     {zbv_zero_bubble, 4, 2, 8},
                                     {interleaved_zero_bubble, 8, 2, 32}}) {
    const PipelineSchedule schedule = make_schedule(shape);
    const double free = simulate(schedule).seconds;
    const double ordered =
        simulate(schedule, make_program(schedule, Receives::early), {.transfer = 0.02}).seconds;
    INFO(name_of(shape.schedule) << ": " << free << " and " << ordered);
    CHECK(ordered < 1.1 * free);
  }
}

TEST_CASE("a schedule as a picture") {
  CHECK(picture_of(make_schedule({one_f_one_b, 2, 1, 3})) ==
        "rank 0   01..aA2bB.cC\nrank 1   .0aA1bB2cC..\n");
  const std::string wide = picture_of(make_schedule({gpipe, 2, 1, 200}));
  REQUIRE(wide.size() == 2 * 121);
  CHECK(wide.starts_with("rank 0   0123456789012"));
  CHECK(wide.substr(115, 22) == "67...\nrank 1   .012345");
}

TEST_CASE("a schedule's name and shape are checked") {
  CHECK(schedule_named("zbvzerobubble") == zbv_zero_bubble);
  CHECK(schedule_named("1F1B") == one_f_one_b);
  CHECK_THROWS_WITH(schedule_named("2F2B"),
                    "[pipeline] schedule \"2F2B\" is unknown: expected one of GPipe, 1F1B, Interleaved1F1B, "
                    "LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble");
  CHECK_THROWS_WITH(
      schedule_named("dualpipev"),
      "[pipeline] schedule DualPipeV is not supported: expected one of GPipe, 1F1B, Interleaved1F1B, "
      "LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble");
  CHECK_THROWS_WITH(
      make_schedule({one_f_one_b, 4, 1, 2}),
      "[pipeline] schedule 1F1B on 4 ranks needs at least 4 micro-batches, got 2: raise "
      "training.local_batch_size or lower parallelism.pipeline_parallel_microbatch_size, or use GPipe");
  CHECK_THROWS_WITH(
      make_schedule({interleaved_1f1b, 4, 2, 11}),
      "[pipeline] schedule Interleaved1F1B on 4 ranks makes 2 rounds of its 11 micro-batches (11 / "
      "4), and 11 / 2 is not whole: change training.local_batch_size or "
      "parallelism.pipeline_parallel_microbatch_size");
  CHECK_THROWS_WITH(make_schedule({gpipe, 4, 2, 8}),
                    "[pipeline] schedule GPipe on 4 ranks needs 1 stage on each rank, got 2: raise "
                    "parallelism.pipeline_parallel_layers_per_stage or name fewer "
                    "parallelism.pipeline_parallel_split_points, or use Interleaved1F1B");
  CHECK_THROWS_WITH(
      make_schedule({looped_bfs, 4, 1, 8}),
      "[pipeline] schedule LoopedBFS on 4 ranks needs at least 2 stages on each rank, got 1: lower "
      "parallelism.pipeline_parallel_layers_per_stage or name more "
      "parallelism.pipeline_parallel_split_points, or use 1F1B");
  CHECK_THROWS_WITH(make_schedule({zbv_zero_bubble, 4, 3, 8}),
                    "[pipeline] schedule ZBVZeroBubble on 4 ranks needs 2 stages on each rank, got 3: change "
                    "parallelism.pipeline_parallel_layers_per_stage or "
                    "parallelism.pipeline_parallel_split_points so that there are 8, or use "
                    "InterleavedZeroBubble");
  CHECK_THROWS_WITH(make_schedule({interleaved_1f1b, 4, 2, 3}),
                    Catch::Matchers::Contains("or use LoopedBFS"));
  CHECK_THROWS_AS(make_schedule({gpipe, 4, 1, 0}), ConfigError);
}
