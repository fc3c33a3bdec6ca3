#include "models/llama/llama_float8.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace ottava {
namespace {

int64_t local_rows(const ParameterSpec& spec, size_t part, int tp) {
  ParameterSpec one = spec;
  one.parts = {spec.parts[part]};
  return tensor_parallel_shape(one, tp)[0];
}

/// Rows of a decision's parts, which are neighbours, within the local slice of its parameter.
RowRange rows_of(const fp8::GemmDecision& decision, const ParameterSpec& spec, int tp) {
  RowRange rows;
  int64_t row = 0;
  for (size_t p = 0; p < spec.parts.size(); ++p) {
    const int64_t end = row + local_rows(spec, p, tp);
    if (spec.parts[p].name == decision.gemm.parts.front().name) rows.begin = row;
    if (spec.parts[p].name == decision.gemm.parts.back().name) rows.end = end;
    row = end;
  }
  return rows;
}

/// The plan of a decision for its layer's activations. Row style is what cuts columns.
Float8Plan plan_of(const fp8::GemmDecision& d, const Float8Config& config, int tp) {
  if (d.gemm.role == fp8::GemmRole::output) return {};  // the head gathers for all its chunks at once
  return float8_plan(*d.recipe,
                     {.style = d.gemm.local_columns < d.gemm.columns ? LinearStyle::row : LinearStyle::column,
                      .tensor_parallel = tp,
                      .is_part = d.is_split,
                      .travels_in_codes = config.enable_tp_float8_all_gather});
}

Float8WeightSpec weight_spec(const fp8::GemmDecision& d) {
  return {.name = d.gemm.name,
          .forward = d.recipe->forward.b,
          .backward = d.recipe->input_gradient.b,
          .is_delayed = d.recipe->has_history()};
}

class Builder {
 public:
  Builder(const LlamaParameters& table, const fp8::Policy& policy, const Float8Config& config, int tp)
      : table_(table), policy_(policy), config_(config), tp_(tp) {
    out_.weights = {.amax_history_length = config.amax_history_length,
                    .margin = config.margin,
                    .counts = config.enable_statistics};
    out_.state = {.amax_history_length = config.amax_history_length,
                  .margin = config.margin,
                  .counts = config.enable_statistics};
  }

  LlamaFloat8 build() {
    for (const LlamaBlockParameters& block : table_.blocks) {
      out_.blocks.push_back({.attention = {.wqkv = pieces(block.wqkv), .wo = pieces(block.wo)},
                             .feed_forward = {.w13 = pieces(block.w13), .w2 = pieces(block.w2)}});
    }
    if (const fp8::GemmDecision* output = policy_.find("output"); output && output->recipe) {
      const RowRange rows{0, tensor_parallel_shape(spec(table_.output), tp_)[0]};
      const int64_t padded = output->padded_rows / tp_;
      out_.output = {.float8 = product(*output, table_.output, rows, padded), .padded_rows = padded};
    }
    return std::move(out_);
  }

 private:
  const ParameterSpec& spec(int parameter) const { return table_.specs[parameter]; }

  std::vector<LinearPiece> pieces(int parameter) {
    std::vector<LinearPiece> out;
    const ParameterSpec& s = spec(parameter);
    const fp8::GemmDecision* whole = policy_.find(s.name);
    if (whole) return {piece(*whole, parameter)};
    for (const ParameterPart& part : s.parts) {
      const std::string name = s.name.substr(0, s.name.rfind('.') + 1) + part.name;
      out.push_back(piece(*policy_.find(name), parameter));
    }
    return out;
  }

  LinearPiece piece(const fp8::GemmDecision& decision, int parameter) {
    const RowRange rows = rows_of(decision, spec(parameter), tp_);
    LinearPiece out{.rows = rows};
    if (decision.recipe) out.float8 = product(decision, parameter, rows, 0);
    return out;
  }

