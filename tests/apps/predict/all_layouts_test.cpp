#include "apps/predict/all_layouts.h"

#include <set>

#include "apps/predict/search.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("shards of FP8 layouts gather codes unless a fixed key says otherwise, the fastest also without") {
  const std::string key = "quantize.linear.float8.enable_fsdp_float8_all_gather=";
  Overrides more = kFloat8;
  more.back() = GENERATE("true", "false");
  more.insert(more.end(), {"--training.global_batch_size", "32", "--model.n_layers", "6"});
  const Planned p(more, 16, 4);
  const auto tried = [&](const std::vector<std::string>& fixed) {
    std::set<bool> gathers;
    for (const Layout& l : all_layouts(p.planned, p.machine, fixed))
      if (!l.float8.empty() && l.shards() > 1) gathers.insert(l.float8_gather);
    return gathers;
  };
  CHECK(tried({}) == std::set{true});
  CHECK(tried({key + "true"}) == std::set{true});
  CHECK(tried({key + "false"}) == std::set{false});
  const auto found = [&](const std::vector<std::string>& fixed) {
    std::set<bool> gathers;
    const SearchResult result =
        search_layouts(p.config, p.planned, p.machine, {.limit_gib = 70, .top = 30, .fixed = fixed});
    for (const RecordedLayout& l : result.best)
      if (!l.layout.float8.empty() && l.layout.shards() > 1) gathers.insert(l.layout.float8_gather);
    return gathers;
  };
  const std::string shards = "parallelism.data_parallel_shard_degree=16";
  CHECK(found({shards}) == std::set{false, true});
  CHECK(found({shards, key + "false"}) == std::set{false});
}
