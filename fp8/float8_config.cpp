#include "fp8/float8_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "fp8/recipe.h"

namespace ottava {
namespace {

std::vector<std::string> recipes() {
  const std::vector<std::string_view> names = fp8::recipe_names();
  return {names.begin(), names.end()};
}

void declare_statistics(config::Section& s, Float8Config& c) {
  s.field("enable_statistics", c.enable_statistics,
          "report amax, underflow and saturation per layer and role at log steps");
  s.field("alert_underflow", c.alert_underflow,
          "warn where more than this fraction of an input's or weight's elements became zero; 1: never")
      .range(0, 1);
  s.field("alert_gradient_underflow", c.alert_gradient_underflow, "the same of an output's gradient")
      .range(0, 1);
  s.field("alert_saturation", c.alert_saturation,
          "warn where more than this fraction of elements was past the largest number; 1: never")
      .range(0, 1);
}

}  // namespace

void declare(config::Section& s, Float8PolicyConfig& c) {
  std::vector<std::string> names = recipes();
  names.push_back("bf16");
  s.field("match", c.match, "glob over GEMM names, such as layers.*.feed_forward.w2").required();
  s.field("recipe", c.recipe, "what these GEMMs run in").required().one_of(names);
}

void declare(config::Section& s, Float8Config& c) {
  s.meaning("FP8 matrix multiplication; in force when model.converters holds quantize.linear.float8");
  s.field("recipe_name", c.recipe_name, "how each operand is scaled").one_of(recipes());
  s.field("filter_fqns", c.filter_fqns,
          "GEMMs whose name contains one of these stay in high precision; auto_filter_small_kn adds "
          "torchao's size rule");
  s.list("policy", c.policy,
         "recipe or bf16 by GEMM name; the last match decides; what cannot hold is refused");
  s.field("high_precision_first_blocks", c.high_precision_first_blocks,
          "first blocks that stay in high precision")
      .at_least(0);
  s.field("high_precision_last_blocks", c.high_precision_last_blocks,
          "last blocks that stay in high precision")
      .at_least(0);
  s.field("auto", c.automatic,
          "time what a step does in FP8 and in BF16, for each shape of a layer, before step 1; keep FP8 only "
          "where it is faster");
  s.field("auto_decisions", c.auto_decisions,
          "auto: take the measurements from this decisions.json, of a run on the GPU, instead of making "
          "them");
  s.field("emulate", c.emulate, "run a recipe that the GPU lacks, in BF16 arithmetic on the same codes");
  s.field("power_of_two_scales", c.power_of_two_scales, "round scales down to powers of two");
  using Fast = fp8::FastAccumulation;
  s.choice("fast_accumulation", c.fast_accumulation,
           {{"forward", Fast::forward}, {"all", Fast::all}, {"none", Fast::none}},
           "products that a GPU's tensor cores sum fast (14 bits on sm_89 and sm_90, to the end instead of "
           "promoted to FP32 every so often): those of forward, of backward too, or none; with scales of "
           "blocks, sums are promoted block by block anyway");
  s.field("amax_history_length", c.amax_history_length,
          "recipe delayed: steps whose largest amax gives the scale, once there have been so many; before, "
          "each tensor's own does")
      .range(1, 1 << 16)
      .unit("steps");
  s.field("margin", c.margin, "recipe delayed: scales of the history are divided by 2^margin")
      .range(0, 16)
      .unit("bits");
  s.field("enable_fsdp_float8_all_gather", c.enable_fsdp_float8_all_gather,
          "FSDP gathers weights as FP8 codes");
  using Keep = Float8Config::KeepCodes;
  s.choice(
      "keep_weight_codes", c.keep_weight_codes,
      {{"auto", Keep::automatic}, {"true", Keep::yes}, {"false", Keep::no}},
      "keep the FP8 codes of weights that FSDP gathers in BF16 for the whole step (quantized and gathered "
      "once) or make them again after every gather (less memory); auto: keep where memory suffices");
  s.field("enable_tp_float8_all_gather", c.enable_tp_float8_all_gather,
          "sequence parallel gathers activations as FP8 codes");
  s.field("enable_float8_gradient_all_to_all", c.enable_float8_gradient_all_to_all,
          "exchange gradients as FP8 chunks, summed in FP32");
  s.field("pad_vocabulary", c.pad_vocabulary,
          "pad the rows of an output layer that policy puts in FP8 to 16 x tensor parallel degree, outside "
          "of softmax and files");
  declare_statistics(s, c);
}

void validate(const Float8Config& c, config::Problems& problems) {
  if (!c.auto_decisions.empty() && !c.automatic) {
    problems.add("quantize.linear.float8.auto_decisions",
                 "only auto reads measurements, and quantize.linear.float8.auto is false");
  }
  const Float8Config usual;
  for (const auto& [key, value, fallback] :
       {std::tuple("alert_underflow", c.alert_underflow, usual.alert_underflow),
        std::tuple("alert_gradient_underflow", c.alert_gradient_underflow, usual.alert_gradient_underflow),
        std::tuple("alert_saturation", c.alert_saturation, usual.alert_saturation)}) {
    const std::string path = fmt::format("quantize.linear.float8.{}", key);
    if (!c.enable_statistics && problems.given(path) && value != fallback)
      problems.add(path, "alerts read statistics, and quantize.linear.float8.enable_statistics is false");
  }
  const bool delays = c.recipe_name == "delayed" || std::ranges::any_of(c.policy, [](const auto& entry) {
                        return entry.recipe == "delayed";
                      });
  for (const auto& [key, value, fallback] :
       {std::tuple("amax_history_length", c.amax_history_length, usual.amax_history_length),
        std::tuple("margin", c.margin, usual.margin)}) {
    const std::string path = fmt::format("quantize.linear.float8.{}", key);
    if (delays || !problems.given(path) || value == fallback) continue;
    problems.add(path,
                 "only recipe delayed has a history; recipe_name is {}, and no entry of "
                 "quantize.linear.float8.policy asks for delayed",
                 c.recipe_name);
  }
}

}  // namespace ottava
