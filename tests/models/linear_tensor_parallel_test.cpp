#include <numeric>

#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "tests/fp8/recipes.h"
#include "tests/models/linear_on_rank.h"
#include "tests/models/linear_reference.h"
#include "tests/support/catch.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// The layer cut among tensor-parallel ranks, in both styles, against the straight-through formula in FP64.
// Operands are not read back: the reference makes them from the values of all ranks, with the scale of
// exactly those that share one. So what is right here is also which ranks an amax covers:
//   column   x: all tokens        dy: the rank's outputs   w: all ranks (one scale), else the rank's slice
//   row      x: the rank's inputs dy: all tokens           w: likewise

using namespace ottava;
using namespace ottava::test;
using fp8::Granularity;
using fp8::RecipeName;

namespace {

constexpr int kRanks = 2;
constexpr int64_t kTokens = 160, kColumns = 192;
constexpr int64_t kPartRows[3] = {160, 64, 96}, kRows = 320;  // wq, wk, wv over all ranks

struct Case {
  LinearStyle style = LinearStyle::column;
  std::vector<std::optional<RecipeName>> recipes;  ///< per piece (column style); one: a single product
  bool gathers_codes = false;                      ///< activations travel as FP8 codes
  bool bias = false;
  Overlap overlap = Overlap::bulk;

