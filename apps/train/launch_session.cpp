#include "apps/train/launch_session.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/config/changed_keys.h"
#include "apps/config/resolved_model.h"
#include "apps/config/sm_budget.h"
#include "apps/step/step_graphs.h"
#include "core/cuda/runtime.h"
#include "core/host_name.h"
#include "core/io/file.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/error_text.h"
#include "core/text/listed.h"
#include "core/threads/allowed_cpus.h"
#include "core/threads/parallel_for.h"
#include "parallel/calls/waited_time.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/gather.h"
#include "parallel/comm/patience.h"
#include "parallel/launcher/stop_signal_set.h"
#include "parallel/ranks/cpu_share.h"
#include "parallel/ranks/local_place.h"
#include "parallel/ranks/world.h"
#include "parallel/sharding/placement.h"

namespace ottava {
namespace {

Device device_of_rank(const Config& config, const Launch& launch) {
  Device device = parse_device(config.training.device);
  if (!device.is_gpu() || launch.world_size == 1) return device;
  const GpuSharing sharing = config.comm.excludes_nccl() ? GpuSharing::allowed : GpuSharing::forbidden;
  return {DeviceType::cuda, choose_gpu(launch, cuda_device_count(), sharing)};
}

// NCCL would choose by measured topology, and sums in another order differ. What the user has set stays.
constexpr std::pair<const char*, const char*> kNcclAlgorithms[] = {{"NCCL_ALGO", "Ring"},
                                                                   {"NCCL_PROTO", "Simple"}};
// Since 2.22 ranks connect when a call first uses an algorithm: in the middle of a step, in memory that the
// plan has given to others. And whatever the environment says, communicators do not block: one that hangs
// could not be ended.
void prepare_nccl() {
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
}

// Since 2.26 NCCL can start the kernels of all communicators in the order in which they are called, the same
// on all ranks, in graphs too: what must be where they do not fit a GPU together. Where they do, they are
// free to run as their streams let them.
void order_nccl(const Config& config, const Launch& launch) {
  const int gpus = cuda_device_count();
  if (gpus == 0 || launch.world_size == 1 || config.training.device == "cpu") return;
  if (config.comm.excludes_nccl()) return;
  const int sms = cuda::sm_count(launch.local_rank % gpus);
  if (!may_crowd(config.parallelism, config.comm.sm_budget, sms)) return;
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  if (launch.rank == 0) {
    log::info(
        "NCCL's calls of several kinds of parallelism may need more than the {} SMs of a GPU at once: NCCL "
        "2.26 and newer start them in order (NCCL_LAUNCH_ORDER_IMPLICIT={}), with an older one "
        "set comm.sm_budget so low that all fit",
        sms, std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"));
  }
}

void pin_nccl_algorithms() {
  for (const auto& [name, value] : kNcclAlgorithms) ::setenv(name, value, 0);
}

void log_determinism(Device device) {
  if (!device.is_gpu())
    return log::info("debug.deterministic has no effect: it fixes NCCL's algorithm, but the device is {}",
                     to_string(device));
  for (const auto& [name, value] : kNcclAlgorithms) {
    const std::string_view now = ::getenv(name);
    log::info("debug.deterministic holds NCCL to {}={}{}", name, now,
              now == value ? "" : fmt::format(", which the environment says, instead of {}", value));
  }
}

// The keys in which the printed configuration of rank `other` differs from that of rank 0.
std::string configuration_differences(const std::vector<std::string>& printed, size_t other) {
  constexpr size_t kNamed = 4;
  return listed(
      key_differences({printed[0], "rank 0's configuration"},
                      {printed[other], fmt::format("rank {}'s configuration", other)}),
      [&](const KeyDifference& d) {
        return fmt::format("{} (rank 0 has {}, rank {} has {})", d.key, d.first, other, d.second);
      },
      kNamed);
}

void require_same_configuration(const Config& config, Communicator& control) {
  const std::string mine = print_config(config);
  const std::vector<int64_t> hashes =
      gather_number(control, static_cast<int64_t>(checkpoint::text_checksum(mine)), "the configuration");
  const auto other = std::ranges::find_if(hashes, [&](int64_t hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const std::vector<std::string> printed = gather_text(control, mine, "the configuration");
  const std::string differences = configuration_differences(printed, other - hashes.begin());
  meet_before_refusing(control);
  fail<ConfigError>(
      "ranks",
      "the configuration differs between ranks: {}; {} of {} ranks have rank 0's: start all ranks "
      "with the same file and the same options",
      differences, std::ranges::count(hashes, hashes[0]), hashes.size());
}

// Each machine may have files of its own, some of them out of date.
void require_same_tokenizer(const Tokenizer& tokenizer, Communicator& control) {
  require_equal_everywhere(
      control, "the tokenizer (model.hf_assets_path)",
      checkpoint::text_checksum(fmt::format("{:016x} {}", tokenizer.fingerprint(), tokenizer.adds_bos())));
}

void require_same_model(const Experiment& experiment, Communicator& control) {
  std::string values;
  for (const ModelValue& v : experiment.model_values) values += fmt::format("{} {}\n", v.name, v.value);
  require_equal_everywhere(
      control,
      source_config_path(experiment.config) ? "the model (config.json of model.hf_assets_path)" : "the model",
      checkpoint::text_checksum(values));
}

// What Trainer refuses as well, but only after measurements and with the data open.
void refuse_early(const Experiment& e, Device device, RankGroups& ranks) {
  fail_together(*ranks.control, "set-up", [&] {
    decide_graphs(e.config.training.cuda_graphs, device, *ranks.world,
                  {.has_stages = e.shape.pipeline.is_on()});
    if (e.config.profiling.enable_profiling) e.config.profiling.named_ranks(ranks.world->size());
  });
}

// A launcher may hand out ranks to machines in turn.
void warn_of_placement(const Mesh& mesh, Communicator& control) {
  if (mesh.world_size() == 1) return;
  const std::vector<std::string> hosts = gather_text(control, host_name("unnamed"), "machines");
  const std::string text = scattered_groups(mesh, hosts);
  if (control.rank() == 0 && !text.empty()) log::warning("{}", text);
}

void work(const Config& config, World& world, const std::function<void(Session&)>& body,
          const std::function<void()>& check_inputs) {
  const Device device = world.training_device;
  if (world.launch.world_size > 1)
    require_equal_everywhere(*world.control, "the ottava binary",
                             checkpoint::text_checksum(read_file("/proc/self/exe")));
  require_same_configuration(config, *world.control);
  if (check_inputs) {
    const Patience patience(*world.control);  // one rank may have to look several times
    fail_together(*world.control, "inputs", check_inputs);
  }
  if (config.debug.deterministic) log_determinism(device);
  std::optional<int> capability;
  if (device.is_gpu()) capability = cuda::compute_capability(device.index);
  std::shared_ptr<const Tokenizer> tokenizer;
  fail_together(*world.control, "tokenizer", [&] { tokenizer = load_tokenizer(config); });
  require_same_tokenizer(*tokenizer, *world.control);
  std::optional<Experiment> resolved;
  fail_together(*world.control, "experiment", [&] {
    resolved = resolve_experiment(config, tokenizer, world.launch.world_size, capability);
  });
  Experiment& experiment = *resolved;
  require_same_model(experiment, *world.control);
  RankGroups ranks(world.share_control(), world.share_tensors(), experiment.mesh);
  warn_of_placement(experiment.mesh, *world.control);
  refuse_early(experiment, device, ranks);
  experiment.sm_budget = decide_sm_budget(config.comm.sm_budget, device, *ranks.world, experiment.mesh);
  Session session{std::move(experiment), ranks, device};
  body(session);
}

void report_threads(int64_t in_config, const CpuShare& share) {
  const int64_t wanted = in_config > 0 ? in_config : share.threads, cpus = std::ssize(share.cpus);
  const int64_t threads = std::min<int64_t>(wanted, parallel_thread_limit());
  if (threads < wanted && (std::getenv("OMP_THREAD_LIMIT") || std::getenv("OMP_MAX_ACTIVE_LEVELS"))) {
    log::warning(
        "this run has {} instead of {}, by OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS in the environment: "
        "unset them for more",
        counted(threads, "thread"), wanted);
  }
  if (const char* dynamic = std::getenv("OMP_DYNAMIC"); dynamic && ::strcasecmp(dynamic, "true") == 0)
    log::info("OMP_DYNAMIC has no effect: {}, in every loop", counted(threads, "thread"));
  if (const char* binding = std::getenv(kOmpBinding))
    log::info("No thread is bound to a place ({}): those of a rank run on any of its {}", binding,
              counted(cpus, "CPU"));
  if (share.quota && *share.quota < static_cast<double>(cpus)) {
    log::info("A quota (control group) gives a rank the time of {:.3g} of its {}: {}", *share.quota,
              counted(cpus, "CPU"), counted(threads, "thread"));
  }
  if (cpus == 0 || threads <= 2 * cpus) return;
  log::warning(
      "{} {} is far above the {} that a rank has here: the threads compete for cores and slow every step; "
      "lower it or {}",
      in_config > 0 ? "training.threads" : "OMP_NUM_THREADS", wanted, counted(cpus, "CPU"),
      in_config > 0 ? "set 0" : "unset it");
}

/// A signal to stop while ranks look for each other. Those that are all about to come meet all the same, and
/// stop together; otherwise this one leaves.
class StopWhileMeeting {
 public:
  explicit StopWhileMeeting(const StopSignals* signals) : signals_(signals) {}
  bool is_asked() const { return is_signalled(signals_); }
  void look() {
    constexpr double kPatienceSeconds = 5;
    if (!is_asked()) return;
    if (!waited_) waited_.emplace();
    if (waited_->seconds() > kPatienceSeconds) fail<CommError>("world", "stopped before all ranks had met");
  }

 private:
  const StopSignals* signals_;
  std::optional<WaitedTime> waited_;  ///< since the signal was seen
};

// Once on each machine, whatever ranks' logs are shown.
void tell_of_stop(const Launch& launch) {
  constexpr std::string_view kText = "Stopped before all ranks had met; nothing was saved";
  launch.local_rank == 0 ? log::warning("{}", kText) : log::info("{}", kText);
}

// Those that can begin would wait for this rank until comm.init_timeout_seconds are over. By what they meet
// is in the configuration, which this rank lacks, but hardly ever other than by default.
void tell_others(const Launch& launch, const std::string& why) noexcept {
  constexpr double kWaitSeconds = 60;
  const sigset_t stop_signals = stop_signal_set();
  ::pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);  // there is nothing to save
  try {
    const auto refuse = [&]() -> Device { throw ConfigError(why); };
    run_rank(with_local_place(launch, kWaitSeconds),
             {.init_timeout_seconds = kWaitSeconds, .find_device = refuse}, [](World&) {});
  } catch (const std::exception&) {  // what all have been told, or they did not come
  }
}

}  // namespace

log::RankView rank_in_log(const Launch& launch) {
  return {.rank = launch.rank, .world_size = launch.world_size, .quiet = !shows_log(launch.rank)};
}

std::optional<Config> load_session_config(const std::filesystem::path& file,
                                          const std::vector<std::string>& overrides) {
  try {
    return load_config(file, overrides);
  } catch (const std::exception& error) {
    const Launch launch = detect_launch();
    if (launch.world_size == 1) throw;
    report_failure(launch, error);
    tell_others(launch, error_text(error));
    return std::nullopt;
  }
}

int run_session(const Config& config, const std::function<void(Session&)>& body, const StopSignals* signals,
                const std::function<void()>& check_inputs) {
  Launch launch = detect_launch();
  log::set_rank(rank_in_log(launch));
  const double init_timeout = static_cast<double>(config.comm.init_timeout_seconds);
  StopWhileMeeting stop(signals);
  const auto look_for_stop = [&] { stop.look(); };
  bool have_met = false;
  try {
    launch = with_local_place(launch, init_timeout, host_name(), look_for_stop);
    const auto use_cpus = [&](const MachineCpus& machine) {
      const CpuShare share = apply_cpu_share(launch, machine);
      if (machine.self == 0) {
        for (const std::string& text : cpu_warnings(launch, machine, allowed_cpus(::getppid())))
          log::warning("{}", text);
        report_threads(config.training.threads, share);
      }
      if (config.training.threads > 0) set_parallel_threads(static_cast<int>(config.training.threads));
    };
    prepare_nccl();
    order_nccl(config, launch);
    if (config.debug.deterministic) pin_nccl_algorithms();
    const auto find_device = [&] {
      const Device device = device_of_rank(config, launch);
      check_sm_budget(config.comm.sm_budget, device);
      return device;
    };
    run_rank(launch,
             {.init_timeout_seconds = init_timeout,
              .backend = config.comm.backend,
              .max_ctas = static_cast<int>(config.comm.sm_budget),
              .while_meeting = look_for_stop,
              .use_cpus = use_cpus,
              .find_device = find_device},
             [&](World& world) {
               have_met = true;
               work(config, world, body, check_inputs);
             });
  } catch (const std::exception& error) {
    if (launch.world_size == 1) throw;
    if (!have_met && stop.is_asked()) {
      tell_of_stop(launch);
      return 0;
    }
    return report_failure(launch, error);
  }
  return 0;
}

}  // namespace ottava
