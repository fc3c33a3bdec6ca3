#include "parallel/ranks/local_place.h"

#include <thread>
#include <vector>

#include "core/error.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/ranks/master.h"
#include "tests/support/catch.h"

using namespace ottava;

namespace {

// What each rank finds, or why it finds nothing. Afterwards the ranks meet again at the same port.
struct Found {
  Launch launch;
  std::string error;
};
std::vector<Found> found(const std::vector<std::string>& hosts, const std::vector<Launch>& launches) {
  const HeldPort port;
  std::vector<Found> out(hosts.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < hosts.size(); ++r) {
    ranks.emplace_back([&, r] {
      Launch launch = launches[r];
      launch.rank = static_cast<int>(r);
      launch.world_size = static_cast<int>(hosts.size());
      launch.master = {"127.0.0.1", port.number()};
      try {
        out[r].launch = with_local_place(launch, 30, hosts[r]);
        MasterBootstrap again(launch.master, {launch.rank, launch.world_size}, 30);
        if (again.all_gather(hosts[r]) != hosts) out[r].error = "they met otherwise";
      } catch (const Error& error) {
        out[r].error = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return out;
}

}  // namespace

TEST_CASE("a rank that is not told its place on its machine counts those before it with the same host name") {
  const std::vector<std::string> hosts{"a", "b", "a", "a", "b"};
  const std::vector<Launch> launches(
      5, {.source = {}, .master = {}, .local_place = Launch::LocalPlace::unknown});
  const std::vector<Found> all = found(hosts, launches);
  const int rank[] = {0, 0, 1, 2, 1}, size[] = {3, 2, 3, 3, 2};
  for (size_t r = 0; r < hosts.size(); ++r) {
    INFO("rank " << r);
    CHECK(all[r].error == "");
    CHECK(all[r].launch.local_rank == rank[r]);
    CHECK(all[r].launch.local_size == size[r]);
  }
}

TEST_CASE("LOCAL_RANK without LOCAL_WORLD_SIZE stays, and must be one of its machine") {
  const auto placed = [](int local_rank) {
    return Launch{.local_rank = local_rank,
                  .local_size = 9,
                  .source = {},
                  .master = {},
                  .local_place = Launch::LocalPlace::size_unknown};
  };
  const std::vector<Found> all = found({"a", "b", "a"}, {placed(1), placed(0), placed(0)});
  for (const Found& one : all) CHECK(one.error == "");
  CHECK((all[0].launch.local_rank == 1 && all[0].launch.local_size == 2));
  CHECK((all[1].launch.local_rank == 0 && all[1].launch.local_size == 1));
  // LOCAL_RANK could be the global rank by mistake.
  Launch alone = placed(1);
  CHECK(found({"a"}, {alone})[0].error ==
        "[launch] LOCAL_RANK of rank 0 is 1, but machine a has 1 rank: set LOCAL_RANK to the rank's number "
        "on its "
        "machine, or leave it out");
}

TEST_CASE("a place that was said is not counted, nor is one where nothing says who the master is") {
  const Launch said{
      .rank = 3, .world_size = 4, .local_rank = 1, .local_size = 2, .source = {}, .master = {"nowhere", 1}};
  CHECK(with_local_place(said, 0.1).local_rank == 1);
  Launch lost{.rank = 3,
              .world_size = 4,
              .local_rank = 3,
              .local_size = 4,
              .source = {},
              .master = {},
              .local_place = Launch::LocalPlace::unknown};
  CHECK(with_local_place(lost, 0.1).local_rank == 3);
}
