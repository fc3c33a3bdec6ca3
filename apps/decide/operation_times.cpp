#include "apps/decide/operation_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "apps/decide/transfer_calls.h"
#include "core/beside_compute.h"
#include "core/cpu/matmul_cache.h"
#include "core/cuda/blas_plans.h"
#include "core/device_stream.h"
#include "core/stopwatch.h"

namespace ottava {
namespace {

// FLOPs, because attention with separate keys sees more of the same tensors the later its queries are.
std::string key_of(const RecordedOperation& o) {
  return fmt::format("{}|{}|{}|{}|{}", o.op, o.variant, name_of(o.precision), o.operands, o.flops);
}

std::map<std::string, int64_t> calls_of(const StepPlan& step) {
  std::map<std::string, int64_t> calls;
  for (const RecordedOperation& o : step.operations) calls[key_of(o)] += o.calls;
  return calls;
}

Communicator* communicator(RankGroups& ranks, std::string_view axis) {
  for (Communicator* c : std::array{ranks.tp.get(), ranks.cp.get(), ranks.dp_shard.get(), ranks.stage.get(),
                                    ranks.replica.get(), ranks.dp_replicate.get(), ranks.world.get()}) {
    if (c->axis() == axis) return c;
  }
  return nullptr;
}

bool is_timed(const RecordedTransfer& t) {
  const RecordedTransfer::Call& call = t.calls[0];
  return t.axis == "tp" || (call.collective == "all_reduce" &&
                            (call.label.ends_with("amax") || call.label.ends_with("amaxes")));
}

}  // namespace

Stream stream_like_steps(const Experiment& e, Device device) {
  Stream stream = device_stream(device);
  if (device.type == DeviceType::cpu) stream.matmul_cache().set_products(e.shape.cpu_products);
  if (device.is_gpu()) {
    stream.blas_plans().set_sm_count(e.sm_budget.products);
    stream.blas_plans().select(cuda::BlasPlans::Selection::fastest);
  }
  return stream;
}

double OperationTimes::of_call(const RecordedOperation& operation) {
  const auto [known, is_new] = milliseconds_.try_emplace(key_of(operation), 0);
  if (!is_new) return known->second;
  constexpr double kBatchMilliseconds = 0.3, kMostCalls = 50, kMostMilliseconds = 50;
  constexpr int kBatches = 5;
  Workbench bench(stream_.device());
  const std::function<void(Stream&)> run = prepare(operation, bench, vocabulary_);
  StreamTimer timer(stream_);
  const auto milliseconds = [&](double calls) {
    return timer.milliseconds([&] {
      for (int i = 0; i < static_cast<int>(calls); ++i) run(stream_);
    }) / calls;
  };
  milliseconds(1);  // plans and clocks settle in it
  // The number of calls follows from the time that passes on the host: that of a call, its launch and the
  // wait for its end.
  const Stopwatch watch;
  const auto passed = [&] { return 1e3 * watch.seconds(); };
  double best = milliseconds(1);
  const double calls = std::clamp(kBatchMilliseconds / std::max(passed(), 1e-6), 1.0, kMostCalls);
  for (int i = 0; i < kBatches && passed() < kMostMilliseconds; ++i)
    best = std::min(best, milliseconds(std::floor(calls)));
  return known->second = best;
}

void OperationTimes::give_workspace(int64_t bytes) {
  if (workspace_ && bytes <= workspace_bytes_) return;
  workspace_ = std::make_unique<Workbench>(stream_.device());
  workspace_bytes_ = bytes;
  workspace_->give_workspace(stream_, bytes);
}

double OperationTimes::of(const StepPlan& step) { return beyond(step, {}); }

double OperationTimes::beyond(const StepPlan& step, const StepPlan& other) {
  give_workspace(step.matmul_workspace_bytes);
  std::map<std::string, int64_t> theirs = calls_of(other);
  double sum = 0;
  for (const RecordedOperation& o : step.operations) {
    const int64_t more = o.calls - theirs[key_of(o)];
    if (more > 0) sum += more * of_call(o);
  }
  return sum;
}

double waited_milliseconds(Stream& stream, RankGroups& ranks, const RecordedOrder& order) {
  const std::vector<bool> is_beside = beside_compute(order);
  std::map<std::string, double> known;
  double sum = 0;
  for (size_t i = 0; i < is_beside.size(); ++i) {
    const RecordedTransfer& t = order.transfers[i];
    Communicator* c = is_timed(t) && !is_beside[i] ? communicator(ranks, t.axis) : nullptr;
    if (!c || c->size() == 1) continue;
    const auto [entry, is_new] = known.try_emplace(
        fmt::format("{} {} {} {}", t.axis, t.calls[0].collective, t.calls.size(), t.payload_bytes()), 0);
    if (is_new) {
      Workbench bench(stream.device());
      const std::function<Request(Stream&)> start = prepare(t, *c, 1, bench);
      entry->second = best_milliseconds(stream, [&] { start(stream).wait(stream); });
    }
    sum += entry->second;
  }
  return sum;
}

}  // namespace ottava
