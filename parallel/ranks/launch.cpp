#include "parallel/ranks/launch.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/host_name.h"
#include "core/text/counted.h"
#include "core/text/number.h"
#include "core/text/split.h"
#include "parallel/comm/tcp.h"

namespace ottava {
namespace {

int number(std::string_view name, std::string_view text) {
  const int value = parse_number<int>(text).value_or(-1);
  if (value < 0)
    fail<ConfigError>("launch", "{} is '{}', expected a number that is not negative", name, text);
  return value;
}

std::optional<int> read(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (!text || !*text) return std::nullopt;
  return number(name, text);
}

// The variables that one launcher sets; a null name means that it has none.
struct Dialect {
  Launcher launcher;
  const char* label;
  const char *size, *rank, *local_rank, *local_size;
};
constexpr Dialect kOpenMpi{Launcher::mpi,
                           "mpirun",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Dialect kPmi{Launcher::mpi, "mpiexec",         "PMI_SIZE",
                       "PMI_RANK",    "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
// SLURM_NTASKS is also set in a batch script that starts nothing; only srun sets the step's variable.
constexpr Dialect kSlurm{Launcher::slurm, "srun",          "SLURM_STEP_NUM_TASKS",
                         "SLURM_PROCID",  "SLURM_LOCALID", nullptr};
constexpr Dialect kTorch{Launcher::environment, "torchrun",        "WORLD_SIZE", "RANK",
                         "LOCAL_RANK",          "LOCAL_WORLD_SIZE"};
constexpr const Dialect* kDialects[] = {&kOpenMpi, &kPmi, &kSlurm, &kTorch};

bool is_set(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text && *text;
}

// Who this process is among how many.
struct Place {
  int rank = 0, size = 1;
  bool operator==(const Place&) const = default;
};
std::optional<Place> place_in(const Dialect& d, const Environment& environment) {
  if (!is_set(environment, d.size) || !is_set(environment, d.rank)) return std::nullopt;
  return Place{*read(environment, d.rank), *read(environment, d.size)};
}

// torchrun and `ottava launch` set all of these for each rank, which distinguishes them from a RANK and
// WORLD_SIZE set in a batch script or a container.
bool is_whole_torch(const Environment& environment) {
  return place_in(kTorch, environment) && is_set(environment, kTorch.local_rank) &&
         is_set(environment, "MASTER_PORT");
}
// Our own launcher sets torchrun's variables, and one more.
bool is_own_launcher(const Environment& environment) { return is_set(environment, "OTTAVA_ACCOUNTS"); }
bool is_started_by_agent(const Environment& environment) {
  return is_set(environment, "TORCHELASTIC_RUN_ID") || is_own_launcher(environment);
}

// That of the innermost launcher; the ones around it started what started the ranks.
const Dialect* find_dialect(const Environment& environment) {
  if (is_whole_torch(environment)) return &kTorch;
  for (const Dialect* d : kDialects)
    if (is_set(environment, d->size)) return d;
  return nullptr;
}

struct Claim {
  const Dialect& by;
  Place place;
};
// Whether `outer` may have started what started this rank, as mpirun starts its daemons with srun.
bool may_be_around(const Claim& inner, const Claim& outer, const Environment& environment) {
  if (&inner.by == &kTorch) return is_started_by_agent(environment) || inner.place.size != outer.place.size;
  if (&outer.by == &kSlurm) return true;
  return &outer.by == &kPmi && outer.place == place_in(kSlurm, environment);
}

void refuse_two_launchers(const Claim& chosen, const Environment& environment) {
  const auto text = [](const Claim& c) {
    return fmt::format("{} says rank {} of {} ({}, {})", c.by.label, c.place.rank, c.place.size, c.by.rank,
                       c.by.size);
  };
  for (const Dialect* other : kDialects) {
    const std::optional<Place> place = place_in(*other, environment);
    if (!place || *place == chosen.place) continue;
    const Claim its{*other, *place};
    if (may_be_around(chosen, its, environment)) continue;
    fail<ConfigError>("launch",
                      "{}, but {}: unset the variables of the launcher that did not start this process",
                      text(chosen), text(its));
  }
}

// "4(x2),3" with node 1 -> 4: tasks per node as Slurm writes them.
int slurm_local_size(const Environment& environment, int world_size) {
  const char* text = environment("SLURM_STEP_TASKS_PER_NODE");
  if (!text) return world_size;
  int node = read(environment, "SLURM_NODEID").value_or(0);
  for (std::string_view item : split_text(text, ',')) {
    size_t open = item.find("(x");
    int tasks = number("SLURM_STEP_TASKS_PER_NODE", item.substr(0, open));
    int nodes = open == std::string_view::npos
                    ? 1
                    : number("SLURM_STEP_TASKS_PER_NODE", item.substr(open + 2, item.size() - open - 3));
    if (node < nodes) return tasks;
    node -= nodes;
  }
  fail<ConfigError>("launch", "SLURM_STEP_TASKS_PER_NODE is '{}', which has no entry for this node", text);
}

// An address of IPv6 may be in brackets, as in a URL.
std::string_view without_brackets(std::string_view address) {
  if (address.starts_with('[') && address.ends_with(']')) return address.substr(1, address.size() - 2);
  return address;
}

// Launchers that set MASTER_PORT themselves do not pass on another one.
std::string how_to_change_port(const Dialect& d, const Environment& environment) {
  if (&d != &kTorch || !is_started_by_agent(environment)) return Master{}.other_port;
  if (is_own_launcher(environment)) return "give every ottava launch another --master-port";
  return "where torchrun chose the port (--standalone), start it again; else give it another --master-port, "
         "or another --rdzv-endpoint if it has one";
}

// torchrun's agent keeps a store of its own on MASTER_PORT, so ranks must meet at another port that all know.
Master read_master(const Dialect& d, const Environment& environment) {
  Master master{.other_port = how_to_change_port(d, environment)};
  if (const char* address = environment("MASTER_ADDR")) master.address = without_brackets(address);
  master.port = read(environment, "MASTER_PORT").value_or(master.port);
  const char* agent = environment("TORCHELASTIC_USE_AGENT_STORE");
  if (agent && std::string_view(agent) == "True") ++master.port;
  if (master.port < 1 || master.port > 65535) {
    fail<ConfigError>("launch", "MASTER_PORT is {}, expected 1 to 65535", master.port);
  }
  return master;
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

namespace {

struct LocalPlace {
  int rank, size;
};
Launch::LocalPlace known_of(const Dialect& d, const Place& place, const Environment& environment) {
  if (&d != &kTorch || place.size == 1) return Launch::LocalPlace::known;
  if (!is_set(environment, d.local_rank)) return Launch::LocalPlace::unknown;
  return is_set(environment, d.local_size) ? Launch::LocalPlace::known : Launch::LocalPlace::size_unknown;
}
// Slurm's and Cray's process managers set none of Hydra's variables.
LocalPlace local_place(const Dialect& d, const Place& place, const Environment& environment) {
  const auto by_slurm = [&] {
    return LocalPlace{read(environment, kSlurm.local_rank).value_or(place.rank),
                      slurm_local_size(environment, place.size)};
  };
  if (&d == &kSlurm) return by_slurm();
  if (&d == &kPmi && !is_set(environment, d.local_rank)) {
    if (is_set(environment, "PMI_LOCAL_RANK") && is_set(environment, "PMI_LOCAL_SIZE"))
      return {*read(environment, "PMI_LOCAL_RANK"), *read(environment, "PMI_LOCAL_SIZE")};
    if (place_in(kSlurm, environment) == place) return by_slurm();
  }
  if (known_of(d, place, environment) == Launch::LocalPlace::unknown) return {place.rank, place.size};
  return {read(environment, d.local_rank).value_or(place.rank),
          read(environment, d.local_size).value_or(place.size)};
}

}  // namespace

Launch detect_launch(const Environment& environment) {
  const Dialect* d = find_dialect(environment);
  if (!d) return {.source = "one process"};
  const std::optional<Place> place = place_in(*d, environment);
  if (!place)
    fail<ConfigError>("launch", "{} is set but {} is not, and {} sets both: unset it to start one process",
                      d->size, d->rank, d->label);
  refuse_two_launchers({*d, *place}, environment);
  const LocalPlace local = local_place(*d, *place, environment);
  const bool is_own = d == &kTorch && is_own_launcher(environment);
  Launch launch{d->launcher,
                place->rank,
                place->size,
                local.rank,
                local.size,
                fmt::format("{} ({})", is_own ? "ottava launch" : d->label, d->size),
                read_master(*d, environment),
                known_of(*d, *place, environment)};
  if (launch.world_size < 1 || launch.rank >= launch.world_size || launch.local_rank >= launch.local_size ||
      launch.local_size > launch.world_size) {
    fail<ConfigError>("launch", "{} says rank {} of {}, local rank {} of {}, which is inconsistent",
                      launch.source, launch.rank, launch.world_size, launch.local_rank, launch.local_size);
  }
  return launch;
}

int choose_gpu(const Launch& launch, int visible, GpuSharing sharing) {
  if (visible < 1) fail<ConfigError>("launch", "rank {} sees no GPU", launch.rank);
  if (visible == 1 && launch.local_size > 1) return 0;  // its own, or shared: require_own_gpus finds out
  if (launch.local_rank < visible) return launch.local_rank;
  if (sharing == GpuSharing::allowed) return launch.local_rank % visible;
  fail<ConfigError>("launch",
                    "{} ranks on {} would share {} GPUs, which NCCL does not support: start {} ranks per "
                    "machine, or use comm.backend mpi or tcp{}",
                    launch.local_size, host_name(), visible, visible, advice_of_hidden_gpus(launch, visible));
}

std::string advice_of_hidden_gpus(const Launch& launch, int visible) {
  if (visible >= launch.local_size) return "";
  return fmt::format(
      "; rank {} sees {}, and its machine has {} ranks: if it has more GPUs, show all of them to each rank "
      "(Slurm: --gpus-per-node in place of --gpus-per-task, and --gpu-bind=none)",
      launch.rank, counted(visible, "GPU"), launch.local_size);
}

std::string gpu_title(int index, const Environment& environment) {
  std::string token = fmt::format("{}", index);
  if (const char* visible = environment("CUDA_VISIBLE_DEVICES"); visible && *visible) {
    const std::vector<std::string_view> shown = split_text(visible, ',');
    token = shown[std::min<size_t>(index, shown.size() - 1)];
  }
  return fmt::format("{}/{}", host_name(), token);
}

void require_own_gpus(const std::vector<std::string>& uuids, const std::vector<std::string>& titles) {
  std::map<std::string, size_t> first;
  for (size_t r = 0; r < uuids.size(); ++r) {
    auto [entry, is_new] = first.try_emplace(uuids[r], r);
    if (is_new) continue;
    fail<ConfigError>("launch",
                      "ranks {} and {} would share one GPU ({}), which NCCL does not support: start one rank "
                      "per GPU, or use comm.backend mpi or tcp",
                      entry->second, r, titles[r]);
  }
}

bool shows_log(int rank, const Environment& environment) {
  const char* listed = environment("LOG_RANK");
  if (!listed || !*listed) return rank == 0;
  return std::ranges::any_of(split_text(listed, ','),
                             [&](std::string_view text) { return number("LOG_RANK", text) == rank; });
}

}  // namespace ottava
