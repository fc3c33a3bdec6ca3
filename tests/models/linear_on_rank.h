#pragma once

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"
#include "fp8/recipe.h"
#include "models/linear.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

// A linear layer "w" with all it stands on, for tests that run it without a model: one rank's parameters, FP8
// state and memory.
namespace ottava::test {

/// Rows that run as one product, in a recipe or (without one) in the compute type.
struct PieceSetting {
  RowRange rows;
  std::optional<fp8::RecipeName> recipe;
};

struct LinearSetting {
  LinearStyle style = LinearStyle::column;
  std::vector<ParameterSpec> specs;  ///< the weight and its bias
  bool bias = false;
  std::vector<PieceSetting> pieces;
  Float8State::Options state;     ///< products are added; without a length delayed has no history
  bool travels_in_codes = false;  ///< activations, where they can
  Float8Product::Producers producers = {};
  Overlap overlap = Overlap::bulk;
};

class LinearOnRank {
  struct Table {
    std::vector<LinearPiece> pieces;
    FsdpOptions parameters;
    Float8State::Options state;
  };
  static Table table_of(const LinearSetting& setting, int tensor_parallel) {
    Table out{.pieces = {}, .parameters = {}, .state = setting.state};
    for (const PieceSetting& wanted : setting.pieces) {
      LinearPiece piece{.rows = wanted.rows};
      if (wanted.recipe) {
        const fp8::Recipe recipe = fp8::make_recipe(*wanted.recipe);
        piece.float8.emplace(Float8Product::Options{
            .name = "w",
            .recipe = recipe,
            .plan = float8_plan(recipe, {.style = setting.style,
                                         .tensor_parallel = tensor_parallel,
                                         .is_part = setting.pieces.size() > 1,
                                         .travels_in_codes = setting.travels_in_codes}),
            .entry = out.parameters.float8.specs.size(),
            .product = static_cast<int64_t>(out.state.products.size())});
        out.parameters.float8.specs.push_back({.name = fmt::format("w.{}", out.pieces.size()),
                                               .parameter = 0,
                                               .rows = piece.rows,
                                               .forward = recipe.forward.b,
                                               .backward = recipe.input_gradient.b});
        out.state.products.push_back("w");
        out.state.is_delayed.push_back(recipe.has_history() && setting.state.amax_history_length > 0);
      }
      out.pieces.push_back(piece);
    }
    return out;
  }
  Table table_;

 public:
  Fsdp parameters;
  Float8State state;
  Linear linear;
  StepContext context;

  LinearOnRank(Stream& stream, Arena& arena, RankGroups& ranks, const LinearSetting& setting,
               int64_t workspace_bytes)
      : table_(table_of(setting, ranks.tensor_parallel.size())),
        parameters(stream, arena, ranks, setting.specs, table_.parameters),
        state(arena, ranks, table_.state),
        linear("w", setting.style, {.weight = 0, .bias = setting.bias ? 1 : -1}, table_.pieces,
               setting.producers, setting.overlap),
        context{.stream = stream,
                .arena = arena,
                .parameters = parameters,
                .tensor_parallel = ranks.tensor_parallel,
                .compute = DType::bf16,
                .float8 = &state} {
    const Tensor workspace =
        arena.persistent("workspace", DType::u8, {workspace_bytes}, MemoryCategory::workspace);
    if (!arena.is_recording()) set_matmul_workspace(stream, workspace);
    parameters.initialise(3);
  }

  const std::vector<LinearPiece>& pieces() const { return table_.pieces; }
  void begin_step() {
    parameters.begin_step();
    state.begin_step(context.stream);
  }
};

/// Calls pass(stream, arena, workspace bytes) on meta for the workspace, again for the plan of the memory,
/// then on the CPU. `costs` is what meta recorded.
inline void plan_and_run(CostRecorder& costs,
                         const std::function<void(Stream&, Arena&, int64_t workspace_bytes)>& pass) {
  Stream meta = Stream::meta(costs, {DeviceType::cpu, 0});
  Arena first, plan;
  pass(meta, first, 0);
  const int64_t workspace_bytes = costs.workspace_bytes();
  pass(meta, plan, workspace_bytes);
  Stream stream = Stream::cpu();
  Arena arena(plan.plan(), {DeviceType::cpu, 0});
  pass(stream, arena, workspace_bytes);
}

inline std::vector<float> download(Stream& stream, const Tensor& t) {
  std::vector<float> out(static_cast<size_t>(t.numel()));
  cast(stream, t, view_of(out.data(), t.shape));
  stream.synchronize();
  return out;
}
/// The values as a product in bf16 reads them.
inline std::vector<float> download_as_bf16(Stream& stream, const Tensor& t) {
  std::vector<float> values = download(stream, t);
  for (float& v : values) v = static_cast<float>(bf16(v));
  return values;
}

/// Whether the bias's gradient is the sum of the rows of dy [tokens, outputs], added once and not scaled.
inline bool is_sum_of_rows(const std::vector<float>& dbias, const std::vector<float>& dy, int64_t tokens) {
  const size_t rows = static_cast<size_t>(tokens), outputs = dbias.size();
  bool holds = outputs > 0 && dy.size() == rows * outputs;
  for (size_t o = 0; holds && o < outputs; ++o) {
    double sum = 0, magnitude = 0;
    for (size_t t = 0; t < rows; ++t) sum += dy[t * outputs + o], magnitude += std::abs(dy[t * outputs + o]);
    holds = std::abs(dbias[o] - sum) <= sum_roundoff(tokens) * magnitude;
  }
  return holds;
}

}  // namespace ottava::test
