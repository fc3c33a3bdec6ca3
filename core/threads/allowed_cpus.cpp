#include "core/threads/allowed_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "core/error.h"
#include "core/text/listed.h"
#include "core/text/number.h"
#include "core/text/split.h"

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

std::vector<int> allowed_cpus(pid_t process) {
  // The kernel refuses a set that has no room for every CPU that the machine could have.
  constexpr size_t kMost = size_t{1} << 20;
  for (size_t room = CPU_SETSIZE; room <= kMost; room *= 2) {
    const CpuSet set(room);
    if (::sched_getaffinity(process, set.bytes(), set.get()) != 0) {
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

namespace {

bool allow_thread(pid_t thread, const std::vector<int>& cpus) {
  if (cpus.empty()) return false;
  const CpuSet set(static_cast<size_t>(*std::ranges::max_element(cpus)) + 1);
  for (int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), set.bytes(), set.get());
  return ::sched_setaffinity(thread, set.bytes(), set.get()) == 0;
}

int cpu_number(std::string_view text) {
  const int cpu = parse_number<int>(text).value_or(-1);
  if (cpu < 0) fail<ConfigError>("cpus", "'{}' is not the number of a CPU", text);
  return cpu;
}

}  // namespace

bool allow_cpus(const std::vector<int>& cpus) { return allow_thread(0, cpus); }

bool allow_cpus_everywhere(const std::vector<int>& cpus) {
  if (!allow_cpus(cpus)) return false;
  std::error_code error;
  for (std::filesystem::directory_iterator task("/proc/self/task", error), end; !error && task != end;
       task.increment(error)) {
    const std::optional<pid_t> thread = parse_number<pid_t>(task->path().filename().string());
    if (thread && !allow_thread(*thread, cpus) && errno != ESRCH) return false;  // one may have just ended
  }
  return true;
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string list;
  for (size_t first = 0, next; first < cpus.size(); first = next) {
    for (next = first + 1; next < cpus.size() && cpus[next] == cpus[next - 1] + 1;) ++next;
    const int last = cpus[next - 1];
    add_item(list, last == cpus[first] ? std::to_string(last) : fmt::format("{}-{}", cpus[first], last), ",");
  }
  return list;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  if (text.empty()) return cpus;
  for (std::string_view item : split_text(text, ',')) {
    const size_t dash = item.find('-');
    const int first = cpu_number(item.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : cpu_number(item.substr(dash + 1));
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace ottava
