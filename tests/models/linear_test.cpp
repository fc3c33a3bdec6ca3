#include "models/linear.h"

#include <algorithm>
#include <cmath>

#include "core/ops/elementwise.h"
#include "tests/fp8/recipes.h"
#include "tests/models/linear_on_rank.h"
#include "tests/models/linear_reference.h"
#include "tests/support/catch.h"
#include "tests/support/values.h"

// A layer against the straight-through formula in FP64 on what its operands decode to:
//   y = deq(x) deq(W)^T + b     dX = deq(dy) deq(W)     dW = deq(dy)^T deq(x)
// and the operands' bytes against an encoder that shares nothing with them. The loss proves nothing: wrong
// FP8 trains too.

using namespace ottava;
using namespace ottava::test;
using fp8::Granularity;
using fp8::RecipeName;
using Producer = Float8Product::Producer;
using Source = Float8Product::Source;

namespace {

constexpr int64_t kTokens = 160, kColumns = 192;
// wq, wk, wv: each fits every recipe, none is as large as another.
constexpr RowRange kParts[3] = {{0, 160}, {160, 224}, {224, 320}};
constexpr int64_t kRows = 320;

/// How each piece runs; one entry: a single product.
struct Case {
  std::vector<std::optional<RecipeName>> recipes;
  bool bias = false;
  bool dy_is_placed = false;  ///< dy's producer writes what the layer wants of it
  RowRange rows_of(size_t piece) const { return recipes.size() == 1 ? RowRange{0, kRows} : kParts[piece]; }
};

std::vector<ParameterSpec> specs() {
  ParameterSpec weight{.name = "w",
                       .parts = {{.name = "w", .hf_name = "w", .rows = kRows, .groups = kRows, .init = {}}},
                       .columns = kColumns};
  ParameterSpec bias{.name = "b",
                     .parts = {{.name = "b", .hf_name = "b", .rows = kRows, .groups = kRows, .init = {}}},
                     .columns = 1,
                     .is_vector = true,
                     .role = ParameterRole::bias};
  return {weight, bias};
}

/// What a layer made, and everything that it made it from.
struct Outcome {
  std::vector<float> x, dy, w, bias;  ///< rounded to bf16
  std::vector<float> y, dx, dw, dbias;
  struct Piece {
    Operand x, x_transposed, dy, dy_transposed, w, w_transposed;
  };
  std::vector<Piece> pieces;
  int64_t kept_bytes = 0, products = 0;
  std::vector<int64_t> dy_counters;  ///< of the first piece
  uint32_t x_amax = 0, dy_amax = 0;  ///< as watched, of the first piece
  std::vector<std::string> operations;
  bool keeps_x = false;
  bool places_dy_codes = false;
};

Outcome run(const Case& what) {
  Outcome out{.x = normal_values(kTokens * kColumns, 1, DType::bf16, 3),
              .dy = normal_values(kTokens * kRows, 2, DType::bf16, 1e-3f)};
  RankGroups ranks = solo_rank_groups();
  LinearSetting setting{.specs = specs(), .bias = what.bias, .pieces = {}, .state = {.counts = true}};
  for (size_t i = 0; i < what.recipes.size(); ++i)
    setting.pieces.push_back({what.rows_of(i), what.recipes[i]});
  if (what.dy_is_placed) setting.producers.dy = Producer::codes;
  CostRecorder recorder;
  plan_and_run(recorder, [&](Stream& stream, Arena& arena, int64_t workspace_bytes) {
    const bool is_planning = arena.is_recording();
    LinearOnRank layer(stream, arena, ranks, setting, workspace_bytes);
    const std::vector<LinearPiece>& pieces = layer.pieces();
    Fsdp& parameters = layer.parameters;
    const Linear& linear = layer.linear;
    StepContext& c = layer.context;
    auto place = [&](const std::vector<float>& values, Shape shape) {
      const Tensor t = arena.persistent("test", DType::bf16, shape, MemoryCategory::data);
      if (!is_planning) cast(stream, view_of(values.data(), shape), t);
      return t;
    };
    const Tensor x0 = place(out.x, {kTokens, kColumns}), dy0 = place(out.dy, {kTokens, kRows});
    Arena::Phase phase(arena, "test");
    layer.begin_step();
    Allocation x = c.activation("x", DType::bf16, x0.shape), dy = c.activation("dy", DType::bf16, dy0.shape);
    cast(stream, x0, x);
    cast(stream, dy0, dy);
    LinearInput saved;
    Allocation y = linear.forward(c, {.values = x}, &saved);
    LinearOperand placed{.values = dy};
    if (what.dy_is_placed) placed = linear.place_output_gradient(c, dy);
    out.places_dy_codes = !placed.float8.output.empty();
    if (!placed.amax.empty()) fp8::amax(stream, dy, placed.amax);
    if (const fp8::RowOutput& to = placed.float8.output; !to.empty()) {
      fp8::quantize(stream, {.x = dy,
                             .granularity = to.granularity,
                             .rounding = to.rounding,
                             .out = to.out,
                             .counters = to.counters,
                             .non_finite = to.non_finite,
                             .largest = to.largest});
    }
    LinearOutputGradient gradient = linear.output_gradient(c, placed);
    Allocation dx = linear.input_gradient(c, gradient);
    linear.weight_gradient(c, gradient, saved);
    if (is_planning) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].float8) pieces[i].float8->quantize(c, x, Source::x, {.product = true});
      }
      return;
    }
    out.y = download(stream, y);
    out.dx = download(stream, dx);
    out.dw = download(stream, parameters.shard(0).gradient);
    if (what.bias) out.dbias = download(stream, parameters.shard(1).gradient);
    out.w = download_as_bf16(stream, parameters.shard(0).master);
    out.bias = download_as_bf16(stream, parameters.shard(1).master);
    out.products = layer.state.products_run();
    if (what.recipes[0]) {
      out.x_amax = *layer.state.slots(0).amax.as<uint32_t>(),
      out.dy_amax = *layer.state.slots(1).amax.as<uint32_t>();
      const int64_t* counters = layer.state.slots(1).counters.as<int64_t>();
      out.dy_counters.assign(counters, counters + 3);
    }
    out.keeps_x = static_cast<bool>(saved.x);
    for (const Float8Allocation& m : saved.pieces)
      out.kept_bytes += fp8::Float8Codes(m.rowwise).bytes() + fp8::Float8Codes(m.columnwise).bytes();
    for (size_t i = 0; i < pieces.size(); ++i) {
      Outcome::Piece& piece = out.pieces.emplace_back();
      if (!pieces[i].float8) continue;
      const Float8Product& p = *pieces[i].float8;
      piece.x = read(p.quantize(c, x, Source::x, {.product = true}), Contracts::columns);
      piece.dy = read(gradient.pieces[i], Contracts::columns);
      if (p.weight_gradient_is_fp8())
        piece.x_transposed = read(saved.pieces[i], Contracts::rows),
        piece.dy_transposed = read(gradient.pieces[i], Contracts::rows);
      const size_t entry = static_cast<size_t>(p.index());
      piece.w = read(parameters.float8_weight(entry, WeightUse::forward), Contracts::columns);
      piece.w_transposed = read(parameters.float8_weight(entry, WeightUse::backward), Contracts::rows);
    }
  });
  for (const auto& cost : recorder.totals()) out.operations.push_back(cost.op);
  return out;
}

