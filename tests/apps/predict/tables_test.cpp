#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/predict/built_in_tables.h"
#include "apps/predict/device_table.h"
#include "apps/predict/machine.h"
#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Contains;

namespace {

std::string file_with(const TemporaryFolder& folder, const std::string& text) {
  const std::string path = folder / "mine.yaml";
  std::ofstream(path) << text;
  return path;
}

RecordedTransfer transfer(std::string_view collective, int ranks, int stride, int64_t payload, int64_t sent) {
  return {.axis = "dp_shard", .ranks = ranks, .stride = stride, .calls = {{collective, "w", payload, sent}}};
}

}  // namespace

TEST_CASE("every table of the repository is built in, with a source for each figure") {
  for (const auto& [kind, tables] :
       {std::pair{"devices", built_in_devices()}, std::pair{"networks", built_in_networks()}}) {
    size_t files = 0;
    for (const auto& file :
         std::filesystem::directory_iterator(std::string(OTTAVA_SOURCE_DIR "/configs/") + kind)) {
      if (file.path().extension() != ".yaml") continue;
      ++files;
      CHECK(std::ranges::find(tables, file.path().stem().string(), &BuiltInTable::name) != tables.end());
    }
    CHECK(files == tables.size());
  }
  for (const auto& [name, text] : built_in_devices()) {
    INFO(name);
    const DeviceTable table = find_device(name);
    CHECK(table.sources.size() == 21);
    CHECK(table.is_gpu() == (name != "cpu"));
    if (!table.is_gpu()) continue;
    CHECK(device_of_driver("NVIDIA " + table.driver_names.at(0))->id == name);
    CHECK(table.bf16_tflops > table.fp32_tflops);
    CHECK(table.memory_gib > 4 * table.reserve_gib);
  }
  for (const auto& [name, text] : built_in_networks()) CHECK(find_network(name).sources.size() == 4);
  CHECK(device_of_driver("NVIDIA H100 PCIe")->id == "h100_pcie");
  CHECK(device_of_driver("NVIDIA H100 80GB HBM3")->id == "h100_sxm");
  CHECK_FALSE(device_of_driver("NVIDIA GeForce GTX 1080"));
}

TEST_CASE("a table of one's own starts from another, and mistakes are named") {
  const TemporaryFolder folder;
  const DeviceTable mine =
      find_device(file_with(folder, "base: h100_sxm\nname: ours\ngemm_bf16: [0.66, \"bench kernels\"]\n"));
  CHECK(mine.gemm_bf16 == 0.66);
  CHECK(mine.sources.find("gemm_bf16")->second == "bench kernels");
  CHECK(mine.bf16_tflops == find_device("h100_sxm").bf16_tflops);
  CHECK(mine.name == "ours");
  CHECK_THROWS_WITH(find_device("h100"), Contains("--device 'h100' is unknown") && Contains("h100_sxm"));
  CHECK_THROWS_WITH(find_network("ib_40"), Contains("--network 'ib_40' is unknown, did you mean ib_400?"));
  auto refused = [&](const std::string& text) { return find_device(file_with(folder, text)); };
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf61: [1, x]\n"), Contains("did you mean gemm_bf16?"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf16: 0.7\n"),
                    Contains("gemm_bf16 is not [number, source]"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf16: [0.7]\n"), Contains("is not [number, source]"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ndriver_names: H100\n"),
                    Contains("driver_names is ") && Contains("expected a list of strings"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ncapability: 9.0\n"),
                    Contains("capability is ") && Contains("expected an integer"));
  CHECK_THROWS_WITH(refused("name: bare\n"), Contains("bf16_tflops is missing"));
  CHECK_THROWS_AS(find_device(folder / "absent.yaml"), FileError);
}

TEST_CASE("a collective takes what its slowest way takes, and its hops") {
  Machine machine{.device = find_device("h100_sxm"), .network = find_network("ib_400"), .ranks_per_node = 8};
  const double gather = machine.seconds_of(transfer("all_gather", 8, 1, 8'000'000'000, 7'000'000'000));
  CHECK(gather == Approx(7.0 / 360 + (8.4 + 7 * 3.4) * 1e-6));
  CHECK(machine.seconds_of(transfer("all_gather", 1, 1, 1000, 0)) == 0);
  // 16 ranks on two machines: each adapter carries its share of the whole.
  CHECK(machine.seconds_of(transfer("all_gather", 16, 1, 16'000'000'000, 15'000'000'000)) ==
        Approx(16.0 / (8 * 50 * 0.74) + (8.4 + 14 * 3.4 + 14) * 1e-6));
  // One rank on each machine: tensor parallel within, shards across.
  CHECK(machine.seconds_of(transfer("all_gather", 4, 8, 4'000'000'000, 3'000'000'000)) ==
        Approx(4.0 / (50 * 0.74) + (8.4 + 3 * 14) * 1e-6));
  CHECK(machine.seconds_of(transfer("all_reduce", 8, 1, 8'000'000, 14'000'000)) ==
        Approx(14e6 / 360e9 + (8.4 + 2 * 7 * 3.4) * 1e-6));
  machine.network = find_network("ib_400_shared");
  CHECK(machine.seconds_of(transfer("all_gather", 4, 8, 4'000'000'000, 3'000'000'000)) >
        2 * 4.0 / (50 * 0.74));
}
