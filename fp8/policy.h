#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fp8/float8_config.h"
#include "fp8/recipe.h"

namespace ottava::fp8 {

/// What a layer's matrix product is in the model. Embeddings, norms and attention itself are never FP8 and
/// have no place in the policy.
enum class GemmRole : uint8_t { linear, output };

/// One linear layer's matrix: rows O (outputs) and columns K (inputs), in all and as a tensor-parallel rank
/// holds them.
struct PolicyGemm {
  struct Part {
    std::string name;  ///< "wq"
    int64_t rows = 0, local_rows = 0;
  };
  std::string name;         ///< "layers.3.attention.wqkv"
  std::vector<Part> parts;  ///< one, or those of a fused matrix in order
  int64_t columns = 0, local_columns = 0;
  GemmRole role = GemmRole::linear;
  int64_t layer = -1;  ///< block, or -1 outside of blocks

  int64_t rows() const;
  int64_t local_rows() const;
};

/// What the policy is decided for.
struct PolicyInputs {
  std::vector<PolicyGemm> gemms;
  int64_t layers = 0;
  int64_t tensor_parallel = 1;
  /// Tokens of a micro-batch, as the products see them: gathered over tensor-parallel ranks.
  int64_t local_tokens = 0;
  /// Recipes that the device can multiply; absent: all (a CPU).
  std::optional<std::vector<RecipeName>> hardware = {};
  /// How much faster one layer's products are in FP8, casts included, than in bf16: a ratio. Asked only with
  /// `auto`. If it returns nothing, the ratio will be measured before step 1, and FP8 is assumed until then.
  std::function<std::optional<double>(const PolicyGemm&, const Recipe&)> measured_speedup = {};
  /// Those ratios are another device's; they also hold on a device that emulates FP8.
  bool is_measured_elsewhere = false;
};

/// How one matrix product runs, and why.
struct GemmDecision {
  PolicyGemm gemm;               ///< a fused matrix, or one of its parts where the fusion is split
  std::optional<Recipe> recipe;  ///< absent: high precision
  std::string reason;
  bool is_split = false;  ///< a part that must run as a product of its own
  bool is_emulated = false;
  bool is_measured = false;  ///< `auto` decides, by whether FP8 is faster
  int64_t padded_rows = 0;   ///< global rows with pad_vocabulary; 0: not padded
};

/// The decisions of a model.
struct Policy {
  std::vector<GemmDecision> decisions;  ///< in the order of the inputs
  int64_t tensor_parallel = 1;

  /// FP8 products of one forward and backward pass of a micro-batch. A step is checked against it.
  int64_t fp8_products() const;
  /// The decision for a layer or, where its fusion is split, for a part ("layers.3.attention.wq"); null if
  /// there is none.
  const GemmDecision* find(std::string_view name) const;
};

/// One decision per product, each with its reason. Later rules override earlier ones: recipe_name; the role
/// (the output layer stays in high precision); first and last blocks; filter_fqns; the policy list; for what
/// the policy list did not name, auto_filter_small_kn and auto; last the local shape, whose extents must be
/// multiples of 16 (mxfp8: 32).
///
/// A filter matches a name that contains it, a policy entry a name that its glob covers. Names are those of
/// layers and of their parts ("layers.0.attention.wq"); if only some parts match, the fusion is split. Where
/// a shape does not fit, recipe_name gives way, with the arithmetic as the reason; an entry of the policy
/// list that cannot hold is refused.
///
/// Throws ConfigError for entries that match nothing (naming all of them), two different entries for one
/// pattern, an entry that later ones contradict wherever it matches, one that cannot hold,
/// auto_filter_small_kn for a recipe without thresholds, and auto without measurements; DeviceError for a
/// recipe that the hardware lacks, unless emulate is set.
Policy decide_policy(const Float8Config& config, const PolicyInputs& inputs);

/// Throws ConfigError, with the reasons, if nothing runs in FP8 although it was asked for. No error if
/// nothing is left because FP8 was measured to be slower or is below the thresholds of auto_filter_small_kn:
/// that was asked for too.
void require_some_float8(const Policy& policy, const Float8Config& config);

/// "tensorwise in 24 of 25 layers, 72 products in each forward and backward pass; bf16: output (the output
/// layer stays in high precision)": a line for the log, the first three reasons for high precision with one
/// layer each.
std::string policy_summary(const Policy& policy);

/// The decisions as a table, with equal blocks in one line, and how much of the arithmetic is FP8.
std::string policy_table(const Policy& policy);

}  // namespace ottava::fp8
