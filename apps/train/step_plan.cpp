#include "apps/train/step_plan.h"

#include "apps/train/training_engine.h"
#include "core/sum_of.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"

namespace ottava {

double StepPlan::flops(Precision precision) const {
  return sum_of(costs, [&](const CostRecorder::Total& t) { return t.precision == precision ? t.flops : 0; });
}

StepPlan record_step(const TrainingShape& shape, Device target, RankGroups& ranks) {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, target);
  Arena arena;
  TrainingEngine engine(shape, stream, arena, ranks, 0);
  ranks.world->stats().reset();
  engine.train_step({}, {});
  StepPlan plan{.memory = {},
                .costs = recorder.totals(),
                .operations = recorder.operations(),
                .order = recorder.order(),
                .traffic = ranks.world->stats()};
  if (shape.validation_batch > 0) engine.validate({});
  if (shape.prompts > 0) engine.next_logits({}, 0);
  plan.matmul_workspace_bytes = recorder.workspace_bytes();
  plan.memory = arena.plan();
  plan.memory.resize_persistent("matmul workspace", plan.matmul_workspace_bytes);
  return plan;
}

std::vector<StepProfile::Span> record_spans(const TrainingShape& shape, Device target, RankGroups& ranks) {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, target);
  Arena arena;
  TrainingEngine engine(shape, stream, arena, ranks, 0);
  StepProfile profile(stream);
  engine.train_step({}, {}, &profile);
  return profile.take_spans(DeviceClock(stream));
}

StepPlan record_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh) {
  return record_rank(shape, target, mesh, 0);
}

StepPlan record_rank(const TrainingShape& shape, Device target, const Mesh& mesh, int rank) {
  const int size = mesh.world_size();
  RankGroups ranks(make_dry_run_world(rank, size), make_dry_run_world(rank, size), mesh);
  return record_step(shape, target, ranks);
}

}  // namespace ottava
