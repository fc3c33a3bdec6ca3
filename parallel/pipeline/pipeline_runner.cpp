#include "parallel/pipeline/pipeline_runner.h"

#include <utility>

namespace ottava {
namespace {

bool is_backward(const Action& action) { return action.kind != Action::Kind::F; }

std::string label_of(const StageTransfer& t) {
  return fmt::format("{} of micro-batch {} from stage {}", t.is_gradient ? "gradient" : "output",
                     t.micro_batch, t.stage);
}

}  // namespace

PipelineRunner::PipelineRunner(const PipelineShape& shape, Receives receives, Communicator& pipeline)
    : schedule_(make_schedule(shape)), program_(make_program(schedule_, receives)), pipeline_(pipeline) {
  std::vector<int> peers;
  for (const StageTransfer& t : program_.transfers) {
    if (t.from == pipeline.rank()) peers.push_back(t.to);
    if (t.to == pipeline.rank()) peers.push_back(t.from);
  }
  pipeline.connect_pairs(peers);
}

Allocation PipelineRunner::take(const Key& key) {
  const auto found = held_.find(key);
  if (found == held_.end()) return {};
  Allocation taken = std::move(found->second);
  held_.erase(found);
  return taken;
}

void PipelineRunner::run_action(const Action& a, const Work& work) {
  pipeline_.state().set_work(fmt::format("micro-batch {} of stage {}", a.micro_batch,
                                         schedule_.shape.stage_of(pipeline_.rank(), a.chunk)));
  if (a.kind == Action::Kind::W) {
    work(a, {});
    return;
  }
  const int stage = schedule_.shape.stage_of(pipeline_.rank(), a.chunk);
  Allocation in = take({stage + (is_backward(a) ? 1 : -1), a.micro_batch, is_backward(a)});
  Allocation out = work(a, std::move(in));
  if (out) held_[{stage, a.micro_batch, is_backward(a)}] = std::move(out);
}

PipelineRunner::UnderWay PipelineRunner::start_send(Stream& stream, const StageTransfer& t) {
  Allocation memory = take({t.stage, t.micro_batch, t.is_gradient});
  const Request request = pipeline_.send(stream, {.tensor = memory, .to = t.to, .label = label_of(t)});
  return {request, std::move(memory)};
}

PipelineRunner::UnderWay PipelineRunner::start_recv(Stream& stream, Arena& arena, const Boundary& boundary,
                                                    const StageTransfer& t) {
  Allocation memory = arena.allocate(t.is_gradient ? "stage gradient" : "stage input", boundary.dtype,
                                     boundary.shape, MemoryCategory::activations);
  const Request request = pipeline_.recv(stream, {.tensor = memory, .from = t.from, .label = label_of(t)});
  return {request, std::move(memory)};
}

void PipelineRunner::run(Stream& stream, Arena& arena, const Boundary& boundary, const Work& work) {
  std::map<int64_t, UnderWay> under_way;
  for (const PipelineStep& step : program_.ranks[pipeline_.rank()]) {
    if (step.kind == PipelineStep::Kind::run) {
      run_action(step.action, work);
      continue;
    }
    const StageTransfer& t = program_.transfers[step.transfer];
    if (step.kind == PipelineStep::Kind::send) {
      under_way[step.transfer] = start_send(stream, t);
    } else if (step.kind == PipelineStep::Kind::recv) {
      under_way[step.transfer] = start_recv(stream, arena, boundary, t);
    } else {
      auto ended = under_way.extract(step.transfer);
      ended.mapped().request.wait(stream);
      if (t.to == pipeline_.rank())
        held_[{t.stage, t.micro_batch, t.is_gradient}] = std::move(ended.mapped().memory);
    }
  }
}

// The rank's chunks in the model's order: going stage by stage, nothing can hang.
void PipelineRunner::run_forward(Stream& stream, Arena& arena, const Boundary& boundary, const Work& work) {
  const PipelineShape& s = schedule_.shape;
  const int rank = pipeline_.rank();
  std::vector<UnderWay> sent;
  for (int chunk = 0; chunk < s.chunks; ++chunk) {
    const int stage = s.stage_of(rank, chunk);
    if (stage > 0 && s.rank_of(stage - 1) != rank) {
      UnderWay in =
          start_recv(stream, arena, boundary, {.from = s.rank_of(stage - 1), .to = rank, .stage = stage - 1});
      in.request.wait(stream);
      held_[{stage - 1, 0, false}] = std::move(in.memory);
    }
    run_action({Action::Kind::F, chunk, 0}, work);
    if (stage + 1 < s.stages() && s.rank_of(stage + 1) != rank)
      sent.push_back(start_send(stream, {.from = rank, .to = s.rank_of(stage + 1), .stage = stage}));
  }
  for (const UnderWay& s : sent) s.request.wait(stream);
}

}  // namespace ottava
