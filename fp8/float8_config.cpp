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
          "report amax, underflow and saturation of each layer and role at logged steps");
  s.field("alert_underflow", c.alert_underflow,
          "warn if more than this fraction of the elements of an input or a weight becomes zero; 1: never")
      .range(0, 1);
  s.field("alert_gradient_underflow", c.alert_gradient_underflow,
          "warn if more than this fraction of the elements of an output gradient becomes zero; 1: never")
      .range(0, 1);
  s.field("alert_saturation", c.alert_saturation,
          "warn if more than this fraction of elements exceeds the largest FP8 number; 1: never")
      .range(0, 1);
}

}  // namespace

void declare(config::Section& s, Float8PolicyConfig& c) {
  std::vector<std::string> names = recipes();
  names.push_back("bf16");
  s.field("match", c.match, "glob over GEMM names, such as layers.*.feed_forward.w2").required();
  s.field("recipe", c.recipe, "recipe of these GEMMs, or bf16").required().one_of(names);
}

void declare(config::Section& s, Float8Config& c) {
  s.meaning("FP8 matrix products; in effect only if model.converters contains quantize.linear.float8");
  s.field("recipe_name", c.recipe_name,
          "how the operands of FP8 products are scaled, see fp8/choosing_a_recipe.md")
      .one_of(recipes());
  s.field("filter_fqns", c.filter_fqns,
          "GEMMs whose name contains one of these stay in high precision; auto_filter_small_kn: also those "
          "too small by torchao's rule");
  s.list("policy", c.policy,
         "recipe, or bf16, for GEMMs whose name matches a pattern; the last match applies; an impossible "
         "choice is refused");
  s.field("high_precision_first_blocks", c.high_precision_first_blocks,
          "number of blocks at the beginning of the model that stay in high precision")
      .at_least(0);
  s.field("high_precision_last_blocks", c.high_precision_last_blocks,
          "number of blocks at the end of the model that stay in high precision")
      .at_least(0);
  s.field("auto", c.automatic,
          "time each layer shape in FP8 and in BF16 before step 1, and use FP8 only where it is faster");
  s.field("auto_decisions", c.auto_decisions,
          "decisions.json of a run on the GPU from which auto takes its measurements; empty: measure");
  s.field("emulate", c.emulate,
          "emulate a recipe that the GPU does not support, with BF16 arithmetic on the same FP8 codes");
  s.field("power_of_two_scales", c.power_of_two_scales, "round scales down to powers of two");
  using Fast = fp8::FastAccumulation;
  s.choice("fast_accumulation", c.fast_accumulation,
           {{"forward", Fast::forward}, {"all", Fast::all}, {"none", Fast::none}},
           "products that GPUs of sm_89 and sm_90 sum fast, in 14 bits throughout, instead of promoting sums "
           "to FP32 at intervals; forward: those of the forward pass; all: those of the backward pass too; "
           "none: no product; recipes with block scales always promote");
  s.field("amax_history_length", c.amax_history_length,
          "for recipe delayed, the number of past steps whose largest amax gives the scale; until there are "
          "that many, each tensor's own amax is used")
      .range(1, 1 << 16)
      .unit("steps");
  s.field("margin", c.margin, "for recipe delayed, scales from the history are divided by 2^margin")
      .range(0, 16)
      .unit("bits");
  s.field("enable_fsdp_float8_all_gather", c.enable_fsdp_float8_all_gather,
          "gather weights as FP8 codes in FSDP, for less communication");
  using Keep = Float8Config::KeepCodes;
  s.choice("keep_weight_codes", c.keep_weight_codes,
           {{"auto", Keep::automatic}, {"true", Keep::yes}, {"false", Keep::no}},
           "keep the FP8 codes of weights that FSDP gathers in BF16; true: for the whole step, so that "
           "weights are gathered and quantized once; false: quantize again after every gather (less memory); "
           "auto: keep them if memory suffices");
  s.field("enable_tp_float8_all_gather", c.enable_tp_float8_all_gather,
          "gather activations as FP8 codes in sequence parallelism, for less communication");
  s.field("enable_float8_gradient_all_to_all", c.enable_float8_gradient_all_to_all,
          "exchange gradients between shards as FP8 codes, and sum them in FP32");
  s.field("pad_vocabulary", c.pad_vocabulary,
          "pad the rows of an output layer that policy runs in FP8 to a multiple of 16 (mxfp8: 32) x "
          "tensor parallel degree; softmax and saved files do not see the padding");
  declare_statistics(s, c);
}

void validate(const Float8Config& c, config::Problems& problems) {
  if (!c.auto_decisions.empty() && !c.automatic) {
    problems.add("quantize.linear.float8.auto_decisions",
                 "only auto uses measurements, and quantize.linear.float8.auto is false");
  }
  const Float8Config usual;
  for (const auto& [key, value, fallback] :
       {std::tuple("alert_underflow", c.alert_underflow, usual.alert_underflow),
        std::tuple("alert_gradient_underflow", c.alert_gradient_underflow, usual.alert_gradient_underflow),
        std::tuple("alert_saturation", c.alert_saturation, usual.alert_saturation)}) {
    const std::string path = fmt::format("quantize.linear.float8.{}", key);
    if (!c.enable_statistics && problems.given(path) && value != fallback)
      problems.add(path, "alerts need statistics, and quantize.linear.float8.enable_statistics is false");
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
                 "only recipe delayed uses this key; recipe_name is {}, and no entry of "
                 "quantize.linear.float8.policy has recipe delayed",
                 c.recipe_name);
  }
}

}  // namespace ottava
