#include "apps/predict/nccl_memory.h"

#include <memory>

#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "parallel/sharding/rank_groups.h"
#include "tests/apps/commands/planned.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

RankConnections connections_of(const MeshDegrees& degrees, int ranks, int rank) {
  const auto connections = std::make_shared<RankConnections>();
  const RankGroups groups(make_dry_run_world(rank, ranks), make_dry_run_world(rank, ranks, connections),
                          Mesh(degrees, ranks));
  return *connections;
}

}  // namespace

TEST_CASE("NCCL's memory is that of a rank's communicators and of its neighbours in messages") {
  const Machine machine{.ranks_per_node = 8, .nccl_channels = kNcclChannels};
  const auto communicators = [&](const MeshDegrees& degrees, int ranks) {
    return nccl_memory(connections_of(degrees, ranks, 0), machine);
  };
  CHECK(communicators({.dp_shard = 1}, 1).bytes() == 0);
  CHECK(communicators({.dp_shard = 8}, 8).bytes() == 896 * kMiB);  // shared by all that trains on all ranks
  const NcclMemory both = communicators({.dp_shard = 4, .tp = 2}, 8);
  CHECK(both.communicators == 3);
  CHECK(both.bytes() == 3 * 896 * kMiB);

  RankConnections messages{.rank = 9, .groups = {{.of = {.ranks = {0, 1, 2, 8, 9, 10}}, .peers = {8, 10}}}};
  CHECK(nccl_memory(messages, machine).neighbours == 2);
  messages.groups[0].peers.insert({0, 1, 2});  // on the other machine
  CHECK(nccl_memory(messages, machine).neighbours == 3);
  CHECK(nccl_memory(messages, machine).bytes() == (896 + 3 * 448) * kMiB);
  CHECK(nccl_memory(messages, {.ranks_per_node = 8, .nccl_channels = 8}).bytes() == (224 + 3 * 112) * kMiB);
  CHECK(nccl_memory(messages, {.ranks_per_node = 8}).bytes() == 0);
}

TEST_CASE("NVLS takes more where more than two GPUs of a machine are joined by a switch") {
  const auto nvls = [](const char* device, const MeshDegrees& degrees, int ranks,
                       int channels = kNcclChannels) {
    const Machine machine{.device = find_device(device), .ranks_per_node = 8, .nccl_channels = channels};
    return nccl_memory(connections_of(degrees, ranks, 0), machine).nvls_bytes / kMiB;
  };
  CHECK(nvls("h100_sxm", {.dp_shard = 8}, 8) == 256);  // as NCCL's log says
  CHECK(nvls("h100_sxm", {.dp_shard = 8}, 8, 8) == 128);
  CHECK(nvls("h100_sxm", {.dp_shard = 2}, 2) == 0);
  CHECK(nvls("h100_sxm", {.dp_shard = 4, .tp = 2}, 8) == 256 + 128);           // none for pairs
  CHECK(nvls("h100_sxm", {.dp_replicate = 2, .dp_shard = 8}, 16) == 2 * 256);  // none for replicas
  CHECK(nvls("b200", {.dp_shard = 8}, 8) == 384);
  CHECK(nvls("b200", {.dp_shard = 16}, 16) == 512);
  for (const char* device : {"a100_sxm", "h100_pcie", "h100_nvl", "rtx_5090"})
    CHECK(nvls(device, {.dp_shard = 8}, 8) == 0);
}

TEST_CASE("a plan for several GPUs says what NCCL takes besides, and counts it when it says what fits") {
  const auto text = [&](int ranks, Overrides more, std::optional<double> limit_gib) {
    return printed(
        {.overrides = changed_to(small_model_on_gpu({}), changed_to({"--comm.backend", "auto"}, more)),
         .world_size = ranks,
         .machine = {.device = "h100_sxm", .limit_gib = limit_gib}});
  };
  const std::string says = "Besides, NCCL: ", assumed = " GiB, assumed and not measured on several GPUs: ";
  CHECK_THAT(text(1, {}, 0.8), Contains("\nFits: ") && !Contains(says));
  CHECK_THAT(text(2, {}, 0.8), Contains(says + "0.875" + assumed + "1 communicator of 0.875 GiB (") &&
                                   Contains("\nDOES NOT FIT: 0.9 GiB are needed and 0.8 are there"));
  CHECK_THAT(text(2, {}, 1.2), Contains("\nFits: 0.9 of 1.2 GiB (--limit-gib)"));
  CHECK_THAT(text(2, {"--comm.sm_budget", "8"}, 0.8),
             Contains(says + "0.219") && Contains("\nFits: 0.3 of "));
  CHECK_THAT(text(2, {"--comm.backend", "tcp"}, 0.8), Contains("\nFits: ") && !Contains(says));
  CHECK_THAT(text(4, {}, 2),
             Contains(says + "1.000") &&
                 Contains(", and 0.125 GiB of NVLS, which NCCL_NVLS_ENABLE=0 does without (NVIDIA/nccl#964"));
  CHECK_THAT(text(2, {"--optimizer.name", "Muon"}, 2),
             Contains(says + "1.312" + assumed +
                      "1 communicator of 0.875 GiB and messages with 1 neighbour of 0.438 GiB ("));
}
