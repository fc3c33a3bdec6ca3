#include "apps/wait_policy.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/log.h"

namespace ottava {
namespace {
// About 0.05 ms; libgomp's own value is 300,000. Fewer, or none, cost up to a tenth on a quiet machine, where
// the next loop comes sooner than a thread wakes up; twice as many cost a tenth beside a busy process.
constexpr const char* kSpins = "5000";
}  // namespace

void settle_wait_policy(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  std::error_code error;
  // By its path: /proc/self/exe would become the name that ps shows.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    if (::setenv("GOMP_SPINCOUNT", kSpins, 1) == 0) ::execv(program.c_str(), argv);
    error = {errno, std::generic_category()};
    ::unsetenv("GOMP_SPINCOUNT");
  }
  log::warning(
      "[threads] cannot start again with GOMP_SPINCOUNT={} ({}): threads spin while they wait, which is slow "
      "beside other busy processes; set GOMP_SPINCOUNT or OMP_WAIT_POLICY before the start",
      kSpins, error.message());
}

}  // namespace ottava