/// The operands of one piece, in high precision too, with their meaning.
struct Meaning {
  Values x, x_transposed, dy, dy_transposed, w, w_transposed;
};
Meaning meaning_of(const Outcome& o, const Case& c, size_t i) {
  const RowRange rows = c.rows_of(i);
  const std::vector<float> dy = columns_of(o.dy, rows, kRows), w = rows_of(o.w, rows, kColumns);
  Meaning m{as_double(o.x), as_double(test::transposed(o.x, kTokens, kColumns)),
            as_double(dy),  as_double(test::transposed(dy, kTokens, rows.size())),
            as_double(w),   as_double(test::transposed(w, rows.size(), kColumns))};
  const Outcome::Piece& p = o.pieces[i];
  if (!c.recipes[i]) return m;
  m.x = p.x.meaning(), m.dy = p.dy.meaning(), m.w = p.w.meaning(), m.w_transposed = p.w_transposed.meaning();
  if (!p.x_transposed.codes.empty())
    m.x_transposed = p.x_transposed.meaning(), m.dy_transposed = p.dy_transposed.meaning();
  return m;
}

void check_formula(const Case& c) {
  const Outcome o = run(c);
  Product dx{Values(static_cast<size_t>(kTokens * kColumns)),
             Values(static_cast<size_t>(kTokens * kColumns))};
  for (size_t i = 0; i < c.recipes.size(); ++i) {
    INFO("piece " << i);
    const RowRange rows = c.rows_of(i);
    const Meaning m = meaning_of(o, c, i);
    Product y = exact_product(m.x, m.w, kTokens, rows.size(), kColumns);
    // The bias joins what was rounded to bf16 already.
    Tolerance bf16_sum = tolerance(DType::bf16, 3, kColumns);
    for (size_t k = 0; c.bias && k < y.value.size(); ++k) {
      const double b = o.bias[static_cast<size_t>(rows.begin) + k % static_cast<size_t>(rows.size())];
      y.magnitude[k] =
          y.magnitude[k] * bf16_sum.arithmetic + std::abs(y.value[k]) * unit_roundoff(DType::bf16);
      y.value[k] += b;
    }
    if (c.bias) bf16_sum = {.stored = unit_roundoff(DType::bf16), .arithmetic = 1};
    CHECK(agree(columns_of(o.y, rows, kRows), y, bf16_sum));
    CHECK(agree(rows_of(o.dw, rows, kColumns),
                exact_product(m.dy_transposed, m.x_transposed, rows.size(), kColumns, kTokens),
                tolerance(DType::f32, 3, kTokens)));
    const Product part = exact_product(m.dy, m.w_transposed, kTokens, kColumns, rows.size());
    for (size_t k = 0; k < part.value.size(); ++k)
      dx.value[k] += part.value[k], dx.magnitude[k] += part.magnitude[k];
  }
  CHECK(agree(o.dx, dx, tolerance(DType::bf16, 4, kRows)));
  if (c.bias) CHECK(is_sum_of_rows(o.dbias, o.dy, kTokens));
}

}  // namespace

