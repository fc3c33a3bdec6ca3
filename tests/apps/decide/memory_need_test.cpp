#include "apps/decide/memory_need.h"

#include <vector>

#include "apps/step/step_plan.h"
#include "core/threads/parallel_for.h"
#include "tests/support/catch.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;

TEST_CASE("a step fits if it fits on every rank, and all ranks look at the same one") {
  // Of the first more is left free, but it may not be filled.
  const MemoryNeed large{.bytes = 90, .available = 100}, small{.bytes = 1, .available = 10};
  CHECK_FALSE(large.fits());
  CHECK(small.fits());
  for (const std::vector<MemoryNeed>& needs : {std::vector{small, large}, std::vector{large, small}}) {
    CHECK(tightest(needs).bytes == 90);
    CHECK_FALSE(tightest(needs).fits());
  }
  const MemoryNeed on_gpu{.bytes = 95, .available = 100, .share = 1};
  CHECK(on_gpu.fits());
  CHECK(tightest(std::vector{MemoryNeed{.bytes = 9, .available = 20, .share = 1}, on_gpu}).bytes == 95);
  // Equally tight: the reasons of decisions name the figures.
  const MemoryNeed one{.bytes = 70, .available = 100}, other{.bytes = 150, .available = 200};
  REQUIRE(one.spare() == other.spare());
  CHECK(tightest(std::vector{one, other}).bytes == 70);
  CHECK(tightest(std::vector{other, one}).bytes == 150);
}

TEST_CASE("needs are those of each place in a pipeline, on every rank the same") {
  set_parallel_threads(1);  // workspaces are by thread
  const Device cpu{DeviceType::cpu, 0};
  const Experiment e = resolve_experiment(
      load_config("", {"--model.flavor", "debugmodel", "--training.seq_len", "64",
                       "--training.local_batch_size", "4", "--parallelism.pipeline_parallel_degree", "2",
                       "--parallelism.pipeline_parallel_microbatch_size", "1", "--checkpoint.enable", "true",
                       "--checkpoint.async_mode", "async"}),
      nullptr, 4);
  std::vector<std::vector<MemoryNeed>> needs(4);
  test::run_thread_ranks({.ranks = 4}, [&](Communicator& world) {
    RankGroups ranks = test::groups_over(world, e.mesh);
    ranks.coordinates.units = e.shape.pipeline.units_of(ranks.pp->rank());
    needs[static_cast<size_t>(world.rank())] = memory_needs(e, e.shape, ranks, cpu);
  });
  for (const std::vector<MemoryNeed>& of_rank : needs) {
    REQUIRE(of_rank.size() == 2);
    for (int place = 0; place < 2; ++place) {
      const int first = 2 * place;  // of two ranks whose shards are of one size
      ShardCoordinates at = e.mesh.shard_coordinates(first);
      at.units = e.shape.pipeline.units_of(place);
      CHECK(of_rank[place].bytes ==
            record_rank(e.shape, cpu, e.mesh, first).memory.total_bytes() + snapshot_bytes(e, at));
    }
    CHECK(of_rank[0].bytes != of_rank[1].bytes);
    CHECK(of_rank[0].available == needs[0][0].available);
  }
}
