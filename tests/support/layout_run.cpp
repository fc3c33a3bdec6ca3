#include "tests/support/layout_run.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>

#include "apps/step/step_plan.h"
#include "core/cuda/fused_attention.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

namespace ottava::test {
namespace {

struct StepTokens {
  std::vector<int32_t> inputs, targets, document_start, positions;
  int64_t valid() const {
    return static_cast<int64_t>(targets.size()) - std::count(targets.begin(), targets.end(), kIgnoreIndex);
  }
  HostTokens on_host() const {
    return {.inputs = inputs, .targets = targets, .document_start = document_start, .positions = positions};
  }
};

// Two batches in turn, so that there is something to learn; every 13th token does not count. Block-causal,
// documents have 7 tokens, the first one fewer for each sequence.
StepTokens whole_step(const TrainingShape& whole, int step) {
  const int64_t count = whole.batch * whole.sequence, vocab = whole.model.vocab_size;
  const auto seed = static_cast<uint32_t>(11 + step % 2);
  StepTokens out{random_tokens(count, vocab, seed), random_tokens(count, vocab, seed + 100), {}, {}};
  for (size_t i = static_cast<size_t>(step % 2); i < out.targets.size(); i += 13)
    out.targets[i] = kIgnoreIndex;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = i % whole.sequence, first = 1 + i / whole.sequence % 7;
    const int64_t start = !whole.block_causal || position < first ? 0 : position - (position - first) % 7;
    if (whole.block_causal) out.document_start.push_back(static_cast<int32_t>(start));
    out.positions.push_back(static_cast<int32_t>(position - start));
  }
  return out;
}

// Micro-batch m of data rank d holds sequences (m * D + d) * batch and on, as apps/data/batch_source.cpp
// deals them; of each, a context parallel rank holds two chunks.
StepTokens tokens_of(const StepTokens& all, const TrainingShape& mine, const RankGroups& ranks) {
  const ContextParallelGroup& context = ranks.context_parallel;
  const int64_t chunk = mine.sequence / (context.size() == 1 ? 1 : 2 * context.size());
  StepTokens out;
  for (int64_t m = 0; m < mine.micro_batches; ++m) {
    for (int half = 0; half < (context.size() == 1 ? 1 : 2); ++half) {
      for (int64_t b = 0; b < mine.batch; ++b) {
        const int64_t row = (m * ranks.data_size + ranks.data_rank) * mine.batch + b,
                      first = row * mine.sequence + context.chunk_of(half) * chunk;
        const auto take = [&](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
          if (!from.empty()) to.insert(to.end(), from.begin() + first, from.begin() + first + chunk);
        };
        take(out.inputs, all.inputs), take(out.targets, all.targets);
        take(out.document_start, all.document_start), take(out.positions, all.positions);
      }
    }
  }
  return out;
}

struct RankCurve {
  std::vector<double> loss_sum, z_loss_sum, grad_norm;
  std::vector<Skip> why;
  std::vector<float> weights, sequence_losses;
  MemoryPlan memory;
  CommStats planned, measured;
};

/// Operations and passes that ran, in their order, are those that are planned: with the same memory at the
/// same places, which the arena checks, they compute the same FLOPs.
void require_as_planned(const std::vector<StepProfile::Span>& ran,
                        const std::vector<StepProfile::Span>& planned) {
  size_t next = 0;
  for (const StepProfile::Span& span : ran) {
    if (span.kind == StepProfile::Kind::wait) continue;
    const std::string expected = next < planned.size() ? planned[next].label : "the end of the step";
    if (span.label != expected)
      fail<Error>("layout", "the step did {} where {} is planned, after {} others", span.label, expected,
                  next);
    ++next;
  }
  if (next == 0 || next != planned.size())
    fail<Error>("layout", "the step did {} operations and passes, {} are planned", next, planned.size());
}

/// Calls, with types and shapes of their operands, are those that are planned. But inputs are copied from
/// where the host has them, and results to the host.
void require_calls_as_planned(const CostRecorder& ran, const StepPlan& plan) {
  struct Calls {
    int64_t planned = 0, ran = 0;
  };
  std::map<std::string, Calls> calls;
  const auto name = [](const RecordedOperation& o) {
    return fmt::format("{} {} {}", o.op, o.variant, o.operands);
  };
  for (const RecordedOperation& o : plan.operations) calls[name(o)].planned += o.calls;
  for (const RecordedOperation& o : ran.operations()) calls[name(o)].ran += o.calls;
  for (const auto& [call, count] : calls) {
    if (call.starts_with("cast ") ? count.ran < count.planned : count.ran != count.planned)
      fail<Error>("layout", "the step called {} {} times, {} are planned", call, count.ran, count.planned);
  }
}

/// A step that others follow: FP8 weights' amaxes come from the optimizer, and delayed's history is full.
bool is_usual(const TrainingShape& shape, int step) {
  const Float8State::Options& float8 = shape.float8.state;
  return shape.float8_policy.decisions.empty() ||
         step >= (float8.has_history() ? float8.amax_history_length : 1);
}

/// Of first weights scores are so small that each token attends to all, and a curve would hardly show to
/// which.
void sharpen_attention(EngineRun& run) {
  for (size_t p = 0; p < run->parameters().specs().size(); ++p) {
    if (!run->parameters().specs()[p].name.ends_with(".attention_norm")) continue;
    const Tensor& norm = run->parameters().shard(static_cast<int>(p)).master;
    std::vector<float> weights = run.values(norm);
    for (float& weight : weights) weight *= 4;
    cast(run.stream(), view_of(weights.data(), norm.shape), norm);
    run.stream().synchronize();
  }
  run->parameters().refresh_compute_copies();
}

RankCurve train_rank(const TrainingShape& whole, const Layout& layout, int steps,
                     std::unique_ptr<RankGroups> ranks, Device device, StepForm form = StepForm::plain) {
  RankCurve out;
  const TrainingShape shape = shape_on(whole, layout);
  EngineRun run(shape, std::move(ranks), device);
  run->parameters().initialise(7);
  sharpen_attention(run);
  if (form == StepForm::graphs) run->graphs().enable(*run.ranks().world);
  out.memory = run.plan().memory;
  out.planned = run.plan().traffic;
  std::optional<StepProfile> profile;
  for (int step = 0; step < steps; ++step) {
    const StepTokens all = whole_step(whole, step), mine = tokens_of(all, shape, run.ranks());
    run.ranks().world->stats().reset();
    const bool is_profiled = step == steps - 1 && form == StepForm::plain;
    if (is_profiled) profile.emplace(run->stream());
    run.done().clear();
    StepOutputs done = run->train_step(
        mine.on_host(), {.learning_rate = 2e-3, .optimizer_step = step + 1, .valid_tokens = all.valid()},
        is_profiled ? &*profile : nullptr);
    out.sequence_losses = std::move(done.sequence_losses);
    out.loss_sum.push_back(done.loss_sum);
    out.z_loss_sum.push_back(done.z_loss_sum);
    out.grad_norm.push_back(done.grad_norm);
    out.why.push_back(done.why);
  }
  out.measured = run.ranks().world->stats();
  if (profile && is_usual(shape, steps - 1)) require_calls_as_planned(run.done(), run.plan());
  if (profile)
    require_as_planned(profile->take_spans(DeviceClock(run->stream())),
                       record_spans(shape, device, run.ranks()));
  for (size_t p = 0; p < run->parameters().specs().size(); ++p) {
    const std::vector<float> values = run.values(run->parameters().shard(static_cast<int>(p)).master);
    out.weights.insert(out.weights.end(), values.begin(), values.end());
  }
  return out;
}

LayoutCurve combine(const TrainingShape& whole, const Layout& layout, std::vector<RankCurve> ranks) {
  LayoutCurve out;
  const Mesh mesh = layout.mesh();
  for (size_t step = 0; step < ranks[0].loss_sum.size(); ++step) {
    double sum = 0, z_sum = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      // Ranks of a pipeline and of tensor parallel see the same tokens.
      const auto rank = static_cast<int>(r);
      if (mesh.coordinate(MeshAxis::tp, rank) == 0 && mesh.coordinate(MeshAxis::pp, rank) == 0) {
        sum += ranks[r].loss_sum[step];
        z_sum += ranks[r].z_loss_sum[step];
      }
      if (ranks[r].grad_norm[step] != ranks[0].grad_norm[step]) {
        fail<Error>("layout", "ranks 0 and {} disagree about the gradient norm of step {}: {} and {}", r,
                    step, ranks[0].grad_norm[step], ranks[r].grad_norm[step]);
      }
    }
    const auto valid = static_cast<double>(whole_step(whole, static_cast<int>(step)).valid());
    out.loss.push_back(sum / valid);
    out.z_loss.push_back(z_sum / valid);
    out.grad_norm.push_back(ranks[0].grad_norm[step]);
    out.why.push_back(ranks[0].why[step]);
    for (const RankCurve& r : ranks) {
      if (r.why[step] != ranks[0].why[step])
        fail<Error>("layout", "ranks disagree about whether step {} is skipped", step);
    }
  }
  for (RankCurve& r : ranks) {
    out.weights.push_back(std::move(r.weights));
    out.sequence_losses.push_back(std::move(r.sequence_losses));
    out.calls.push_back(r.measured.calls());
    out.memory.push_back(std::move(r.memory));
    out.planned.push_back(std::move(r.planned));
    out.measured.push_back(std::move(r.measured));
  }
  return out;
}

