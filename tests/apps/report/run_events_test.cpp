#include "apps/report/run_events.h"

#include "tests/apps/report/report_at_start.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("the event of a start names what each rank of a pipeline has") {
  const auto start = [](int stages) {
    const Experiment e =
        resolve_experiment(config_with({"--model.n_layers", "4", "--training.local_batch_size", "2",
                                        "--parallelism.pipeline_parallel_degree", std::to_string(stages)}),
                           nullptr, stages);
    return start_of_run(e, {}, {DeviceType::cpu, 0}, std::nullopt);
  };
  const Json of_two = start(2);
  const Json::Array& ranks = of_two.at("pipeline", "start").at("ranks", "pipeline").as_array("ranks");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].as_string("rank 0") == "embedding, layers 0 to 1; 2 micro-batches in flight at most");
  CHECK(ranks[1].as_string("rank 1") == "layers 2 to 3, head; 1 micro-batch in flight at most");
  CHECK(start(1).find("pipeline") == nullptr);
}
