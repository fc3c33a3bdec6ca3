#include "apps/predict/predicted_trace.h"

#include <cmath>
#include <map>
#include <set>

#include "apps/predict/sample_step.h"
#include "core/io/json.h"
#include "core/trace/time_split.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("a predicted trace holds the step that is predicted") {
  const Planned p({"--model.n_layers", "3", "--parallelism.tensor_parallel_degree", "2"}, 8);
  const PlannedExperiment& planned = p.planned;
  const Machine& machine = p.machine;
  const StepPlan plan = record_first_rank(planned.experiment.shape, planned.device, planned.experiment.mesh);
  const StepTime time = predict_step(plan, machine);
  const Json json = Json::parse(predicted_trace({&plan, 1}, machine, "planned"), "trace");
  std::vector<Interval> compute, communication;
  std::map<std::string, int64_t> waits;
  double flops = 0, step_ns = 0;
  for (const Json& e : json.at("traceEvents", "t").as_array("events")) {
    const Json* category = e.find("cat");
    if (!category) continue;
    const std::string& name = e.at("name", "e").as_string("name");
    const int64_t begin = std::llround(1e3 * e.at("ts", "e").as_number("ts"));
    const Interval slice{begin, begin + std::llround(1e3 * e.at("dur", "e").as_number("dur"))};
    if (name == "ProfilerStep#1") step_ns = static_cast<double>(slice.end);
    waits["wait"] += category->as_string("cat") == "wait";
    if (category->as_string("cat") != "kernel") continue;
    if (const Json* planned_flops = e.at("args", "e").find("planned FLOPs"))
      flops += planned_flops->as_number("flops");
    (name.starts_with("nccl") ? communication : compute).push_back(slice);
  }
  // A nanosecond of rounding for each slice.
  const double slack = static_cast<double>(compute.size() + communication.size() + 1);
  const TimeSplit split = split_time(compute, communication);
  CHECK(step_ns == Approx(1e9 * time.seconds).margin(slack));
  CHECK(static_cast<double>(split.compute) == Approx(1e9 * time.compute).margin(slack));
  // Transfers of two lanes may run at once.
  double transfers = 0;
  for (const Interval& slice : communication) transfers += static_cast<double>(slice.end - slice.begin);
  CHECK(transfers == Approx(1e9 * time.transfers).margin(slack));
  CHECK(split.communication <= std::llround(transfers));
  CHECK(waits["wait"] > 0);
  double planned_flops = 0;
  for (Precision p : {Precision::fp32, Precision::bf16, Precision::fp8}) planned_flops += plan.flops(p);
  CHECK(flops == Approx(planned_flops));
  CHECK(flops > 0);
}

TEST_CASE("a predicted trace of a pipeline has all its ranks on one timeline") {
  const Planned p({"--model.n_layers", "4", "--training.global_batch_size", "4",
                   "--parallelism.pipeline_parallel_degree", "2"},
                  2);
  const PlannedExperiment& planned = p.planned;
  const Machine& machine = p.machine;
  const Experiment& e = planned.experiment;
  const std::vector<StepPlan> roles = sample_roles(e.shape, planned.device, e.mesh);
  const Json json = Json::parse(predicted_trace(roles, machine, "planned"), "trace");
  std::map<int64_t, double> step_us;
  std::map<int64_t, int64_t> messages, operations;
  for (const Json& event : json.at("traceEvents", "t").as_array("events")) {
    const Json* category = event.find("cat");
    if (!category) continue;
    const int64_t rank = event.at("pid", "e").as_integer("pid");
    const std::string& name = event.at("name", "e").as_string("name");
    if (name == "ProfilerStep#1") step_us[rank] = event.at("dur", "e").as_number("dur");
    if (category->as_string("cat") != "kernel") continue;
    ++(name.starts_with("nccl") ? messages : operations)[rank];
    CHECK(event.at("ts", "e").as_number("ts") + event.at("dur", "e").as_number("dur") <=
          1e6 * predict_step(roles, machine).seconds + 0.01);
  }
  REQUIRE(step_us.size() == 2);
  CHECK(step_us[0] == Approx(1e6 * predict_step(roles, machine).seconds).margin(0.01));
  for (int64_t rank : {0, 1}) {
    CHECK(messages[rank] >= 8);  // 4 micro-batches, one message each way
    CHECK(operations[rank] > 0);
  }
}

TEST_CASE("on GPUs tensor parallel has a lane of its own, over host memory all calls have one") {
  Planned p({"--model.n_layers", "3", "--parallelism.tensor_parallel_degree", "2"}, 8);
  const PlannedExperiment& planned = p.planned;
  Machine& machine = p.machine;
  const StepPlan plan = record_first_rank(planned.experiment.shape, planned.device, planned.experiment.mesh);
  for (const bool is_gpu : {true, false}) {
    if (!is_gpu) machine.device.capability = 0;
    const ReplayProgram program = programs_of({&plan, 1}, machine)[0];
    std::map<std::string, std::set<int>> lanes;
    for (size_t i = 0; i < program.size(); ++i) {
      const RecordedEvent& event = plan.order.events[i];
      if (event.kind != RecordedEvent::Kind::issue) continue;
      lanes[plan.order.transfers[static_cast<size_t>(event.index)].axis].insert(program[i].lane);
    }
    CHECK(lanes.at("tp") == std::set<int>{is_gpu ? 1 : 0});
    CHECK(lanes.at("dp_shard") == std::set<int>{0});
  }
}
