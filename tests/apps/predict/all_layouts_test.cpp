#include "apps/predict/all_layouts.h"

#include <set>

#include "apps/predict/search.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("shards of FP8 layouts are tried with and without gathered codes, unless a fixed key decides") {
  const std::string key = "quantize.linear.float8.enable_fsdp_float8_all_gather=";
  for (const bool given : {false, true}) {
    Overrides more = kFloat8;
    more.back() = given ? "true" : "false";
    more.insert(more.end(), {"--training.global_batch_size", "32", "--model.n_layers", "6"});
    const Planned p(more, 16, 4);
    // Whether codes are gathered, of layouts with shards: of those that are tried anyway, and of pipelines
    // that nobody asked for.
    const auto tried = [&](const std::vector<std::string>& fixed, bool pipelines) {
      std::set<bool> gathers;
      for (const Layout& l : all_layouts(p.planned, p.machine, fixed))
        if (!l.float8.empty() && l.shards() > 1 && (l.pp > 1) == pipelines) gathers.insert(l.float8_gather);
      return gathers;
    };
    CHECK(tried({}, false) == std::set{false, true});
    CHECK(tried({}, true) == std::set{true});
    CHECK(tried({"parallelism.pipeline_parallel_degree=2"}, true) == std::set{false, true});
    for (const bool fixed : {false, true}) {
      const std::vector<std::string> fix{key + (fixed ? "true" : "false")};
      CHECK(tried(fix, false) == std::set{fixed});
      CHECK(tried(fix, true) == std::set{fixed});
    }
  }
  const Planned p({"--training.global_batch_size", "32", "--model.converters", "[quantize.linear.float8]"},
                  8);
  const SearchResult found =
      search_layouts(p.config, p.planned, p.machine,
                     {.limit_gib = 70, .fixed = {key + "false", "parallelism.data_parallel_shard_degree=8"}});
  REQUIRE_FALSE(found.best.empty());
  for (const RecordedLayout& l : found.best) CHECK_FALSE((l.layout.float8.empty() || l.layout.float8_gather));
}
