#include "core/allowed_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace ottava {
namespace {

// For CPUs 0 to cpus - 1.
class CpuSet {
 public:
  explicit CpuSet(size_t cpus) : bytes_(CPU_ALLOC_SIZE(cpus)), set_(CPU_ALLOC(cpus), free) {
    CPU_ZERO_S(bytes_, set_.get());
  }
  size_t bytes() const { return bytes_; }
  cpu_set_t* get() const { return set_.get(); }

 private:
  static void free(cpu_set_t* set) { CPU_FREE(set); }
  size_t bytes_;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set_;
};

}  // namespace

std::vector<int> allowed_cpus() {
  // The kernel refuses a set that has no room for every CPU that the machine could have.
  constexpr size_t kMost = size_t{1} << 20;
  for (size_t room = CPU_SETSIZE; room <= kMost; room *= 2) {
    const CpuSet set(room);
    if (::sched_getaffinity(0, set.bytes(), set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (size_t cpu = 0; cpu < room; ++cpu)
      if (CPU_ISSET_S(cpu, set.bytes(), set.get())) cpus.push_back(static_cast<int>(cpu));
    return cpus;
  }
  return {};
}

bool allow_cpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return false;
  const CpuSet set(static_cast<size_t>(*std::ranges::max_element(cpus)) + 1);
  for (int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), set.bytes(), set.get());
  return ::sched_setaffinity(0, set.bytes(), set.get()) == 0;
}

}  // namespace ottava
