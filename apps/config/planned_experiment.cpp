#include "apps/config/planned_experiment.h"

#include "apps/config/resolved_float8.h"
#include "apps/config/resolved_layout.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace ottava {
namespace {

Device planned_device(const std::string& text) {
  if (text.starts_with("cuda")) return {DeviceType::cuda, 0};
  return parse_device(text);
}

std::shared_ptr<const Tokenizer> tokenizer_if_there(const Config& config) {
  if (config.model.vocab_size > 0 || !has_assets(config)) return nullptr;
  return load_tokenizer(config);
}

// Otherwise a misspelt path would silently plan another model.
void warn_of_vocabulary(Experiment& e) {
  if (e.tokenizer || e.config.model.vocab_size > 0) return;
  e.config.provenance.warnings.push_back(
      fmt::format("the plan uses the flavor's vocabulary size {}, because '{}' does not exist; a run uses "
                  "that of its tokenizer",
                  e.shape.model.vocab_size, e.config.model.hf_assets_path));
}

std::optional<int> planned_capability(int asked, const Device& device) {
  if (!device.is_gpu()) {
    if (asked > 0)
      fail<ConfigError>(
          "plan",
          "--compute-capability is for GPUs, but this plan is for a CPU: set training.device to cuda");
    return {};
  }
  if (asked > 0) return asked;
  return cuda::device_count() > 0 ? cuda::compute_capability(0) : 90;
}

Experiment resolve(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, int world_size,
                   const std::optional<int>& capability) {
  try {
    Experiment e = resolve_experiment(config, std::move(tokenizer), world_size, capability);
    if (e.shape.float8.is_on() && config.float8.automatic && !config.float8.auto_decisions.empty())
      apply_measured_float8(e, read_auto_decisions(config));
    return e;
  } catch (const DeviceError& error) {
    if (!capability) throw;
    throw DeviceError(
        fmt::format("{}; this plan is for compute capability {}.{}: for another GPU set --device, or "
                    "--compute-capability in its place",
                    error.what(), *capability / 10, *capability % 10));
  }
}

}  // namespace

PlannedExperiment plan_experiment(const Config& config, int world_size, int compute_capability) {
  const Device device = planned_device(config.training.device);
  const std::optional<int> capability = planned_capability(compute_capability, device);
  if (world_size == 0) world_size = mesh_degrees(config).fewest_ranks();
  Experiment e = resolve(config, tokenizer_if_there(config), world_size, capability);
  warn_of_vocabulary(e);
  return {device, std::move(e)};
}

Experiment resolve_planned(const Config& config, const PlannedExperiment& planned, int world_size) {
  return resolve(config, planned.experiment.tokenizer, world_size, planned.experiment.compute_capability);
}

}  // namespace ottava
