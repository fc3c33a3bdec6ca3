#include "apps/step/step_plan.h"

#include "apps/step/training_engine.h"
#include "core/sum_of.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"

namespace ottava {
namespace {

struct Recording {
  CostRecorder recorder;
  Stream stream;
  Arena arena;
  TrainingEngine engine;
  Recording(const TrainingShape& shape, Device target, RankGroups& ranks)
      : stream(Stream::meta(recorder, target)), engine(shape, stream, arena, ranks, 0) {
    if (!engine.float8()) return;
    engine.parameters().float8()->weights_updated();
    for (fp8::AmaxHistory* history : {engine.float8()->history(), engine.parameters().float8()->history()})
      if (history) history->steps = history->length();
  }
};

}  // namespace

double StepPlan::flops(Precision precision) const {
  return sum_of(costs, [&](const CostRecorder::Total& t) { return t.precision == precision ? t.flops : 0; });
}

StepFlops StepPlan::flops() const {
  return {.fp32 = flops(Precision::fp32), .bf16 = flops(Precision::bf16), .fp8 = flops(Precision::fp8)};
}

StepFlops mean_flops(std::span<const StepPlan> ranks) {
  const auto mean = [&](Precision precision) {
    return sum_of(ranks, [&](const StepPlan& plan) { return plan.flops(precision); }) / std::ssize(ranks);
  };
  return {.fp32 = mean(Precision::fp32), .bf16 = mean(Precision::bf16), .fp8 = mean(Precision::fp8)};
}

StepFlops mean_flops(const StepPlan& plan, Communicator& ranks) {
  const StepFlops own = plan.flops();
  double sums[3] = {own.fp32, own.bf16, own.fp8};
  reduce_on_host(ranks, view_of(sums, {3}), "FLOPs");
  const int size = ranks.size();
  return {.fp32 = sums[0] / size, .bf16 = sums[1] / size, .fp8 = sums[2] / size};
}

StepPlan record_step(const TrainingShape& shape, Device target, RankGroups& ranks, Packing packing) {
  Recording r(shape, target, ranks);
  ranks.world->stats().reset();
  r.engine.train_step({}, {});
  StepPlan plan{.costs = r.recorder.totals(),
                .operations = r.recorder.operations(),
                .order = r.recorder.order(),
                .traffic = ranks.world->stats()};
  if (shape.validation_batch > 0) r.engine.validate({});
  if (shape.prompts > 0) r.engine.next_logits({}, 0);
  plan.matmul_workspace_bytes = r.recorder.workspace_bytes();
  plan.memory = r.arena.plan(packing);
  plan.memory.resize_persistent("matmul workspace", plan.matmul_workspace_bytes);
  return plan;
}

std::vector<StepProfile::Span> record_spans(const TrainingShape& shape, Device target, RankGroups& ranks) {
  Recording r(shape, target, ranks);
  StepProfile profile(r.stream);
  r.engine.train_step({}, {}, &profile);
  return profile.take_spans(DeviceClock(r.stream));
}

StepPlan record_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh) {
  return record_rank(shape, target, mesh, 0);
}

StepPlan record_rank(const TrainingShape& shape, Device target, const Mesh& mesh, int rank, Packing packing) {
  const int size = mesh.world_size();
  const auto connections = std::make_shared<RankConnections>();
  RankGroups ranks(make_dry_run_world(rank, size), make_dry_run_world(rank, size, connections), mesh);
  StepPlan plan = record_step(shape, target, ranks, packing);
  plan.connections = *connections;
  plan.rank = rank;
  return plan;
}

}  // namespace ottava