LayoutCurve train_with(const ThreadRanks& how, const TrainingShape& whole, const Layout& layout, int steps,
                       Device device) {
  std::vector<RankCurve> ranks(static_cast<size_t>(layout.world_size()));
  run_thread_ranks(how, [&](Communicator& world) {
    auto groups = std::make_unique<RankGroups>(groups_over(world, layout.mesh()));
    ranks[static_cast<size_t>(world.rank())] = train_rank(whole, layout, steps, std::move(groups), device);
  });
  return combine(whole, layout, std::move(ranks));
}

}  // namespace

void give_matrices_to_muon(TrainingShape& shape) {
  const std::vector<ParameterSpec> specs = llama_parameters(shape.model).specs;
  shape.groups.resize(specs.size());
  for (size_t p = 0; p < specs.size(); ++p) {
    if (specs[p].role == ParameterRole::linear) shape.groups[p].rule = UpdateRule::muon;
  }
}

TrainingShape shape_on(const TrainingShape& whole, const Layout& layout) {
  TrainingShape shape = whole;
  const int64_t parts = layout.data_ranks() * layout.micro_batches;
  if (whole.batch % parts != 0)
    fail<Error>("layout", "{} sequences do not divide into {} parts", whole.batch, parts);
  shape.batch = whole.batch / parts;
  shape.micro_batches = layout.micro_batches;
  if (layout.pp == 1) return shape;
  shape.pipeline = {
      .shape = {.schedule = layout.schedule,
                .ranks = layout.pp,
                .chunks = layout.chunks,
                .micro_batches = static_cast<int>(layout.micro_batches)},
      .stages = split_stages({.layers = shape.model.layers, .ranks = layout.pp * layout.chunks})};
  shape.parameters.reshard = FsdpOptions::Reshard::never;
  shape.parameters.reduce_every_micro_batch = false;
  return shape;
}

