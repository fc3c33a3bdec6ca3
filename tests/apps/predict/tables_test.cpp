#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/devices/built_in_tables.h"
#include "apps/devices/device_table.h"
#include "apps/predict/machine.h"
#include "apps/predict/planned_machine.h"
#include "core/cpu/bf16_products.h"
#include "core/error.h"
#include "core/io/file.h"
#include "parallel/comm/solo_communicator.h"
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

TEST_CASE(
    "a CPU's attention is its products, then softmax at the rate of f32; a GPU's a part of the peak, or "
    "exponentials") {
  RecordedOperation o{.op = "attention_forward", .precision = Precision::bf16, .flops = 1e12};
  Machine cpu{.device = find_device("cpu")}, gpu{.device = find_device("h200_sxm")};
  cpu.has_cudnn_attention = gpu.has_cudnn_attention = false;
  cpu.device.bf16_tflops = 2;
  cpu.device.fp32_tflops = 0.5;
  cpu.device.memory_gb_per_s = 10;
  for (const int64_t width : {16, 64}) {
    o.call.tensors = {{nullptr, DType::bf16, {100, 12 * width}},
                      {nullptr, DType::bf16, {100, 4 * width}},
                      {nullptr, DType::f32, {1, 4, 100}}};
    for (const bool backward : {false, true}) {
      o.op = backward ? "attention_backward" : "attention_forward";
      const DeviceTable& c = cpu.device;
      const double products = 1e12 / (2e12 * (backward ? c.attention_backward : c.attention_forward)),
                   softmax = 1e12 / static_cast<double>(width) / 0.5e12 *
                             (backward ? c.softmax_backward : c.softmax_forward);
      const double whole_tiles = 1 + 99 / 101.0;  // of 100 tokens
      CHECK(cpu.time_of(o).seconds == Approx((products + softmax) * whole_tiles + 1e-6));
      const DeviceTable& g = gpu.device;
      const double exponentials = 0.45 * (backward ? 5 : 4) * static_cast<double>(width) / 16,
                   share = std::min(backward ? g.attention_backward : g.attention_forward,
                                    exponentials * g.fp32_tflops / g.bf16_tflops);
      CHECK(gpu.time_of(o).seconds == Approx(1e12 / (g.bf16_tflops * 1e12 * share) + g.launch_us * 1e-6));
    }
  }
}

TEST_CASE("a CPU's products are planned at the rate of the way in which the step multiplies") {
  const TemporaryFolder folder;
  bool is_widened = false;
  const auto part = [&](const char* way, const char* sequences) {
    const Config config = load_config(
        "", {"--training.device", "cpu", "--training.gemm_cache", folder.path(), "--model.vocab_size", "512",
             "--training.seq_len", "64", "--training.local_batch_size", sequences, "--cpu.bf16_matmul", way});
    const PlannedExperiment planned = plan_experiment(config, 1);
    const DeviceTable table = find_device("cpu");
    const Machine machine = planned_machine({.device = "cpu"}, table, planned);
    const DeviceTable& cpu = machine.device;
    const double of_bf16 = cpu.gemm_bf16 / table.gemm_bf16;
    CHECK(cpu.gemm_fp8 / table.gemm_fp8 == Approx(of_bf16));
    CHECK(cpu.gemm_fp32 == table.gemm_fp32);
    CHECK(machine.update_gb_per_s > 0);
    is_widened = machine.widens_bf16;
    return of_bf16;
  };
  if (!cpu::multiplies_bf16_directly()) {
    CHECK(part("widened", "1") == 1);
    CHECK(part("auto", "1") == 1);
    CHECK(is_widened);
    return;
  }
  CHECK(std::max(part("direct", "1"), part("widened", "1")) == 1);
  // The rates are kept: as another machine would have measured them.
  const std::string file = std::filesystem::directory_iterator(folder.path())->path().string();
  Decisions kept = parse_decisions(read_file(file), file);
  for (Decisions::Entry& e : kept.entries)
    if (e.name.starts_with("bf16 ")) e.value = e.name == "bf16 direct" ? "1e+10" : "4e+10";
  std::ofstream(file, std::ios::trunc) << to_json(kept);
  CHECK(part("direct", "1") == 0.25);
  CHECK_FALSE(is_widened);
  CHECK(part("widened", "1") == 1);
  CHECK(is_widened);
  CHECK(part("auto", "1") == 0.25);  // too small to be measured: the usual way
  CHECK_FALSE(is_widened);
  CHECK(part("auto", "64") == 1);  // measured by the run, which takes the faster one
  CHECK(is_widened);
}

