#include "apps/train/step_traces.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "core/contains.h"
#include "core/error.h"
#include "core/host_name.h"
#include "core/io/atomic_file.h"
#include "core/io/folder.h"
#include "core/io/gzip.h"
#include "core/log.h"
#include "parallel/checkpoint/attempts.h"
#include "parallel/checkpoint/patient_ranks.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;

// Empty, or why nothing can be written there.
std::string complaint_about(const std::string& folder) {
  const std::string reason = make_writable_folder(folder);
  if (reason.empty()) return {};
  return fmt::format(
      "cannot write traces into {}: {}; change profiling.save_traces_folder, or set "
      "profiling.enable_profiling to false",
      folder, reason);
}

std::string process_name(const Mesh& mesh, int rank, const std::string& host) {
  std::string name = fmt::format("rank {}, {}", rank, host);
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) > 1) name += fmt::format(", {} {}", name_of(axis), mesh.coordinate(axis, rank));
  }
  return name;
}

// The end of a call on a GPU is noticed some milliseconds after it.
std::vector<CallRecord> completed_calls(FlightRecorder& recorder, int64_t first) {
  constexpr int kTries = 50;
  std::vector<CallRecord> calls;
  for (int i = 0; i < kTries; ++i) {
    calls = recorder.records(first);
    const bool done = std::ranges::all_of(
        calls, [](const CallRecord& c) { return c.state == CallRecord::State::completed; });
    if (done) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return calls;
}

}  // namespace

StepTraces::StepTraces(const Experiment& experiment, RankGroups& ranks, Device device, HostSpans& spans,
                       std::vector<StepProfile::Span> planned)
    : config_(experiment.config.profiling),
      ranks_(ranks),
      device_(device),
      spans_(spans),
      folder_(experiment.config.job.in_dump_folder(config_.save_traces_folder)),
      kept_calls_(experiment.config.comm.trace_buf_size) {
  const int rank = ranks.world->rank();
  std::vector<std::string> hosts =
      checkpoint::PatientRanks(*ranks.control).all_gather(host_name("unknown host"));
  is_traced_ = traces(rank, hosts);
  std::string complaint;
  checkpoint::PatientRanks group(*ranks.control);
  checkpoint::in_three_attempts(
      group, fmt::format("the folder of traces {} could not be used", folder_),
      [&] { group.together([&] { complaint = is_traced_ ? complaint_about(folder_) : ""; }); });
  refuse_together<FileError>(*ranks.control, "profiling", complaint);
  const int64_t origin = steady_nanoseconds(),
                unix_ns =
                    std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string first =
      checkpoint::PatientRanks(*ranks.control).of_rank_0(fmt::format("{} {}", origin, unix_ns));
  now_ = {.rank = {.rank = rank,
                   .world_size = ranks.world->size(),
                   .name = process_name(experiment.mesh, rank, hosts[rank]),
                   .backend = std::string(ranks.world->transport())},
          .host = hosts[rank],
          .origin_ns = std::stoll(first),
          .origin_unix_ns = std::stoll(first.substr(first.find(' ') + 1)),
          .planned = std::move(planned)};
  if (rank == 0) {
    log::info("Profiling active. Traces will be saved at {}: {} of every {}", folder_,
              config_.profiler_active == 1 ? "the last step"
                                           : fmt::format("the last {} steps", config_.profiler_active),
              config_.profile_freq);
  }
}

void StepTraces::plan_times(const StepPlan& plan, const Machine& machine) {
  now_.planned_seconds.clear();
  now_.planned_calls.clear();
  std::vector<double> times, until{0};
  for (const RecordedOperation& o : plan.operations) times.push_back(machine.time_of(o).seconds);
  for (const RecordedEvent& event : plan.order.events) {
    const size_t index = event.index;
    const bool is_operation = event.kind == RecordedEvent::Kind::operation;
    until.push_back(until.back() + (is_operation ? times[index] : 0));
    if (event.kind != RecordedEvent::Kind::issue || plan.order.transfers[index].ranks == 1) continue;
    const RecordedTransfer& transfer = plan.order.transfers[index];
    now_.planned_calls.push_back({transfer.axis, transfer.calls[0].label, machine.seconds_of(transfer)});
  }
  for (const StepProfile::Span& span : now_.planned)
    now_.planned_seconds.push_back(until.at(span.end_event) - until.at(span.first_event));
}

StepTraces::~StepTraces() {
  writing_.wait();
  ranks_.world->state().calls().set_clock(nullptr);
}