  bool is_column() const { return style == LinearStyle::column; }
  int64_t rows() const { return is_column() ? kRows / kRanks : kRows; }  ///< of a rank's weight
  int64_t columns() const { return is_column() ? kColumns : kColumns / kRanks; }
  Shape x_shape() const {
    return is_column() ? Shape{kTokens / kRanks, kColumns} : Shape{kTokens, kColumns / kRanks};
  }
  Shape dy_shape() const {
    return is_column() ? Shape{kTokens, kRows / kRanks} : Shape{kTokens / kRanks, kRows};
  }
  RowRange piece(size_t i) const {
    if (recipes.size() == 1) return {0, rows()};
    const int64_t begin = std::accumulate(kPartRows, kPartRows + i, int64_t{0}), part = kPartRows[i];
    return {begin / kRanks, (begin + part) / kRanks};
  }
};

/// What a rank was given and what it made; given values are those of bf16.
struct Rank {
  std::vector<float> x, dy, w, bias;
  std::vector<float> y, dx, dw, dbias;
  int64_t products = 0, sent_bytes = 0;
  std::vector<std::string> calls;
};

std::vector<ParameterSpec> specs(LinearStyle style) {
  const auto cut = style == LinearStyle::column ? TensorParallel::rows : TensorParallel::columns;
  ParameterSpec weight{.name = "w", .parts = {}, .columns = kColumns, .tensor_parallel = cut};
  for (int64_t rows : kPartRows)
    weight.parts.push_back({.name = fmt::format("w{}", rows),
                            .hf_name = fmt::format("w{}", rows),
                            .rows = rows,
                            .groups = rows,
                            .init = {}});
  ParameterSpec bias = weight;
  bias.name += ".bias", bias.columns = 1, bias.is_vector = true, bias.role = ParameterRole::bias,
                        bias.tensor_parallel = TensorParallel::rows;
  for (ParameterPart& part : bias.parts) part.hf_name = fmt::format("{}.bias", part.name);
  return {weight, bias};
}

/// Forward and backward of one rank; on `meta` the memory it takes.
void pass(const Case& what, Stream& stream, Arena& arena, RankGroups& ranks, int64_t workspace_bytes,
          Rank& out) {
  LinearSetting setting{.style = what.style,
                        .specs = specs(what.style),
                        .bias = what.bias,
                        .pieces = {},
                        .state = {},
                        .travels_in_codes = what.gathers_codes,
                        .overlap = what.overlap};
  for (size_t i = 0; i < what.recipes.size(); ++i) setting.pieces.push_back({what.piece(i), what.recipes[i]});
  LinearOnRank layer(stream, arena, ranks, setting, workspace_bytes);
  const Linear& linear = layer.linear;
  StepContext& c = layer.context;
  Arena::Phase phase(arena, "test");
  auto given = [&](const std::vector<float>& values, Shape shape) {
    Allocation a = c.activation("given", DType::bf16, shape);
    cast(stream, Tensor{const_cast<float*>(values.data()), DType::f32, shape}, a);
    return a;
  };
  layer.begin_step();
  Allocation x = given(out.x, what.x_shape()), dy = given(out.dy, what.dy_shape());
  LinearInput saved;
  Allocation y = linear.forward(c, {.values = x}, &saved);
  LinearOutputGradient gradient = linear.output_gradient(c, {.values = dy});
  Allocation dx = linear.input_gradient(c, gradient);
  linear.weight_gradient(c, gradient, saved);
  if (arena.is_recording()) return;
  const ParameterShard &weight = layer.parameters.shard(0), &bias = layer.parameters.shard(1);
  out.y = download(stream, y), out.dx = download(stream, dx), out.dw = download(stream, weight.gradient);
  out.w = download_as_bf16(stream, weight.master), out.bias = download_as_bf16(stream, bias.master);
  if (what.bias) out.dbias = download(stream, bias.gradient);
  out.products = layer.state.products_run();
  for (const CommStats::Total& total : ranks.world->stats().totals()) {
    if (total.axis != "tp") continue;
    out.sent_bytes += total.sent_bytes;
    out.calls.emplace_back(name_of(total.collective));
  }
}

std::vector<Rank> run(const Case& what) {
  std::vector<Rank> out(kRanks);
  const Mesh mesh({.dp_shard = 1, .tp = kRanks}, kRanks);
  run_thread_ranks({.ranks = kRanks}, [&](Communicator& world) {
    Rank& mine = out[static_cast<size_t>(world.rank())];
    // The second rank's values are larger: its amaxes are not the first one's.
    const auto seed = static_cast<uint64_t>(2 * world.rank());
    const float size = world.rank() == 0 ? 1.0f : 2.7f;
    mine.x = normal_values(what.x_shape().numel(), 1 + seed, DType::bf16, 3 * size);
    mine.dy = normal_values(what.dy_shape().numel(), 2 + seed, DType::bf16, 1e-3f * size);
    // And one token and one output matter little: what underflows at a scale made for E4M3's largest number
    // shows there.
    const int64_t outputs = what.dy_shape().cols();
    for (size_t i = 0; i < mine.dy.size(); ++i)
      mine.dy[i] *=
          i < static_cast<size_t>(outputs) || i % static_cast<size_t>(outputs) == 0 ? 0x1p-22f : 1.0f;
    RankGroups dry(make_dry_run_world(world.rank(), kRanks), make_dry_run_world(world.rank(), kRanks), mesh);
    RankGroups ranks = groups_over(world, mesh);
    CostRecorder recorder;
    plan_and_run(recorder, [&](Stream& stream, Arena& arena, int64_t workspace_bytes) {
      pass(what, stream, arena, arena.is_recording() ? dry : ranks, workspace_bytes, mine);
    });
  });
  return out;
}

/// What could be wrong about an operand while the loss still falls.
enum class Mutation { none, amax_of_own_rank, wrong_max, stale_scale, swapped_scale, e4m3_gradient };

/// The operand as the products should read it. `of_all`: the largest amax of those that share a scale per
/// tensor.
Values meaning(const std::vector<float>& values, int64_t rows, int64_t cols, fp8::OperandRecipe recipe,
               double of_all, Mutation mutation) {
  if (recipe.granularity != Granularity::tensor) return reference(values, rows, cols, recipe).meaning();
  if (mutation == Mutation::amax_of_own_rank) of_all = largest(values);
  if (mutation == Mutation::stale_scale) of_all *= 0.75;
  if (mutation == Mutation::wrong_max && recipe.format == DType::e5m2) of_all *= 57344.0 / 448;
  if (mutation == Mutation::e4m3_gradient) recipe.format = DType::e4m3;
  Operand q = reference_of_amax(values, rows, cols, recipe, of_all);
  for (float& inverse : q.inverses) inverse = mutation == Mutation::swapped_scale ? 1 / inverse : inverse;
  return q.meaning();
}

struct Operands {
  Values x, x_transposed, dy, dy_transposed, w, w_transposed;
};

std::vector<float> all_rows(const std::vector<Rank>& ranks, std::vector<float> Rank::*values) {
  std::vector<float> all;
  for (const Rank& r : ranks) all.insert(all.end(), (r.*values).begin(), (r.*values).end());
  return all;
}

Operands operands(const Case& what, const std::vector<Rank>& ranks, size_t rank, size_t piece,
                  Mutation mutation) {
  const RowRange rows = what.piece(piece);
  const Rank& mine = ranks[rank];
  const bool gathers_x = what.is_column();
  auto slice_of_dy = [&](const std::vector<float>& all) { return columns_of(all, rows, what.rows()); };
  const std::vector<float> x = gathers_x ? all_rows(ranks, &Rank::x) : mine.x;
  const std::vector<float> dy = slice_of_dy(gathers_x ? mine.dy : all_rows(ranks, &Rank::dy));
  const std::vector<float> w = rows_of(mine.w, rows, what.columns());
  const auto transposed_x = test::transposed(x, kTokens, what.columns()),
             transposed_dy = test::transposed(dy, kTokens, rows.size()),
             transposed_w = test::transposed(w, rows.size(), what.columns());
  if (!what.recipes[piece])
    return {as_double(x), as_double(transposed_x), as_double(dy), as_double(transposed_dy),
            as_double(w), as_double(transposed_w)};
  const fp8::Recipe recipe = fp8::make_recipe(*what.recipes[piece]);
  double w_amax = 0;
  for (const Rank& r : ranks) w_amax = std::max(w_amax, largest(rows_of(r.w, rows, what.columns())));
  // The mutation is a rank that measures only its own part of what travels.
  const double own_x = mutation == Mutation::amax_of_own_rank ? largest(ranks[0].x) : largest(x);
  const double own_dy =
      mutation == Mutation::amax_of_own_rank ? largest(slice_of_dy(ranks[0].dy)) : largest(dy);
  const Mutation of_activation = mutation == Mutation::amax_of_own_rank ? Mutation::none : mutation;
  const Mutation of_x = mutation == Mutation::e4m3_gradient ? Mutation::none : of_activation;
  const Mutation of_w = mutation == Mutation::amax_of_own_rank ? mutation : Mutation::none;
  const bool transposes = recipe.weight_gradient.is_fp8;
  return {.x = meaning(x, kTokens, what.columns(), recipe.forward.a, own_x, of_x),
          .x_transposed = transposes ? meaning(transposed_x, what.columns(), kTokens,
                                               recipe.weight_gradient.b, own_x, of_x)
                                     : as_double(transposed_x),
          .dy = meaning(dy, kTokens, rows.size(), recipe.input_gradient.a, own_dy, of_activation),
          .dy_transposed = transposes ? meaning(transposed_dy, rows.size(), kTokens, recipe.weight_gradient.a,
                                                own_dy, of_activation)
                                      : as_double(transposed_dy),
          .w = meaning(w, rows.size(), what.columns(), recipe.forward.b, w_amax, of_w),
          .w_transposed =
              meaning(transposed_w, what.columns(), rows.size(), recipe.input_gradient.b, w_amax, of_w)};
}

void add(Product& sum, const Product& term) {
  if (sum.value.empty()) sum = {Values(term.value.size()), Values(term.value.size())};
  for (size_t i = 0; i < sum.value.size(); ++i)
    sum.value[i] += term.value[i], sum.magnitude[i] += term.magnitude[i];
}

/// The error that a product rounded to bf16 may have, as the magnitude of what is added to it.
Product rounded(Product p, int64_t terms) {
  const Tolerance t = tolerance(DType::bf16, 4, terms);
  for (size_t i = 0; i < p.value.size(); ++i)
    p.magnitude[i] = t.stored * std::abs(p.value[i]) + t.arithmetic * p.magnitude[i];
  return p;
}
constexpr Tolerance kRoundedOnceMore{.stored = unit_roundoff(DType::bf16),
                                     .arithmetic = 1 + 2 * unit_roundoff(DType::bf16)};

/// Whether each rank holds its rows of the sum over ranks of what they rounded to bf16.
bool agree_scattered(const std::vector<Rank>& ranks, std::vector<float> Rank::*got, const Product& sum) {
  return agree(all_rows(ranks, got), sum, kRoundedOnceMore);
}

struct Verdict {
  bool y = true, dx = true, dw = true;
  bool all() const { return y && dx && dw; }
};

Verdict holds(const Case& what, const std::vector<Rank>& ranks, Mutation mutation = Mutation::none) {
  Verdict out;
  Product sum;  // over ranks: of y in row style, of dx in column style
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Rank& mine = ranks[r];
    Product dx;
    for (size_t i = 0; i < what.recipes.size(); ++i) {
      const RowRange rows = what.piece(i);
      const Operands m = operands(what, ranks, r, i, mutation);
      Product y = rounded(exact_product(m.x, m.w, kTokens, rows.size(), what.columns()), what.columns());
      for (size_t k = 0; what.bias && k < y.value.size(); ++k)
        y.value[k] += mine.bias[static_cast<size_t>(rows.begin) + k % static_cast<size_t>(rows.size())];
      if (what.is_column()) {
        out.y &= agree(columns_of(mine.y, rows, what.rows()), y,
                       {.stored = what.bias ? unit_roundoff(DType::bf16) : 0,
                        .arithmetic = 1 + unit_roundoff(DType::bf16)});
      } else {
        add(sum, y);
      }
      out.dw &= agree(rows_of(mine.dw, rows, what.columns()),
                      exact_product(m.dy_transposed, m.x_transposed, rows.size(), what.columns(), kTokens),
                      tolerance(DType::f32, 3, kTokens));
      add(dx, exact_product(m.dy, m.w_transposed, kTokens, what.columns(), rows.size()));
    }
    dx = rounded(dx, what.rows());
    if (what.is_column()) {
      add(sum, dx);
    } else {
      out.dx &= agree(mine.dx, dx, {.arithmetic = 1});
    }
  }
  (what.is_column() ? out.dx : out.y) = agree_scattered(ranks, what.is_column() ? &Rank::dx : &Rank::y, sum);
  return out;
}