TEST_CASE(
    "linear: y, dX and dW are the straight-through formula on what the operands decode to, in every recipe") {
  for (RecipeName recipe : recipes()) {
    INFO(fp8::name_of(recipe));
    check_formula({{recipe}});
  }
}

TEST_CASE("linear: a fusion that is split runs each part its own way, and a bias stays in high precision") {
  check_formula({{std::nullopt, RecipeName::tensorwise, RecipeName::tensorwise}});
  check_formula({{RecipeName::rowwise, std::nullopt, RecipeName::blockwise}});
  check_formula({{RecipeName::tensorwise_with_gw_hp, RecipeName::mxfp8, RecipeName::delayed}});
  check_formula({{RecipeName::tensorwise}, true});
  check_formula({{RecipeName::rowwise, std::nullopt, RecipeName::tensorwise}, true});
}

TEST_CASE("linear: operands are the reference's codes, and mutants are not") {
  for (RecipeName name : recipes()) {
    INFO(fp8::name_of(name));
    const fp8::Recipe recipe = fp8::make_recipe(name);
    const Outcome o = run({{name}});
    const Outcome::Piece& p = o.pieces[0];
    CHECK(same(p.x, reference(o.x, kTokens, kColumns, recipe.forward.a)));
    CHECK(same(p.dy, reference(o.dy, kTokens, kRows, recipe.input_gradient.a)));
    CHECK(same(p.w, reference(o.w, kRows, kColumns, recipe.forward.b)));
    CHECK(same(p.w_transposed,
               reference(test::transposed(o.w, kRows, kColumns), kColumns, kRows, recipe.input_gradient.b)));
    if (recipe.weight_gradient.is_fp8) {
      CHECK(same(p.x_transposed, reference(test::transposed(o.x, kTokens, kColumns), kColumns, kTokens,
                                           recipe.weight_gradient.b)));
      CHECK(same(p.dy_transposed, reference(test::transposed(o.dy, kTokens, kRows), kRows, kTokens,
                                            recipe.weight_gradient.a)));
    }
    if (name != RecipeName::tensorwise) continue;
    CHECK_FALSE(same(p.dy, reference(o.dy, kTokens, kRows, recipe.input_gradient.a,
                                     57344.0 / 448)));  // the largest number of E4M3
    CHECK_FALSE(
        same(p.x, reference(o.x, kTokens, kColumns, recipe.forward.a, 0.75)));   // the scale of another step
    CHECK_FALSE(same(p.dy, reference(o.dy, kTokens, kRows, recipe.forward.a)));  // E4M3 where E5M2 belongs
    const std::vector<float> half(o.x.begin(), o.x.begin() + kTokens / 2 * kColumns),
        other(o.x.begin() + kTokens / 2 * kColumns, o.x.end());
    const double whole = static_cast<double>(largest_bits(o.x));
    const auto& smaller = static_cast<double>(largest_bits(half)) < whole ? half : other;
    Operand own =
        reference(smaller, kTokens / 2, kColumns, recipe.forward.a);  // the amax of half of the ranks
    CHECK(own.inverses[0] != p.x.inverses[0]);
    // And the formula sees what codes do not say.
    auto dx_holds = [&](const Operand& dy) {
      return agree(o.dx, exact_product(dy.meaning(), p.w_transposed.meaning(), kTokens, kColumns, kRows),
                   tolerance(DType::bf16, 3, kRows));
    };
    CHECK(dx_holds(p.dy));
    Operand swapped = p.dy, stale = p.dy;
    for (float& inverse : swapped.inverses) inverse = 1 / inverse;
    for (float& inverse : stale.inverses) inverse *= 1.25f;
    CHECK_FALSE(dx_holds(swapped));
    CHECK_FALSE(dx_holds(stale));
    CHECK_FALSE(dx_holds(reference(o.dy, kTokens, kRows, recipe.forward.a)));
  }
}

