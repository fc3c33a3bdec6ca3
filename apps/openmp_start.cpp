#include "apps/openmp_start.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "core/log.h"
#include "core/threads/allowed_cpus.h"
#include "parallel/ranks/launch.h"

#if !defined(OTTAVA_SERIAL)
#include <omp.h>
#endif

namespace ottava {
namespace {

// About 0.05 ms; libgomp's own value is 300,000. Fewer, or none, cost up to a tenth on a quiet machine, where
// the next loop comes sooner than a thread wakes up; twice as many cost a tenth beside a busy process.
constexpr const char* kSpins = "5000";

// Whether the runtime binds threads. A program that was started again because of it does not look again.
bool binds_threads() {
#if defined(OTTAVA_SERIAL)
  return false;
#else
  return omp_get_proc_bind() != omp_proc_bind_false && !std::getenv(kOmpBinding);
#endif
}

std::vector<int> cpus_of_places() {
  std::vector<int> cpus;
#if !defined(OTTAVA_SERIAL)
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> own(static_cast<size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, own.data());
    cpus.insert(cpus.end(), own.begin(), own.end());
  }
#endif
  return cpus;
}

// "OMP_PROC_BIND=close OMP_PLACES=cores"
std::string binding_variables() {
  std::string said;
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) {
    if (const char* value = std::getenv(name))
      said += fmt::format("{}{}={}", said.empty() ? "" : " ", name, value);
  }
  return said;
}

void unbind() {
  if (!allow_cpus(cpus_of_places()))
    log::warning("[threads] cannot leave the CPU to which {} binds this process: unset it before the start",
                 binding_variables());
  ::setenv(kOmpBinding, binding_variables().c_str(), 1);
  ::setenv("OMP_PROC_BIND", "false", 1);
}

}  // namespace

void settle_openmp(char** argv) {
  const bool spins = !std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT");
  const bool binds = binds_threads();
  if (!spins && !binds) return;
  if (binds) unbind();
  std::error_code error;
  // By its path: /proc/self/exe would become the name that ps shows.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    if (spins) ::setenv("GOMP_SPINCOUNT", kSpins, 1);
    ::execv(program.c_str(), argv);
    error = {errno, std::generic_category()};
    if (spins) ::unsetenv("GOMP_SPINCOUNT");
  }
  if (spins) {
    log::warning(
        "[threads] cannot start again with GOMP_SPINCOUNT={} ({}): threads spin while they wait, which is "
        "slow beside other busy processes; set GOMP_SPINCOUNT or OMP_WAIT_POLICY before the start",
        kSpins, error.message());
  }
  if (binds) {
    log::warning(
        "[threads] cannot start again without {} ({}): ranks of one machine may bind their threads to the "
        "same CPUs; unset it before the start",
        std::getenv(kOmpBinding), error.message());
    ::unsetenv(kOmpBinding);
  }
}

}  // namespace ottava