TEST_CASE("a plan for this CPU and a run on it measure its memory once, and use what is kept") {
  const TemporaryFolder folder;
  const Config config = load_config("", {"--training.device", "cpu", "--training.gemm_cache", folder.path(),
                                         "--model.vocab_size", "512", "--training.seq_len", "64"});
  const PlannedExperiment planned = plan_experiment(config, 1);
  SoloCommunicator alone;
  const auto plan = [&] { return planned_machine({.device = "cpu"}, find_device("cpu"), planned); };
  plan();
  const std::string file = std::filesystem::directory_iterator(folder.path())->path().string();
  Decisions kept = parse_decisions(read_file(file), file);
  for (Decisions::Entry& e : kept.entries) {
    e.reason = e.reason.substr(0, e.reason.find(" so far"));
    if (e.name.starts_with("copy of ")) e.value = "2e+06";
    if (e.name.starts_with("update of ")) e.value = "3e+06";
  }
  std::ofstream(file, std::ios::trunc) << to_json(kept);
  for (const Machine& machine :
       {plan(),
        *running_machine({DeviceType::cpu, 0}, {.fp32 = 1e12, .bf16 = 1e12, .fp8 = 1e12, .source = ""},
                         planned.experiment, alone)}) {
    CHECK(machine.device.memory_gb_per_s == 2e-3);
    CHECK(machine.update_gb_per_s == 3e-3);
  }
}

TEST_CASE("products whose operands are widened wait for the copies") {
  const Shape x{1000, 64}, w{192, 64}, y{1000, 192};
  RecordedOperation o{.op = "matmul",
                      .variant = "forward",
                      .precision = Precision::bf16,
                      .flops = 2.0 * 1000 * 192 * 64,
                      .bytes = 1};
  o.call.tensors = {{nullptr, DType::bf16, x}, {nullptr, DType::bf16, w}, {nullptr, DType::bf16, y}};
  Machine cpu{.device = find_device("cpu")};
  cpu.device.bf16_tflops = 2;
  cpu.device.memory_gb_per_s = 10;
  const double direct = cpu.time_of(o).seconds;
  cpu.widens_bf16 = true;
  CHECK(cpu.time_of(o).seconds - direct ==
        Approx((1000 + 192) * 64 * 6 / 10e9 - 192 * 64 * 2 / (10e9 * cpu.device.gemm_weights)));
  o.precision = Precision::fp32;
  cpu.device.fp32_tflops = 2;
  const double f32 = cpu.time_of(o).seconds;
  cpu.widens_bf16 = false;
  CHECK(cpu.time_of(o).seconds == f32);
}