  Float8Product product(const fp8::GemmDecision& decision, int parameter, RowRange rows,
                        int64_t padded_rows) {
    const fp8::Recipe& recipe = *decision.recipe;
    const size_t entry = out_.weights.specs.size();
    const auto index = std::ssize(out_.state.products);
    Float8WeightSpec weight = weight_spec(decision);
    weight.gathers_codes = config_.enable_fsdp_float8_all_gather && why_gathered_whole(decision, 1).empty();
    weight.parameter = parameter, weight.rows = rows, weight.padded_rows = padded_rows;
    out_.weights.specs.push_back(std::move(weight));
    out_.state.products.push_back(decision.gemm.name);
    out_.state.is_delayed.push_back(recipe.has_history());
    return Float8Product({.name = decision.gemm.name,
                          .recipe = recipe,
                          .plan = plan_of(decision, config_, tp_),
                          .entry = entry,
                          .product = index,
                          .emulates = decision.is_emulated,
                          .fast = config_.fast_accumulation});
  }

  const LlamaParameters& table_;
  const fp8::Policy& policy_;
  const Float8Config& config_;
  int tp_;
  LlamaFloat8 out_;
};

}  // namespace

fp8::PolicyInputs llama_policy_inputs(const LlamaParameters& table, int tp, int64_t local_tokens) {
  fp8::PolicyInputs in{
      .layers = std::ssize(table.blocks), .tensor_parallel = tp, .local_tokens = local_tokens};
  auto add = [&](int parameter, fp8::GemmRole role, int64_t layer) {
    const ParameterSpec& spec = table.specs[parameter];
    fp8::PolicyGemm gemm{.name = role == fp8::GemmRole::output ? "output" : spec.name,
                         .columns = spec.columns,
                         .local_columns = tensor_parallel_shape(spec, tp)[1],
                         .role = role,
                         .layer = layer};
    for (size_t p = 0; p < spec.parts.size(); ++p) {
      gemm.parts.push_back({role == fp8::GemmRole::output ? "output" : spec.parts[p].name, spec.parts[p].rows,
                            local_rows(spec, p, tp)});
    }
    in.gemms.push_back(std::move(gemm));
  };
  for (size_t l = 0; l < table.blocks.size(); ++l) {
    const LlamaBlockParameters& block = table.blocks[l];
    for (int parameter : {block.wqkv, block.wo, block.w13, block.w2})
      add(parameter, fp8::GemmRole::linear, l);
  }
  add(table.output, fp8::GemmRole::output, -1);
  return in;
}

std::string why_gathered_whole(const fp8::GemmDecision& d, int shards) {
  if (!d.recipe) return "high precision";
  if (d.gemm.role == fp8::GemmRole::output) return "the output layer is also needed in high precision";
  if (d.is_split) return "split from a fused matrix";
  const int64_t rows = d.gemm.local_rows();
  Float8WeightSpec weight = weight_spec(d);
  weight.gathers_codes = true;
  const Float8WeightTravel travel = float8_weight_travel(weight, rows, shards);
  if (travel.in_codes) return "";
  return fmt::format("{} rows / {} shards = {:.6g}, and shards of {} are gathered as whole blocks of {} rows",
                     rows, shards, static_cast<double>(rows) / shards, fp8::name_of(d.recipe->name),
                     travel.cut_blocks);
}

std::string float8_gathers_text(const fp8::Policy& policy, int shards) {
  struct Whole {
    std::string why, first;
    int64_t count = 0;
  };
  std::vector<Whole> whole;
  int64_t float8 = 0, in_codes = 0;
  for (const fp8::GemmDecision& d : policy.decisions) {
    if (!d.recipe) continue;
    ++float8;
    const std::string why = why_gathered_whole(d, shards);
    if (why.empty()) {
      ++in_codes;
      continue;
    }
    auto same = std::ranges::find(whole, why, &Whole::why);
    if (same == whole.end()) same = whole.insert(same, {.why = why, .first = d.gemm.name});
    ++same->count;
  }
  std::string text = fmt::format("FSDP gathers {} of {} FP8 weights as codes", in_codes, float8);
  for (size_t i = 0; i < whole.size(); ++i) {
    text += fmt::format("{} {} ({}: {})", i > 0 ? "," : "; in bf16:", whole[i].count, whole[i].first,
                        whole[i].why);
  }
  return text;
}

