#include "parallel/sharding/mesh.h"

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using enum MeshAxis;

TEST_CASE("mesh takes the ranks that are left") {
  CHECK(Mesh({}, 1).size(dp_shard) == 1);
  CHECK(Mesh({}, 8).size(dp_shard) == 8);
  CHECK(Mesh({.dp_replicate = 2, .tp = 2}, 8).size(dp_shard) == 2);
  CHECK(Mesh({.dp_replicate = -1, .dp_shard = 2}, 8).size(dp_replicate) == 4);
  CHECK(Mesh({.dp_shard = 4, .tp = -1}, 8).size(tp) == 2);
  CHECK(Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8).describe() ==
        "pp 1 x dp_replicate 2 x dp_shard 2 x cp 1 x tp 2 = 8");
}

TEST_CASE("degrees tell the fewest ranks that make them") {
  CHECK(MeshDegrees{}.fewest_ranks() == 1);
  CHECK(MeshDegrees{.dp_replicate = 2, .tp = 4}.fewest_ranks() == 8);
  CHECK(MeshDegrees{.dp_shard = 3, .tp = -1}.fewest_ranks() == 3);
}

TEST_CASE("mesh prints the product that failed") {
  CHECK_THROWS_WITH(
      Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 3}, 8),
      Contains("pp 1 x dp_replicate 2 x dp_shard 2 x cp 1 x tp 3 = 12, but the world size is 8 ranks"));
  CHECK_THROWS_WITH(Mesh({.dp_shard = 2}, 1),
                    Contains("= 2, but the world size is 1 rank: change a degree, set "
                             "parallelism.data_parallel_shard_degree to -1, or start 2 ranks"));
  CHECK_THROWS_WITH(Mesh({.tp = 3}, 8),
                    Contains("8 ranks cannot be divided") &&
                        Contains("8 / 3 is not whole: change a degree, or start a multiple of 3 ranks"));
  CHECK_THROWS_WITH(
      Mesh({.dp_shard = -1, .tp = -1}, 8),
      Contains("data_parallel_shard_degree and parallelism.tensor_parallel_degree are both -1"));
  CHECK_THROWS_WITH(Mesh({.tp = 0}, 8), Contains("parallelism.tensor_parallel_degree is 0"));
  CHECK_THROWS_WITH(Mesh({.tp = 16}, 8), Contains("8 / 16 is not whole"));
  CHECK_THROWS_WITH(Mesh({}, 0), Contains("world size is 0"));
  CHECK_THROWS_AS(Mesh({.tp = 3}, 8), ConfigError);
  CHECK_THROWS_WITH(Mesh({}, 8).coordinate(tp, 8), Contains("rank 8 does not exist among 8 ranks"));
}

TEST_CASE("coordinates count the inner axes fastest") {
  Mesh mesh({.dp_replicate = 2, .dp_shard = 3, .tp = 4}, 24);
  for (int rank = 0; rank < 24; ++rank) {
    int r = mesh.coordinate(dp_replicate, rank), s = mesh.coordinate(dp_shard, rank),
        t = mesh.coordinate(tp, rank);
    CHECK((r * 3 + s) * 4 + t == rank);
    CHECK(mesh.coordinate(pp, rank) == 0);
    ShardCoordinates at = mesh.shard_coordinates(rank);
    CHECK((at.tp_rank == t && at.tp_size == 4 && at.shard_rank == s && at.shard_size == 3 &&
           at.replica_rank == r));
  }
}

TEST_CASE("five axes: pp is the outermost, cp lies between dp_shard and tp") {
  Mesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2}, 32);
  const int rank = 21;  // pp 1, dp_replicate 0, dp_shard 1, cp 0, tp 1
  CHECK(mesh.coordinate(pp, rank) == 1);
  CHECK(mesh.coordinate(dp_replicate, rank) == 0);
  CHECK(mesh.coordinate(dp_shard, rank) == 1);
  CHECK(mesh.coordinate(cp, rank) == 0);
  CHECK(mesh.coordinate(tp, rank) == 1);
  CHECK(mesh.group({pp}, rank) == std::vector<int>{5, 21});
  CHECK(mesh.group({cp}, rank) == std::vector<int>{21, 23});
  CHECK(mesh.group({dp_shard, cp}, rank) == std::vector<int>{17, 19, 21, 23});
  CHECK(mesh.loss_group(rank) == std::vector<int>{17, 19, 21, 23, 25, 27, 29, 31});
  CHECK(mesh.stage_group(rank) == std::vector<int>{16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(mesh.replica_group(rank) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
  const ShardCoordinates at = mesh.shard_coordinates(rank);
  CHECK((at.shard_rank == 2 && at.shard_size == 4 && at.tp_rank == 1 && at.replica_rank == 0));
  CHECK(mesh.describe() == "pp 2 x dp_replicate 2 x dp_shard 2 x cp 2 x tp 2 = 32");
}

TEST_CASE("groups partition the ranks") {
  Mesh mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8);
  CHECK(mesh.group({tp}, 5) == std::vector<int>{4, 5});
  CHECK(mesh.group({dp_shard}, 5) == std::vector<int>{5, 7});
  CHECK(mesh.group({dp_replicate}, 5) == std::vector<int>{1, 5});
  CHECK(mesh.group({pp}, 5) == std::vector<int>{5});
  CHECK(mesh.loss_group(5) == std::vector<int>{1, 3, 5, 7});
  CHECK(mesh.replica_group(5) == std::vector<int>{4, 5, 6, 7});
  CHECK(mesh.stage_group(5) == mesh.replica_group(5));
  for (int rank = 0; rank < 8; ++rank) {
    for (int other : mesh.loss_group(rank)) CHECK(mesh.loss_group(other) == mesh.loss_group(rank));
  }
}
