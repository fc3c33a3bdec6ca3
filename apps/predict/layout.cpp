#include "apps/predict/layout.h"

#include <fmt/ranges.h>

#include "core/contains.h"
#include "core/text/shell_word.h"

namespace ottava {
namespace {

constexpr std::string_view kConverter = "quantize.linear.float8";

std::string name_of(ParallelismConfig::Reshard reshard) {
  using Reshard = ParallelismConfig::Reshard;
  return reshard == Reshard::automatic ? "default" : reshard == Reshard::always ? "always" : "never";
}
std::string name_of(ParallelismConfig::Reduce reduce) {
  using Reduce = ParallelismConfig::Reduce;
  return reduce == Reduce::automatic ? "auto" : reduce == Reduce::every_microbatch ? "true" : "false";
}
std::string name_of(ActivationCheckpointConfig::Mode mode) {
  using Mode = ActivationCheckpointConfig::Mode;
  switch (mode) {
    case Mode::none:
      return "none";
    case Mode::selective:
      return "selective";
    case Mode::full:
      return "full";
    case Mode::automatic:
      break;
  }
  return "auto";
}

const char* level_of(const Layout& l) { return l.float8.empty() ? "O2" : "O1"; }

}  // namespace

Layout layout_of(const Experiment& e) {
  const Config& c = e.config;
  return {.dp_replicate = e.mesh.size(MeshAxis::dp_replicate),
          .dp_shard = e.mesh.size(MeshAxis::dp_shard),
          .cp = e.mesh.size(MeshAxis::cp),
          .tp = e.mesh.size(MeshAxis::tp),
          .pp = e.mesh.size(MeshAxis::pp),
          .local_batch = e.shape.batch,
          .global_batch = e.global_batch,
          .recompute = c.activation_checkpoint,
          .reshard = c.parallelism.fsdp_reshard_after_forward,
          .reduce = c.parallelism.fsdp_reduce_every_microbatch,
          .moments = c.optimizer.state_dtype,
          .float8 = c.model.uses_float8() ? c.float8.recipe_name : "",
          .float8_gather = c.model.uses_float8() && c.float8.enable_fsdp_float8_all_gather,
          .by_level = c.training.mixed_precision_level == "O1"};
}

Config with_layout(Config c, const Layout& l) {
  if (l.by_level) c.training.mixed_precision_level = level_of(l);
  c.parallelism.data_parallel_replicate_degree = l.dp_replicate;
  c.parallelism.data_parallel_shard_degree = l.dp_shard;
  c.parallelism.context_parallel_degree = l.cp;
  c.parallelism.tensor_parallel_degree = l.tp;
  c.parallelism.pipeline_parallel_degree = l.pp;
  if (l.pp > 1) c.parallelism.pipeline_parallel_microbatch_size = l.local_batch;
  c.parallelism.fsdp_reshard_after_forward = l.reshard;
  c.parallelism.fsdp_reduce_every_microbatch = l.reduce;
  c.training.local_batch_size = l.local_batch;
  c.training.global_batch_size = l.global_batch;
  c.activation_checkpoint = l.recompute;
  c.optimizer.state_dtype = l.moments;
  std::erase(c.model.converters, kConverter);
  if (!l.float8.empty()) {
    c.model.converters.emplace_back(kConverter);
    c.float8.recipe_name = l.float8;
    c.float8.enable_fsdp_float8_all_gather = l.float8_gather;
  }
  return c;
}

LayoutKeys keys_of(const Layout& l) {
  LayoutKeys keys{{"parallelism.data_parallel_replicate_degree", std::to_string(l.dp_replicate)},
                  {"parallelism.data_parallel_shard_degree", std::to_string(l.dp_shard)},
                  {"parallelism.context_parallel_degree", std::to_string(l.cp)},
                  {"parallelism.tensor_parallel_degree", std::to_string(l.tp)},
                  {"parallelism.pipeline_parallel_degree", std::to_string(l.pp)},
                  {"parallelism.fsdp_reshard_after_forward", name_of(l.reshard)},
                  {"parallelism.fsdp_reduce_every_microbatch", name_of(l.reduce)},
                  {"training.local_batch_size", std::to_string(l.local_batch)},
                  {"training.global_batch_size", std::to_string(l.global_batch)},
                  {"activation_checkpoint.mode", name_of(l.recompute.mode)}};
  if (l.pp > 1)
    keys.emplace_back("parallelism.pipeline_parallel_microbatch_size", std::to_string(l.local_batch));
  if (l.recompute.mode == ActivationCheckpointConfig::Mode::selective)
    keys.emplace_back("activation_checkpoint.selective_ac_option", l.recompute.selective_ac_option);
  keys.emplace_back("optimizer.state_dtype", l.moments == DType::bf16 ? "bfloat16" : "float32");
  if (l.by_level) keys.emplace_back("training.mixed_precision_level", level_of(l));
  keys.emplace_back("model.converters", l.float8.empty() ? "[]" : fmt::format("[{}]", kConverter));
  if (!l.float8.empty()) {
    keys.emplace_back("quantize.linear.float8.recipe_name", l.float8);
    keys.emplace_back("quantize.linear.float8.enable_fsdp_float8_all_gather",
                      l.float8_gather ? "true" : "false");
  }
  return keys;
}

LayoutKeys changed_keys(const Layout& from, const Layout& layout) {
  const LayoutKeys before = keys_of(from);
  LayoutKeys keys = keys_of(layout);
  std::erase_if(keys, [&](const auto& key) { return contains(before, key); });
  return keys;
}

std::string options_text(const LayoutKeys& keys) {
  std::vector<std::string> options;
  for (const auto& [key, value] : keys) options.push_back(fmt::format("--{} {}", key, shell_word(value)));
  return fmt::format("{}", fmt::join(options, " "));
}

std::string describe(const Layout& l, std::string_view automatic_recompute) {
  std::vector<std::string> axes;
  for (const auto& [name, size] :
       {std::pair{"pp", l.pp}, std::pair{"dp_replicate", l.dp_replicate}, std::pair{"dp_shard", l.dp_shard},
        std::pair{"cp", l.cp}, std::pair{"tp", l.tp}})
    if (size > 1) axes.push_back(fmt::format("{} {}", name, size));
  std::string text = axes.empty() ? "1 rank" : fmt::format("{}", fmt::join(axes, " x "));
  text += fmt::format(", {} x {} {}", l.micro_batches(), l.local_batch,
                      l.local_batch == 1 ? "sequence" : "sequences");
  text += fmt::format(", recompute {}", name_of(l.recompute.mode));
  if (l.recompute.mode == ActivationCheckpointConfig::Mode::selective)
    text += " " + l.recompute.selective_ac_option;
  if (!automatic_recompute.empty()) text += fmt::format(" ({})", automatic_recompute);
  text +=
      l.float8.empty() ? ", bf16" : fmt::format(", FP8 {}{}", l.float8, l.float8_gather ? " gathered" : "");
  if (l.moments == DType::bf16) text += ", bf16 moments";
  if (l.reshard != ParallelismConfig::Reshard::automatic) text += ", reshard " + name_of(l.reshard);
  if (l.reduce != ParallelismConfig::Reduce::automatic)
    text += l.reduce == ParallelismConfig::Reduce::every_microbatch ? ", reduced each micro-batch"
                                                                    : ", reduced once";
  return text;
}

}  // namespace ottava