LayoutCurve train_on(const TrainingShape& whole, const Layout& layout, int steps) {
  return train_on(whole, layout, steps, devices().front());
}

LayoutCurve train_slowly_on(const TrainingShape& whole, const Layout& layout, int steps) {
  std::atomic<uint32_t> sent = 0;
  const auto slow = [&](int64_t) { return (++sent * 2654435761u >> 16) % 2000 * 1e-6; };
  return train_with({.ranks = layout.world_size(), .delay = slow}, whole, layout, steps, devices().front());
}

LayoutCurve train_on(const TrainingShape& whole, const Layout& layout, int steps, Device device) {
  return train_with({.ranks = layout.world_size()}, whole, layout, steps, device);
}

void run_nccl_mesh(const Layout& layout,
                   const std::function<void(std::unique_ptr<RankGroups>, int rank)>& body) {
  run_thread_ranks({.ranks = layout.world_size()}, [&](Communicator& control) {
    CommunicatorBootstrap bootstrap(control);
    auto world = nccl::make_world(bootstrap, control.shared_state(), {.gpu = control.rank()});
    body(std::make_unique<RankGroups>(control.split("world", all_ranks(control.size())), std::move(world),
                                      layout.mesh()),
         control.rank());
  });
}

LayoutCurve train_over_nccl(const TrainingShape& whole, const Layout& layout, int steps, StepForm form) {
  std::vector<RankCurve> ranks(static_cast<size_t>(layout.world_size()));
  run_nccl_mesh(layout, [&](std::unique_ptr<RankGroups> groups, int rank) {
    TrainingShape mine = whole;
    if (const auto& fused = whole.model_options.fused_attention)
      mine.model_options.fused_attention = std::make_shared<cuda::FusedAttention>(rank, fused->backward());
    ranks[static_cast<size_t>(rank)] =
        train_rank(mine, layout, steps, std::move(groups), {DeviceType::cuda, rank}, form);
  });
  return combine(whole, layout, std::move(ranks));
}

}  // namespace ottava::test