TEST_CASE(
    "linear: the amax that is watched is exact in every recipe, and scales of groups cost no pass for it") {
  for (RecipeName name : recipes()) {
    INFO(fp8::name_of(name));
    const Outcome o = run({{name}});
    CHECK(o.x_amax == largest_bits(o.x));
    CHECK(o.dy_amax == largest_bits(o.dy));
    const bool measures = std::count(o.operations.begin(), o.operations.end(), "amax") > 0;
    CHECK(measures == (fp8::make_recipe(name).forward.a.granularity == Granularity::tensor ||
                       name == RecipeName::rowwise_with_gw_hp));  // its weight
  }
}

TEST_CASE(
    "linear: bytes that the gradient's producer made give the gradients of those made here, bit for bit") {
  for (RecipeName name : recipes()) {
    for (bool bias : {false, true}) {
      INFO(fp8::name_of(name) << " bias " << bias);
      const Outcome apart = run({.recipes = {name}, .bias = bias}),
                    produced = run({.recipes = {name}, .bias = bias, .dy_is_placed = true});
      const bool is_row_local = name == RecipeName::rowwise || name == RecipeName::rowwise_with_gw_hp ||
                                name == RecipeName::blockwise;
      CHECK(produced.places_dy_codes == is_row_local);  // delayed has no history here
      CHECK_FALSE(apart.places_dy_codes);
      CHECK((produced.dx == apart.dx));
      CHECK((produced.dw == apart.dw));
      CHECK((produced.dbias == apart.dbias));
      CHECK(produced.dy_amax == apart.dy_amax);
      CHECK(produced.dy_counters == apart.dy_counters);
      CHECK(produced.dy_counters[0] == kTokens * kRows);
      CHECK(produced.products == apart.products);
    }
  }
}

TEST_CASE("linear: a row-style layer refuses a bias") {
  const auto make = [](LinearStyle style, LinearParameters parameters) {
    return Linear("attention.wo", style, parameters, {{.rows = {0, 32}}}, {});
  };
  CHECK_NOTHROW(make(LinearStyle::row, {.weight = 0}));
  CHECK_NOTHROW(make(LinearStyle::column, {.weight = 0, .bias = 1}));
  CHECK_THROWS_WITH(make(LinearStyle::row, {.weight = 0, .bias = 1}),
                    "[linear] attention.wo has a bias in row style: every tensor-parallel rank would add it "
                    "to its part of the sum, make it a "
                    "column-style layer or leave the bias out");
}

TEST_CASE("linear: what is kept for the weight gradient is a byte per element, or x in high precision") {
  for (RecipeName name : recipes()) {
    INFO(fp8::name_of(name));
    const Outcome o = run({{name}});
    const bool is_fp8 = fp8::make_recipe(name).weight_gradient.is_fp8;
    CHECK(o.keeps_x == !is_fp8);
    const Granularity g = fp8::make_recipe(name).forward.a.granularity;
    const int64_t scales =
        fp8::scale_shape(g, kColumns, kTokens).numel() * static_cast<int64_t>(size_of(fp8::scale_dtype(g)));
    CHECK(o.kept_bytes == (is_fp8 ? kTokens * kColumns + (g == Granularity::tensor ? 4 : scales) : 0));
    CHECK(o.products == fp8::make_recipe(name).fp8_products());
  }
}

TEST_CASE("linear: backward lets the input go before the input's gradient takes memory") {
  RankGroups ranks = solo_rank_groups();
  const LinearSetting setting{.specs = specs(), .pieces = {{{0, kRows}, {}}}, .state = {}};
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0});
  Arena arena;
  LinearOnRank layer(meta, arena, ranks, setting, 0);
  {
    const Arena::Phase phase(arena, "test");
    layer.begin_step();
    const StepContext& c = layer.context;
    LinearInput saved{.x = c.activation("x", DType::bf16, {kTokens, kColumns}), .pieces = {}};
    LinearOutputGradient gradient{
        .dy = c.activation("dy", DType::bf16, {kTokens, kRows}), .pieces = {}, .tokens = kTokens};
    const Allocation dx = layer.linear.backward(c, gradient, std::move(saved));
  }
  const MemoryPlan plan = arena.plan();
  const std::vector<PlannedAllocation>& all = plan.phases.at(0).allocations;
  const auto x = std::ranges::find(all, "x", &PlannedAllocation::name),
             dx = std::ranges::find(all, "w.dx", &PlannedAllocation::name);
  REQUIRE(x != all.end());
  REQUIRE(dx != all.end());
  CHECK(x->end <= dx->begin);
}
