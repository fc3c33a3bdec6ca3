#include "parallel/ranks/world.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/cuda/runtime.h"
#include "core/host_name.h"
#include "core/log.h"
#include "core/text/error_text.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/all_ranks.h"
#include "parallel/comm/messages/host_communicator.h"
#include "parallel/comm/mpi/mpi_communicator.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/sockets/tcp_port.h"
#include "parallel/comm/solo_communicator.h"
#include "parallel/ranks/account.h"
#include "parallel/ranks/master.h"

namespace ottava {
namespace {

constexpr const char* kHowUnderSrun =
    "start the ranks with srun --mpi=pmix, or --mpi=pmi2 for MPICH and Intel MPI (srun --mpi=list shows what "
    "this Slurm has), or set MASTER_ADDR to rank 0's machine, which needs no MPI";

using Backend = CommConfig::Backend;

bool wants_nccl(Backend backend, Device device) {
  check_backend(backend, device);
  return backend == Backend::nccl || (backend == Backend::automatic && device.is_gpu() && nccl::available());
}

// MPI is used if it started the ranks: under mpirun, unless its module is missing and it is known where rank
// 0 is; under srun unless that is known.
bool wants_mpi(const Launch& launch, const WorldRequest& request) {
  if (request.backend == Backend::mpi) return true;
  if (request.backend == Backend::tcp) return false;
  if (launch.launcher == Launcher::environment) return false;
  if (launch.master.address.empty()) return true;
  return launch.launcher == Launcher::mpi && mpi::available();
}

std::unique_ptr<Communicator> meet_over_tcp(const Launch& launch, const WorldRequest& request) {
  const MasterBootstrap::Self self{launch.rank, launch.world_size};
  MasterBootstrap bootstrap(launch.master, self, request.init_timeout_seconds, request.while_meeting);
  auto state = std::make_shared<RankState>(self.rank, self.size);
  state->set_timeout_seconds(request.init_timeout_seconds);
  auto port = std::make_shared<TcpPort>(bootstrap, bootstrap.own_address(), state, TcpPort::Options{});
  // No rank leaves the master before every rank has every address.
  bootstrap.all_gather("done");
  return make_message_world(std::move(port), std::move(state));
}

// OpenMPI ends the process there, and advises to build OpenMPI anew.
void advise_of_srun(const Launch& launch) {
  if (launch.launcher != Launcher::slurm || launch.rank != 0) return;
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_CONTROL_PORT", "PALS_RANKID"})
    if (std::getenv(name)) return;
  log::warning("srun has set no variable of PMIx or PMI, by which MPI finds the other ranks: if it fails, {}",
               kHowUnderSrun);
}

std::unique_ptr<Communicator> find_others(const Launch& launch, const WorldRequest& request) {
  bool by_mpi = wants_mpi(launch, request);
  if (by_mpi && launch.launcher == Launcher::environment) {
    fail<ConfigError>("world",
                      "comm.backend is mpi, but the ranks were started by {}: start them with mpirun or srun "
                      "--mpi=pmix, or set comm.backend to auto",
                      launch.source);
  }
  if (by_mpi) {
    advise_of_srun(launch);
    return mpi::make_world({.timeout_seconds = request.init_timeout_seconds});
  }
  if (launch.master.address.empty()) {
    fail<ConfigError>("world",
                      "started by {} with {} ranks, but the address of rank 0 is unknown: set MASTER_ADDR "
                      "(and MASTER_PORT) to an address of its machine",
                      launch.source, launch.world_size);
  }
  return meet_over_tcp(launch, request);
}

// training.device auto is the CPU on a machine whose GPUs cannot be used, and NCCL would wait for its ranks.
void require_same_kind(Communicator& control, Device device) {
  CommunicatorBootstrap ranks(control);
  const std::vector<std::string> kinds = ranks.all_gather(device.is_gpu() ? "a GPU" : "the CPU");
  const auto other = std::ranges::find_if(kinds, [&](const std::string& kind) { return kind != kinds[0]; });
  if (other == kinds.end()) return;
  const std::string why = device.is_gpu() ? "" : cuda_unavailable_reason();
  const std::vector<std::string> places =
      ranks.all_gather(host_name("its machine") + (why.empty() ? "" : fmt::format(" ({})", why)));
  const size_t rank = other - kinds.begin();
  meet_before_refusing(control);
  fail<ConfigError>(
      "world",
      "rank 0 trains on {} of {}, but rank {} on {} of {}: all ranks need GPUs that can be used, or "
      "training.device cpu",
      kinds[0], places[0], rank, kinds[rank], places[rank]);
}

// What keeps this rank from doing it, and where; empty: nothing.
std::string complaint_about(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::exception& error) {
    return fmt::format("on {}: {}", host_name("its machine"), error_text(error));
  }
}

// Each rank that finds no launcher takes itself for the only one.
void require_same_place(const Communicator& mpi, const Launch& launch) {
  if (mpi.rank() == launch.rank && mpi.size() == launch.world_size) return;
  const bool is_alone = launch.launcher == Launcher::slurm && mpi.size() == 1;
  const std::string_view left_over =
      mpi.size() == 1 ? "; if the launcher did not start this process, unset the variables that it left" : "";
  fail<CommError>(
      "world", "{} says rank {} of {}, but MPI says {} of {}: {}", launch.source, launch.rank,
      launch.world_size, mpi.rank(), mpi.size(),
      is_alone
          ? fmt::format("{}; if they were, libottava_mpi.so was compiled for an MPI that Slurm does not "
                        "know",
                        kHowUnderSrun)
          : fmt::format(
                "libottava_mpi.so was compiled for another MPI than this launcher's; compile it with its "
                "mpicxx{}",
                left_over));
}

void connect(World& world, const WorldRequest& request) {
  const Launch& launch = world.launch;
  bool by_nccl = false;
  MachineCpus cpus = own_cpus();
  const auto choose = [&] {
    request.use_cpus(cpus);
    world.training_device = request.find_device();
    by_nccl = wants_nccl(request.backend, world.training_device);
    if (by_nccl && launch.world_size > 1) nccl::require_library();
  };
  if (launch.world_size == 1) {  // whatever started it: there is no other to find
    choose();
    world.control = std::make_unique<SoloCommunicator>();
    return;
  }
  world.control = find_others(launch, request);
  require_same_place(*world.control, launch);
  CommunicatorBootstrap bootstrap(*world.control);
  world.ledger = std::make_unique<Ledger>(world.control->shared_state(), bootstrap,
                                          Ledger::Options{.last_seconds = request.last_seconds});
  cpus = gather_machine_cpus(bootstrap);
  require_no_complaint(*world.control, complaint_about(choose), "device");
  require_same_kind(*world.control, world.training_device);
  if (!by_nccl) return;
  const int gpu = world.training_device.index;
  require_own_gpus(bootstrap.all_gather(cuda::device_uuid(gpu)), bootstrap.all_gather(gpu_title(gpu)));
  world.device = nccl::make_world(bootstrap, world.control->shared_state(),
                                  {.gpu = gpu,
                                   .max_ctas = request.max_ctas,
                                   .advice = advice_of_hidden_gpus(launch, cuda_device_count())});
}

}  // namespace