/// Whether a rank's rows at a time can be gathered or summed: of one product, in bf16, or in FP8 with one
/// scale or one for each row unless x travels in bf16.
bool has_row_blocks(const Case& what) {
  if (what.recipes.size() > 1) return false;
  if (!what.recipes[0]) return true;
  const Granularity of_x = fp8::make_recipe(*what.recipes[0]).forward.a.granularity;
  return (of_x == Granularity::tensor || of_x == Granularity::row) &&
         (what.gathers_codes || !what.is_column());
}

void check_formula(const Case& what) {
  const std::vector<Rank> ranks = run(what);
  const Verdict verdict = holds(what, ranks);
  CHECK(verdict.y);
  CHECK(verdict.dx);
  CHECK(verdict.dw);
  int64_t products = 0;
  for (const auto& recipe : what.recipes) products += recipe ? fp8::make_recipe(*recipe).fp8_products() : 0;
  for (const Rank& r : ranks) CHECK(r.products == products);
}

}  // namespace

TEST_CASE(
    "linear over tensor-parallel ranks: y, dX and dW are the straight-through formula in either style, in "
    "every recipe") {
  for (LinearStyle style : {LinearStyle::column, LinearStyle::row}) {
    for (bool gathers_codes : {false, true}) {
      INFO((style == LinearStyle::column ? "column" : "row")
           << ", gathered " << (gathers_codes ? "as codes" : "in bf16"));
      check_formula({style, {std::nullopt}, gathers_codes});
      for (RecipeName recipe : recipes()) {
        INFO(fp8::name_of(recipe));
        check_formula({style, {recipe}, gathers_codes});
      }
    }
  }
}