bool StepTraces::traces(int rank, const std::vector<std::string>& hosts) const {
  if (config_.profile_ranks == "all") return true;
  if (config_.profile_ranks == "auto") {
    constexpr size_t kFew = 8;
    return hosts.size() <= kFew || std::ranges::find(hosts, hosts[rank]) - hosts.begin() == rank;
  }
  return contains(config_.named_ranks(static_cast<int>(hosts.size())), rank);
}

StepProfile* StepTraces::begin(int64_t step, Stream& stream, InputRing* ring) {
  const auto phase = config_.phase_of(step);
  if (phase == ProfilingConfig::Phase::off) {
    spans_.forget_ended();
    return nullptr;
  }
  if (phase == ProfilingConfig::Phase::active && !is_open_) {
    now_.clock = measure_clock_offset(*ranks_.control);
    is_open_ = true;
  }
  const auto ranges = config_.enable_nvtx ? StepProfile::Ranges::nvtx : StepProfile::Ranges::none;
  if (phase == ProfilingConfig::Phase::active && is_traced_) {
    if (now_.steps.empty()) {
      first_call_ = ranks_.world->state().calls().next_id();
      spans_.forget_ended();
    }
    clock_ = std::make_shared<DeviceClock>(stream);
    if (device_.is_gpu()) ranks_.world->state().calls().set_clock(clock_);
    if (ring) {
      copies_.emplace(*ring->copies());
      copies_clock_.emplace(*ring->copies());
      ring->set_profile(&*copies_);
      ring_ = ring;
    }
  }
  compute_.emplace(stream, ranges);
  begin_ns_ = steady_nanoseconds();
  return &*compute_;
}

void StepTraces::end(int64_t step) {
  if (config_.phase_of(step) == ProfilingConfig::Phase::active && is_traced_) {
    ranks_.world->state().calls().set_clock(nullptr);
    TracedSteps::Step traced{.number = step, .begin_ns = begin_ns_, .end_ns = steady_nanoseconds()};
    traced.compute = compute_->take_spans(*clock_);
    if (ring_) {
      ring_->set_profile(nullptr);
      traced.copies = copies_->take_spans(*copies_clock_);
    }
    now_.steps.push_back(std::move(traced));
  }
  compute_.reset();
  if (config_.ends_at(step)) is_open_ = false;
  if (is_traced_ && config_.ends_at(step)) write(step);
}

void StepTraces::write(int64_t step) {
  TracedSteps traced = now_;
  now_.steps.clear();
  // A run that resumed in the middle of a trace's steps may have none.
  if (traced.steps.empty()) return;
  traced.host_spans = spans_.since(traced.steps.front().begin_ns);
  const std::string folder = (fs::path(folder_) / fmt::format("iteration_{}", step)).string();
  const std::string path = fmt::format("{}/rank{}_trace.json.gz", folder, traced.rank.rank);
  // The next trace may begin before the thread does.
  const int64_t first = first_call_, next = ranks_.world->state().calls().next_id();
  writing_.start([=, this, traced = std::move(traced)]() mutable {
    try {
      traced.calls = completed_calls(ranks_.world->state().calls(), first);
      std::erase_if(traced.calls, [&](const CallRecord& c) { return c.id >= next; });
      traced.lost_calls = next - first - std::ssize(traced.calls);
      require_folder("profiling", folder);
      write_file_atomically(path, gzip(trace_text(traced), path));
      log::info("Trace of step {}: {}", step, path);
      if (traced.lost_calls > 0)
        log::warning(
            "the trace of step {} lacks {} of its {} calls between ranks, as comm.trace_buf_size is {}: "
            "raise "
            "it to see all of them",
            step, traced.lost_calls, next - first, kept_calls_);
    } catch (const std::exception& error) {
      log::warning("the trace of step {} was not written into {}: {}", step, folder, error.what());
    }
  });
}

void record_failures(RankState& state, const std::string& folder, const std::string& prefix) {
  state.on_failure([&state, folder, prefix](const std::string& reason) {
    const std::string path = fmt::format("{}/{}{}.json", folder, prefix, state.rank());
    try {
      const std::vector<CallRecord> calls = state.calls().records();
      if (calls.empty()) return;
      require_folder("comm", folder);
      write_file_atomically(path, flight_record(calls, state.rank(), state.world_size(), reason).dump(1));
      log::info("The last calls of this rank: {}", path);
    } catch (const std::exception& error) {
      log::warning("the last calls of this rank were not written into {}: {}", path, error.what());
    }
  });
}

}  // namespace ottava