void check_backend(CommConfig::Backend backend, Device device) {
  if (backend != Backend::nccl || device.is_gpu()) return;
  const std::string why = cuda_unavailable_reason();
  fail<ConfigError>("world", "comm.backend is nccl, but the device is {}{}: use mpi, tcp or auto",
                    to_string(device), why.empty() ? "" : fmt::format(" ({})", why));
}

namespace {

std::unique_ptr<Communicator> share(Communicator& of) { return of.split("world", all_ranks(of.size())); }

}  // namespace

std::unique_ptr<Communicator> World::share_tensors() const { return share(tensors()); }
std::unique_ptr<Communicator> World::share_control() const { return share(*control); }

void run_rank(const Launch& launch, const WorldRequest& request, const std::function<void(World&)>& body) {
  World world{.launch = launch};
  try {
    connect(world, request);
    body(world);
    // Ranks of a machine end NCCL's communicators together, and one that hangs in it must not pass unnoticed:
    // until all have said farewell the others wait for it, and the ledger ends it with them.
    world.device.reset();
    if (world.control->size() > 1) {
      Stream stream = Stream::cpu();
      world.control->barrier(stream, "farewell");
    }
  } catch (const std::exception& error) {
    if (world.control) world.control->abort(error_text(error));
    // Before the communicators: what it said is out, and they may take a while to end. Those of NCCL may
    // never, since an abort waits for the other ranks of the machine, of which one may hang
    // (NVIDIA/nccl#863).
    if (world.ledger) world.ledger->watch_to_the_end();
    world.ledger.reset();
    throw;
  }
  world.ledger.reset();
  world.control.reset();
}

int report_failure(const Launch& launch, const std::exception& error) {
  log::set_rank({launch.rank, launch.world_size, launch.rank != 0});
  const std::string text = error_text(error);
  std::fflush(stdout);  // what was said before comes before
  if (!tell_launcher(text, log::line(log::Level::error, text), Printed::to_stdout)) log::error("{}", text);
  if (launch.world_size > 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  return 1;
}

}  // namespace ottava