TEST_CASE("linear over tensor-parallel ranks: a split fusion, and a bias that is added once") {
  check_formula({LinearStyle::column, {RecipeName::rowwise, std::nullopt, RecipeName::tensorwise}, true});
  check_formula({LinearStyle::column, {RecipeName::tensorwise, RecipeName::blockwise, std::nullopt}, true});
  const Case biased{LinearStyle::column, {RecipeName::tensorwise}, true, true};
  check_formula(biased);
  for (const Rank& r : run(biased)) CHECK(is_sum_of_rows(r.dbias, r.dy, kTokens));
}

TEST_CASE("linear over tensor-parallel ranks: the formula sees a wrong operand") {
  for (LinearStyle style : {LinearStyle::column, LinearStyle::row}) {
    const Case what{style, {RecipeName::tensorwise}, true};
    const std::vector<Rank> ranks = run(what);
    REQUIRE(holds(what, ranks).all());
    for (Mutation mutation : {Mutation::amax_of_own_rank, Mutation::wrong_max, Mutation::stale_scale,
                              Mutation::swapped_scale, Mutation::e4m3_gradient}) {
      INFO((style == LinearStyle::column ? "column" : "row") << ", mutation " << static_cast<int>(mutation));
      const Verdict verdict = holds(what, ranks, mutation);
      const bool is_of_gradient = mutation == Mutation::wrong_max || mutation == Mutation::e4m3_gradient;
      CHECK(verdict.y == is_of_gradient);  // only gradients are E5M2
      CHECK_FALSE(verdict.dx);
      CHECK_FALSE(verdict.dw);
    }
  }
}