TEST_CASE(
    "a CPU reads a product's weights from memory beside multiplying, and adds to their gradient there") {
  Machine cpu{.device = find_device("cpu")};
  cpu.device.bf16_tflops = 2;
  cpu.device.memory_gb_per_s = 10;
  const double weights = 192 * 64;
  for (const int64_t tokens : {8, 100'000}) {
    INFO(tokens);
    const Tensor x{nullptr, DType::bf16, {tokens, 64}}, w{nullptr, DType::bf16, {192, 64}},
        y{nullptr, DType::bf16, {tokens, 192}}, dw{nullptr, DType::f32, {192, 64}};
    const double flops = 2.0 * tokens * weights, operands = 2.0 * tokens * (64 + 192),
                 compute = flops / (2e12 * cpu.device.gemm_bf16);
    const auto seconds = [&](const char* kind, const std::vector<Tensor>& tensors, double bytes) {
      RecordedOperation o{.op = "matmul",
                          .variant = kind,
                          .precision = Precision::bf16,
                          .flops = flops,
                          .bytes = operands + bytes};
      o.call.tensors = tensors;
      return cpu.time_of(o).seconds - cpu.device.launch_us * 1e-6;
    };
    const auto least = [&](double bytes) { return (operands + bytes) / 10e9; };  // all of it through memory
    const auto expected = [&](double bytes) {
      return std::max(compute + bytes / (10e9 * cpu.device.gemm_weights), least(bytes));
    };
    CHECK(seconds("forward", {x, w, y}, 2 * weights) == Approx(expected(2 * weights)));
    CHECK(seconds("input gradient", {y, w, x}, 2 * weights) == Approx(expected(2 * weights)));
    CHECK(seconds("weight gradient", {y, x, dw}, 8 * weights) == Approx(expected(8 * weights)));
    CHECK(seconds("weight gradient", {y, x, dw}, 4 * weights) == Approx(expected(4 * weights)));
  }
}

TEST_CASE("AdamW is planned at the rate of memory that is written where it was read") {
  Machine cpu{.device = find_device("cpu")};
  cpu.device.memory_gb_per_s = 10;
  const RecordedOperation adamw{.op = "adamw", .bytes = 3e9}, other{.op = "cast", .bytes = 3e9};
  CHECK(cpu.time_of(adamw).seconds == Approx(0.3).epsilon(1e-4));
  cpu.update_gb_per_s = 15;
  CHECK(cpu.time_of(adamw).seconds == Approx(0.2).epsilon(1e-4));
  CHECK(cpu.time_of(other).seconds == Approx(0.3).epsilon(1e-4));
}

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
    CHECK(table.sources.size() == (table.is_gpu() ? 21 : 24));  // softmax of its own, and weights
    CHECK(table.is_gpu() == (name != "cpu"));
    if (!table.is_gpu()) continue;
    CHECK(device_of_driver("NVIDIA " + table.driver_names.at(0))->id == name);
    CHECK(table.bf16_tflops > table.fp32_tflops);
    CHECK(table.memory_gib > 4 * table.reserve_gib);
  }
  for (const auto& [name, text] : built_in_networks()) CHECK(find_network(name).sources.size() == 4);
  CHECK(device_of_driver("NVIDIA H100 PCIe")->id == "h100_pcie");
  CHECK(device_of_driver("NVIDIA H100 80GB HBM3")->id == "h100_sxm");
  CHECK(device_of_driver("NVIDIA A100-SXM4-80GB")->id == "a100_sxm");
  CHECK_FALSE(device_of_driver("NVIDIA GeForce GTX 1080"));
  // With a Grace CPU they are others.
  CHECK_FALSE(device_of_driver("NVIDIA GH200 480GB"));
  CHECK_FALSE(device_of_driver("NVIDIA GB200"));
  // Slices have a part of it all.
  for (const char* slice :
       {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA H200 MIG 7g.141gb"})
    CHECK_FALSE(device_of_driver(slice));
}

TEST_CASE("a GPU of a table has its own memory and name") {
  const DeviceTable small = *device_of_driver("NVIDIA A100-SXM4-40GB", size_t{40} << 30),
                    usual = find_device("a100_sxm");
  CHECK(small.id == usual.id);
  CHECK(small.name == "NVIDIA A100-SXM4-40GB");
  CHECK(small.memory_gib == 40);
  CHECK(small.bf16_tflops == usual.bf16_tflops);
  const Machine machine{.device = small};
  const MemoryLimit limit = memory_limit({}, &machine).value();
  CHECK(limit.gib == 40 - usual.reserve_gib);
  CHECK(limit.of == "NVIDIA A100-SXM4-40GB: 40.0 GiB less 2.0 for libraries");
  CHECK_FALSE(device_of_driver("NVIDIA GeForce GTX 1080", 8));
}

TEST_CASE("what was measured is of a table only if no other table names the GPU more exactly") {
  const std::string sxm = "NVIDIA H100 80GB HBM3", pcie = "NVIDIA H100 PCIe";
  CHECK(is_of(find_device("h100_sxm"), sxm));
  CHECK(is_of(find_device("h100_pcie"), pcie));
  CHECK_FALSE(is_of(find_device("h100_sxm"), pcie));
  CHECK_FALSE(is_of(find_device("h100_pcie"), sxm));
  CHECK_FALSE(is_of(find_device("h200_sxm"), "NVIDIA GH200 480GB"));
  CHECK_FALSE(is_of(find_device("cpu"), sxm));
  const TemporaryFolder folder;
  const DeviceTable mine = find_device(file_with(folder, "base: h100_sxm\nname: ours\n"));
  CHECK(is_of(mine, sxm));
  CHECK_FALSE(is_of(mine, pcie));
  CHECK(
      is_of(find_device(file_with(folder, "base: h100_sxm\ndriver_names: [GH200]\n")), "NVIDIA GH200 480GB"));
  const std::string slice = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
  CHECK_FALSE(is_of(find_device("h100_sxm"), slice));
  CHECK(is_of(find_device(file_with(folder, "base: h100_sxm\ndriver_names: [MIG 1g.10gb]\n")), slice));
}

TEST_CASE("what the optimizer does is a class, also Muon's part of it, and so is what FP8 adds") {
  const auto of = [](const char* op) { return class_of({.op = op, .precision = Precision::bf16}); };
  for (const char* op : {"adamw", "muon_momentum", "muon_apply", "muon_divide_by_norm", "muon_combine",
                         "grad_norm_squared", "clip_factor", "skip_spike"}) {
    INFO(op);
    CHECK(of(op) == "optimizer");
  }
  for (const char* op : {"quantize", "delayed_amax", "advance_amax_history"}) {
    INFO(op);
    CHECK(of(op) == "quantize");
  }
  CHECK(of("matmul") == "products bf16");  // of Newton-Schulz too
  CHECK(of("rms_norm") == "elementwise");
}

TEST_CASE("a table of one's own starts from another, and mistakes are named") {
  const TemporaryFolder folder;
  const DeviceTable mine =
      find_device(file_with(folder, "base: h100_sxm\nname: ours\ngemm_bf16: [0.66, \"bench kernels\"]\n"));
  CHECK(mine.gemm_bf16 == 0.66);
  CHECK(mine.sources.find("gemm_bf16")->second == "bench kernels");
  CHECK(mine.bf16_tflops == find_device("h100_sxm").bf16_tflops);
  CHECK(mine.name == "ours");
  CHECK_THROWS_WITH(find_device("h100"),
                    Contains("--device 'h100' is unknown: expected one of") && Contains("h100_sxm"));
  CHECK_THROWS_WITH(
      find_network("ib_200_shared"),
      Contains("--network 'ib_200_shared' is unknown (did you mean ib_400_shared?): expected one of"));
  auto refused = [&](const std::string& text) { return find_device(file_with(folder, text)); };
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf61: [1, x]\n"), Contains("did you mean gemm_bf16?"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf16: 0.7\n"),
                    Contains("gemm_bf16 is not [number, source]"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf16: [0.7]\n"), Contains("is not [number, source]"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf16: [-0.7, x]\n"),
                    Contains("gemm_bf16 is -0.7, expected no less than 0"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ngemm_bf16: [.nan, x]\n"),
                    Contains("gemm_bf16 is nan, expected no less than 0"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ndriver_names: H100\n"),
                    Contains("driver_names is ") && Contains("expected a list of strings"));
  CHECK_THROWS_WITH(refused("base: h100_sxm\ncapability: 9.0\n"),
                    Contains("capability is ") && Contains("expected an integer"));
  for (const char* other : {"9", "-90", "4294967386"}) {  // the last is 90 modulo 2^32
    CHECK_THROWS_WITH(
        refused(fmt::format("base: h100_sxm\ncapability: {}\n", other)),
        Contains(fmt::format("capability is {}, expected 80 to 199, as 90 for 9.0, or 0 for a CPU", other)));
  }
  CHECK_THROWS_WITH(refused("name: bare\n"), Contains("bf16_tflops is missing"));
  CHECK_THROWS_WITH(refused(""), Contains(".yaml: bf16_tflops is missing"));
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

TEST_CASE("what is sent to other machines one by one goes through the sender's own adapter") {
  Machine machine{.device = find_device("h100_sxm"), .network = find_network("ib_400"), .ranks_per_node = 8};
  const double adapter = 50 * 0.74;  // GB/s
  // Of 16 ranks on two machines, each sends half of its 16 GB to the other machine.
  const double hops = (8.4 + 14 * 3.4 + 14) * 1e-6;
  CHECK(machine.seconds_of(transfer("all_to_all", 16, 1, 16'000'000'000, 15'000'000'000)) ==
        Approx(8 / adapter + hops));
  CHECK(machine.seconds_of(transfer("all_to_all", 8, 1, 8'000'000'000, 7'000'000'000)) ==
        Approx(7.0 / 360 + (8.4 + 7 * 3.4) * 1e-6));

  const auto messages = [](const char* axis, int ranks, int stride, std::initializer_list<int64_t> sent,
                           int64_t received) {
    RecordedTransfer out{.axis = axis, .ranks = ranks, .stride = stride};
    for (const int64_t bytes : sent) out.calls.push_back({"send", "w", bytes, bytes});
    out.calls.push_back({"recv", "w", received, 0});
    return out;
  };
  // Muon's go to owners on both machines: 8 of the 15 others are on the other one.
  CHECK(machine.seconds_of(messages("replica", 16, 1, {10'000'000'000, 5'000'000'000}, 12'000'000'000)) ==
        Approx(15 * 8 / 15.0 / adapter + hops));
  CHECK(machine.seconds_of(messages("stage", 8, 1, {3'600'000'000}, 7'200'000'000)) ==
        Approx(7.2 / 360 + (8.4 + 7 * 3.4) * 1e-6));
  // A stage sends to the next one, which is on another machine or not.
  CHECK(machine.seconds_of(messages("pp", 4, 8, {4'000'000'000}, 0)) ==
        Approx(4 / adapter + (8.4 + 14) * 1e-6));
  CHECK(machine.seconds_of(messages("pp", 4, 1, {3'600'000'000}, 1000)) ==
        Approx(3.6 / 360 + (8.4 + 3.4) * 1e-6));
}
