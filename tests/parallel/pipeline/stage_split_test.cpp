#include "parallel/pipeline/stage_split.h"

#include "tests/support/catch.h"

using namespace ottava;

namespace {

std::vector<int> blocks_of(const StageSplit& split) {
  std::vector<int> blocks;
  for (const StageUnits& s : split_stages(split)) {
    int count = s.size();
    if (s.contains(0)) --count;
    if (s.contains(static_cast<int>(split.layers) + 1)) --count;
    blocks.push_back(count);
  }
  return blocks;
}

}  // namespace

TEST_CASE("layers become stages, embedding and head counted") {
  CHECK(blocks_of({.layers = 32, .ranks = 4}) == std::vector{8, 9, 8, 7});
  CHECK(blocks_of({.layers = 32, .ranks = 8}) == std::vector{4, 5, 4, 4, 4, 4, 4, 3});
  CHECK(blocks_of({.layers = 32, .ranks = 4, .last_less = 2}) == std::vector{8, 9, 9, 6});
  CHECK(blocks_of({.layers = 6, .ranks = 2, .is_looped = true}) == std::vector{1, 2, 2, 1});
  CHECK(blocks_of({.layers = 6, .ranks = 2, .layers_per_stage = 4}) == std::vector{3, 3});
  CHECK(blocks_of({.layers = 2, .ranks = 4}) == std::vector{0, 1, 1, 0});
  CHECK(blocks_of({.layers = 3, .ranks = 1}) == std::vector{3});
  const std::vector<StageUnits> stages = split_stages({.layers = 6, .ranks = 2});
  CHECK(stages == std::vector<StageUnits>{{0, 4}, {4, 8}});
}

TEST_CASE("stages by where they begin") {
  const StageSplit split{.layers = 3, .ranks = 3, .split_points = {"layers.2", "norm"}};
  CHECK(split_stages(split) == std::vector<StageUnits>{{0, 3}, {3, 4}, {4, 5}});
  auto refusal_of = [](std::vector<std::string> points) {
    return [points] { split_stages({.layers = 3, .ranks = 2, .split_points = points}); };
  };
  CHECK_THROWS_WITH(refusal_of({"layers.3"})(),
                    "[pipeline] parallelism.pipeline_parallel_split_points contains \"layers.3\", expected "
                    "layers.0 to layers.2 or norm");
  CHECK_THROWS_WITH(refusal_of({"output"})(), Catch::Matchers::Contains("contains \"output\", expected"));
  CHECK_THROWS_WITH(refusal_of({"layers.2", "layers.1"})(),
                    "[pipeline] parallelism.pipeline_parallel_split_points contains \"layers.1\" out of "
                    "order: list every point once, in the model's order");
  CHECK_THROWS_WITH(
      refusal_of({"layers.1", "layers.2"})(),
      "[pipeline] parallelism.pipeline_parallel_split_points makes 3 stages, not a multiple of the 2 "
      "ranks of pipeline_parallel_degree: change either");
}

TEST_CASE("a split that cannot be is refused with its numbers") {
  CHECK_THROWS_WITH(split_stages({.layers = 2, .ranks = 8}),
                    "[pipeline] 8 stages for 4 layers (embedding and head counted as 1 and 1): lower "
                    "parallelism.pipeline_parallel_degree");
  CHECK_THROWS_WITH(split_stages({.layers = 1, .ranks = 2, .is_looped = true}),
                    "[pipeline] 4 stages for 3 layers (embedding and head counted as 1 and 1): lower "
                    "parallelism.pipeline_parallel_degree, or use 1F1B, which has one stage on each rank");
  CHECK_THROWS_WITH(split_stages({.layers = 6, .ranks = 4, .layers_per_stage = 3}),
                    "[pipeline] parallelism.pipeline_parallel_layers_per_stage 3 makes 3 stages of 8 layers "
                    "(embedding and head counted as 1 and 1), not a multiple of the 4 ranks of "
                    "pipeline_parallel_degree: change either");
  CHECK_THROWS_WITH(
      split_stages({.layers = 6, .ranks = 4, .last_less = 4}),
      "[pipeline] parallelism.pipeline_parallel_last_stage_less_layers is 4, more than the 2 layers of "
      "a stage (11 / 4): lower it, or use fewer stages");
  CHECK_THROWS_WITH(
      split_stages({.layers = 6, .ranks = 4, .first_less = 3}),
      "[pipeline] parallelism.pipeline_parallel_first_stage_less_layers is 3, more than the 2 layers of "
      "a stage (10 / 4): lower it, or use fewer stages");
}