// Messages in place of collectives; the sum of rows is the transport's, in rank order.
TEST_CASE("linear over tensor-parallel ranks: products of a rank's rows at a time make the same bits") {
  for (LinearStyle style : {LinearStyle::column, LinearStyle::row}) {
    std::vector<Case> cases{{style, {std::nullopt}}, {LinearStyle::column, {std::nullopt}, false, true}};
    for (RecipeName recipe : recipes()) {
      cases.push_back({style, {recipe}, true});
      cases.push_back({style, {recipe}, false});
    }
    cases.push_back({LinearStyle::column, {RecipeName::rowwise, std::nullopt, RecipeName::tensorwise}, true});
    for (Case what : cases) {
      INFO((what.is_column() ? "column " : "row ")
           << (what.recipes[0] ? fp8::name_of(*what.recipes[0]) : "bf16") << ", gathered "
           << (what.gathers_codes ? "as codes" : "in bf16"));
      const std::vector<Rank> whole = run(what);
      what.overlap = Overlap::blocks;
      const std::vector<Rank> blocks = run(what);
      for (size_t r = 0; r < whole.size(); ++r) {
        CHECK(blocks[r].y == whole[r].y);
        CHECK(blocks[r].dx == whole[r].dx);
        CHECK(blocks[r].dw == whole[r].dw);
        CHECK(blocks[r].dbias == whole[r].dbias);
        CHECK(blocks[r].sent_bytes == whole[r].sent_bytes);
        const bool sends = std::ranges::count(blocks[r].calls, "send") > 0;
        CHECK(sends == has_row_blocks(what));
        CHECK(std::ranges::count(whole[r].calls, "send") == 0);
      }
    }
  }
}
