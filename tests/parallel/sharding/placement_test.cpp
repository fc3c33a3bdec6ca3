#include "parallel/sharding/placement.h"

#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using Catch::EndsWith;

namespace {

std::vector<std::string> in_blocks(int machines, int ranks_of_each) {
  std::vector<std::string> hosts;
  for (int r = 0; r < machines * ranks_of_each; ++r)
    hosts.push_back("node-" + std::to_string(r / ranks_of_each));
  return hosts;
}
std::vector<std::string> in_turn(int machines, int ranks_of_each) {
  std::vector<std::string> hosts;
  for (int r = 0; r < machines * ranks_of_each; ++r) hosts.push_back("node-" + std::to_string(r % machines));
  return hosts;
}

}  // namespace

TEST_CASE("groups that lie on more machines than they need are named, with what to do") {
  const Mesh tensor({.tp = 8}, 64), context({.cp = 4, .tp = 2}, 64), replicas({.dp_replicate = 8}, 64);
  for (const Mesh& mesh : {tensor, context, replicas}) CHECK(scattered_groups(mesh, in_blocks(8, 8)).empty());
  CHECK(scattered_groups(tensor, in_turn(8, 8)) ==
        "tensor-parallel ranks, such as ranks 0, 1, 2, 3 and 4 more, are on 8 machines (node-0, node-1, "
        "node-2, "
        "node-3 and 4 more), where 1 would do, so that all that they exchange crosses the network: start the "
        "ranks machine by machine (srun --distribution=block, mpirun --map-by slot)");
  CHECK_THAT(scattered_groups(context, in_turn(2, 32)),
             Contains("tensor-parallel ranks, such as ranks 0, 1, are"));
  CHECK_THAT(scattered_groups(replicas, in_turn(8, 8)),
             Contains("shards of one replica, such as ranks 0, 1, 2, 3"));
  CHECK_THAT(scattered_groups(Mesh({.cp = 8}, 64), in_turn(8, 8)),
             Contains("context-parallel ranks, such as"));
  CHECK_THAT(scattered_groups(Mesh({.tp = 4}, 12), in_blocks(2, 6)),
             Contains("ranks 4, 5, 6, 7, are on 2 machines (node-0, node-1), where 1 would do") &&
                 Contains("choose degrees that divide the 6 ranks of a machine"));
}

TEST_CASE("of machines with unlike numbers of ranks, the degrees advised divide each") {
  const auto told = [](std::initializer_list<int> machines) {
    std::vector<std::string> hosts;
    for (const int ranks : machines) hosts.insert(hosts.end(), ranks, "node-" + std::to_string(hosts.size()));
    return scattered_groups(Mesh({.tp = 8}, static_cast<int>(hosts.size())), hosts);
  };
  CHECK_THAT(told({8, 4, 12}), Contains("ranks 8, 9, 10, 11 and 4 more, are on 2 machines") &&
                                   Contains("crosses the network: machines have 4 to 12 ranks: start as many "
                                            "on each, or choose degrees that divide 4"));
  CHECK_THAT(told({8, 3, 13}), EndsWith("machines have 3 to 13 ranks: start as many on each"));
}

TEST_CASE("ranks that need several machines, or of which all exchange alike, may lie anywhere") {
  CHECK(scattered_groups(Mesh({.tp = 16}, 64), in_blocks(8, 8)).empty());
  CHECK(scattered_groups(Mesh({}, 64), in_turn(8, 8)).empty());
  CHECK(scattered_groups(Mesh({.tp = 8}, 8), in_blocks(8, 1)).empty());
  CHECK(scattered_groups(Mesh({.tp = 8}, 64), in_blocks(1, 64)).empty());
}