namespace {

/// "tensor parallel gathers inputs of 12 and gradients of 12 of 24 FP8 layers as codes; 24 all-reduces of an
/// amax per step".
std::string activation_gathers_text(const fp8::Policy& policy, const Float8Config& config,
                                    const Float8Ranks& ranks) {
  int64_t float8 = 0, inputs = 0, gradients = 0, amaxes = 0;
  for (const fp8::GemmDecision& d : policy.decisions) {
    if (!d.recipe || d.gemm.role != fp8::GemmRole::linear) continue;
    ++float8;
    const Float8Plan plan = plan_of(d, config, ranks.tensor_parallel);
    inputs += plan.x.travel == Travel::codes;
    gradients += plan.dy.travel == Travel::codes;
  }
  for (const CommStats::Total& t : ranks.traffic.totals())
    amaxes += t.axis == "tp" && t.label == "amax" ? t.calls : 0;
  return fmt::format(
      "tensor parallel gathers inputs of {} and gradients of {} of {} FP8 layers as codes; {} all-reduces of "
      "an amax per step",
      inputs, gradients, float8, amaxes);
}

std::string idle_text(std::string_view key, std::string_view why) {
  return fmt::format("{} has no effect: {}", key, why);
}

std::string gradient_exchanges_text(const CommStats::Total& sent) {
  if (sent.calls == 0)
    return idle_text("enable_float8_gradient_all_to_all",
                     "no matrix is large enough, or none splits into whole rows of 128");
  return fmt::format("FSDP exchanges gradients in FP8: {} all-to-alls, {:.1f} MiB sent per step", sent.calls,
                     static_cast<double>(sent.sent_bytes) / (1 << 20));
}

// Empty: rows are padded, or there is no such layer.
std::string why_not_padded(const fp8::GemmDecision* output, int tensor_parallel) {
  if (!output) return "";
  if (!output->recipe)
    return fmt::format(
        "it pads for FP8, and the output layer runs in bf16 ({}): an entry of "
        "quantize.linear.float8.policy with match output puts it in FP8",
        output->reason);
  if (output->padded_rows > 0) return "";
  return fmt::format("{} rows / tp {} are a multiple of {} already", output->gemm.rows(), tensor_parallel,
                     output->recipe->alignment());
}

}  // namespace

std::vector<std::string> float8_remarks(const fp8::Policy& policy, const Float8Config& config,
                                        const Float8Ranks& ranks) {
  std::vector<std::string> lines;
  const auto runs = [](const fp8::GemmDecision& d) { return d.recipe.has_value(); };
  if (const auto emulated = std::ranges::count_if(
          policy.decisions, [&](const fp8::GemmDecision& d) { return runs(d) && d.is_emulated; })) {
    lines.push_back(
        fmt::format("{} of {} FP8 layers are emulated by bf16 products of the same codes, because this GPU "
                    "does not support theirs: no faster than bf16, and counted as bf16",
                    emulated, std::ranges::count_if(policy.decisions, runs)));
  }
  const char* whole = "parameters are not sharded (dp_shard 1)";
  if (config.enable_fsdp_float8_all_gather)
    lines.push_back(ranks.shards > 1 ? float8_gathers_text(policy, ranks.shards)
                                     : idle_text("enable_fsdp_float8_all_gather", whole));
  if (config.enable_tp_float8_all_gather)
    lines.push_back(ranks.tensor_parallel > 1
                        ? activation_gathers_text(policy, config, ranks)
                        : idle_text("enable_tp_float8_all_gather", "tensor_parallel_degree is 1"));
  if (config.enable_float8_gradient_all_to_all)
    lines.push_back(ranks.shards > 1 ? gradient_exchanges_text(ranks.traffic.sum(Collective::all_to_all))
                                     : idle_text("enable_float8_gradient_all_to_all", whole));
  if (config.pad_vocabulary) {
    const std::string why = why_not_padded(policy.find("output"), ranks.tensor_parallel);
    if (!why.empty()) lines.push_back(idle_text("pad_vocabulary", why));
  }
  return lines;
}

LlamaFloat8 llama_float8(const LlamaParameters& table, const fp8::Policy& policy, const Float8Config& config,
                         int tp) {
  return Builder(table, policy, config, tp).build();
}

}  // namespace ottava
