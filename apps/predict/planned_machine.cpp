#include "apps/predict/planned_machine.h"

#include <algorithm>
#include <thread>

#include "apps/decide/attention_choice.h"
#include "apps/decide/cpu_products.h"
#include "apps/decide/gemm_cache.h"
#include "apps/decide/memory_rates.h"
#include "apps/devices/available_memory.h"
#include "apps/predict/nccl_memory.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/text/gib.h"
#include "parallel/comm/solo_communicator.h"

namespace ottava {
namespace {

constexpr const char *kCpu = "cpu", *kNetwork = "ib_400";

DeviceTable named_device(const MachineChoice& choice, const Config& config) {
  DeviceTable table = find_device(choice.device);
  const std::string& wanted = config.training.device;
  if (wanted != "auto" && table.is_gpu() != wanted.starts_with("cuda"))
    fail<ConfigError>("plan", "--device {} is {}, but training.device is {}: set --training.device {}",
                      choice.device, table.is_gpu() ? "a GPU" : "a CPU", wanted,
                      table.is_gpu() ? "cuda" : kCpu);
  if (choice.compute_capability > 0 && table.is_gpu() && choice.compute_capability != table.capability)
    fail<ConfigError>(
        "plan",
        "--device {} has compute capability {}.{}, but --compute-capability is {}.{}: remove one of them",
        choice.device, table.capability / 10, table.capability % 10, choice.compute_capability / 10,
        choice.compute_capability % 10);
  return table;
}

std::optional<DeviceTable> device_of_capability(int capability) {
  for (const char* name : {"h100_sxm", "a100_sxm", "l40s", "b200", "rtx_5090"}) {
    DeviceTable table = find_device(name);
    if (table.capability == capability) return table;
  }
  return {};
}

std::optional<DeviceTable> device_here() {
  return device_of_driver(cuda::device_name(0), cuda::memory_info(0).total_bytes);
}

constexpr double kGiga = 1e9, kTera = 1e12;

// As many bytes as a rank's masters, gradients and moments have, up to 128 MiB: where these stay in the
// caches from step to step, what is measured does too.
MemoryRates measured_rates(const Experiment& e, Communicator& ranks) {
  constexpr int64_t kOfParameter = 16, kLeast = int64_t{1} << 22, kMost = int64_t{1} << 27;
  const int64_t sharers = int64_t{e.mesh.shards()} * e.mesh.size(MeshAxis::tp) * e.mesh.size(MeshAxis::pp);
  const int64_t bytes = std::clamp(kOfParameter * parameter_count(e.shape.model) / sharers, kLeast, kMost);
  return memory_rates(e.config.training.gemm_cache, bytes, ranks);
}

void set_rates(Machine& cpu, const DevicePeaks& peaks, const MemoryRates& memory) {
  cpu.device.bf16_tflops = peaks.bf16 / kTera;
  cpu.device.fp32_tflops = peaks.fp32 / kTera;
  cpu.device.memory_gb_per_s = memory.copied / kGiga;
  cpu.update_gb_per_s = memory.updated / kGiga;
}

// A run that measures takes the faster way.
bool is_still_measured(const Experiment& e) {
  return !e.decisions.find(kBf16Matmul) &&
         std::ranges::any_of(open_cpu_products(e),
                             [](const OpenDecision& d) { return d.name == kBf16Matmul; });
}

// Products in bf16, and those of FP8 codes, which are made of them, take the rate of the way in which the
// step multiplies.
void multiply_in_way(Machine& machine, const Experiment& e, const PeakSearch& search) {
  using cpu::Bf16Products;
  if (e.shape.parameters.compute != DType::bf16) return;
  Bf16Products way = e.shape.cpu_products.matmul;
  if (is_still_measured(e) && part_of_bf16_peak(way, search) < 1)
    way = way == Bf16Products::direct ? Bf16Products::widened : Bf16Products::direct;
  const double part = part_of_bf16_peak(way, search);
  machine.device.gemm_bf16 *= part;
  machine.device.gemm_fp8 *= part;
  machine.widens_bf16 = way == Bf16Products::widened;
}

void measure(Machine& machine, const Experiment& e) {
  const MeasuredOperations& measured = machine.measured;
  const Config& config = e.config;
  const PeakSearch search{.metrics = config.metrics, .cache = config.training.gemm_cache};
  DevicePeaks peaks = find_device_peaks({DeviceType::cpu, 0}, search);
  if (measured.empty()) multiply_in_way(machine, e, search);
  if (!measured.empty()) peaks.bf16 = measured.gemm_flops_per_second();
  if (measured.f32_gemm_flops_per_second() > 0) peaks.fp32 = measured.f32_gemm_flops_per_second();
  SoloCommunicator alone;
  const MemoryRates memory =
      measured.empty() ? measured_rates(e, alone) : MemoryRates{.copied = measured.copy_bytes_per_second()};
  set_rates(machine, peaks, memory);
  machine.device.memory_gib = gib(memory_for_rank({DeviceType::cpu, 0}, alone));
}

int nccl_channels(const CommConfig& comm) {
  if (comm.excludes_nccl()) return 0;
  return comm.sm_budget > 0 ? std::min(static_cast<int>(comm.sm_budget), kNcclChannels) : kNcclChannels;
}

// Under auto as a run does, which takes the faster one: the time of both passes, here by the table.
bool takes_cudnn(Machine machine, const Experiment& e) {
  const AttentionConfig& attention = e.config.attention;
  if (!attention.may_use_cudnn() || machine.device.cudnn_forward == 0 || !objection_to_cudnn(e).empty())
    return false;
  if (attention.backend == AttentionConfig::Backend::cudnn) return true;
  machine.measured = {};
  const LlamaConfig& m = e.shape.model;
  const Shape queries{1, m.heads * m.head_dim}, all{1, (m.heads + 2 * m.kv_heads) * m.head_dim};
  const auto seconds = [&](bool by_cudnn) {
    machine.has_cudnn_attention = by_cudnn;
    RecordedOperation o{.op = "attention_forward", .precision = Precision::bf16, .flops = 1e15};
    o.call.tensors = {
        {nullptr, DType::bf16, all}, {nullptr, DType::bf16, queries}, {nullptr, DType::f32, {1, m.heads, 1}}};
    const double forward = machine.time_of(o).seconds;
    o.op = "attention_backward", o.flops *= 2.5;
    return forward + machine.time_of(o).seconds;
  };
  return seconds(true) < seconds(false);
}

}  // namespace

std::optional<DeviceTable> choose_device(const MachineChoice& choice, const Config& config) {
  if (!choice.device.empty()) return named_device(choice, config);
  if (config.training.device.starts_with("cuda")) {
    if (choice.compute_capability > 0) return device_of_capability(choice.compute_capability);
    return cuda::device_count() > 0 ? device_here() : find_device("h100_sxm");
  }
  return parse_device(config.training.device).is_gpu() ? device_here() : find_device(kCpu);
}

std::string kept_products(const DeviceTable& device, std::string_view setting, const std::string& library,
                          const std::string& gpu) {
  const std::optional<DeviceTable> own = device_of_driver(gpu);
  if (!own || own->id != device.id) return {};
  const MeasurementCache kept = gemm_cache(setting, library + " on " + gpu);
  return holds_products(kept.read()) ? kept.file() : std::string();
}

Machine planned_machine(const MachineChoice& choice, DeviceTable device, const PlannedExperiment& planned) {
  const int ranks = planned.experiment.mesh.world_size();
  Machine machine{.device = std::move(device),
                  .network = find_network(choice.network.empty() ? kNetwork : choice.network),
                  .ranks_per_node = choice.ranks_per_node,
                  .has_cudnn_attention = false};
  machine.measured = MeasuredOperations::read(choice.calibration);
  if (const std::string& on = machine.measured.device();
      !on.empty() && (on == kCpu ? machine.device.is_gpu() : !is_of(machine.device, on)))
    fail<ConfigError>(
        "plan", "--calibration was measured on {}, but this plan is for {}: set --device to the measured one",
        on, machine.device.name);
  if (machine.device.is_gpu()) {
    if (machine.ranks_per_node == 0) machine.ranks_per_node = 8;
    machine.nccl_channels = nccl_channels(planned.experiment.config.comm);
    machine.has_cudnn_attention = takes_cudnn(machine, planned.experiment);
    return machine;
  }
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (machine.ranks_per_node == 0) machine.ranks_per_node = std::min(ranks, cores);
  measure(machine, planned.experiment);
  const double here = std::min(ranks, machine.ranks_per_node);
  const double threads = planned.experiment.config.training.threads;
  // Rates are those of so many threads; without the key, of all cores.
  const double sharers = threads > 0 ? std::max(1.0, here * threads / cores) : here;
  for (double DeviceTable::*rate :
       {&DeviceTable::memory_gb_per_s, &DeviceTable::bf16_tflops, &DeviceTable::fp32_tflops})
    machine.device.*rate /= sharers;
  machine.update_gb_per_s /= sharers;
  machine.device.memory_gib /= here;
  return machine;
}

std::optional<Machine> running_machine(Device device, const DevicePeaks& peaks, const Experiment& e,
                                       Communicator& control) {
  Machine machine;
  if (device.is_gpu()) {
    const std::optional<DeviceTable> known = device_of_driver(cuda::device_name(device.index));
    if (!known) return {};
    machine.device = *known;
    machine.has_cudnn_attention = e.shape.model_options.fused_attention != nullptr;
  } else {
    machine.device = find_device(kCpu);
    machine.ranks_per_node = e.mesh.world_size();
    set_rates(machine, peaks, measured_rates(e, control));
    multiply_in_way(machine, e, {.cache = e.config.training.gemm_cache});
  }
  machine.network = find_network(kNetwork);
  return machine;
}

std::optional<MemoryLimit> memory_limit(const MachineChoice& choice, const Machine* machine) {
  if (choice.limit_gib) return MemoryLimit{*choice.limit_gib, "--limit-gib"};
  if (!machine) return {};
  const DeviceTable& d = machine->device;
  if (!d.is_gpu()) return MemoryLimit{d.memory_gib, "what is free on this machine for each rank on it"};
  return MemoryLimit{d.memory_gib - d.reserve_gib, fmt::format("{}: {:.1f} GiB less {:.1f} for libraries",
                                                               d.name, d.memory_gib, d.reserve_gib)};
}

}  // namespace ottava
