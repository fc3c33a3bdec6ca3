#include "apps/devices/available_memory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "core/buffer.h"
#include "core/error.h"
#include "parallel/comm/solo_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"

using namespace ottava;

namespace {

constexpr Device kHere{DeviceType::cpu, 0};
constexpr int64_t kAllowed = int64_t{300} << 20;

// What is not so in a process that may take so much more by `ulimit OPTION`.
std::string complaint_of_limited(const std::string& option) {
  SoloCommunicator alone;
  if (memory_for_rank(kHere, alone) > kAllowed) return "more is said to be left than there is";
  try {
    const Buffer buffer(kHere, 4 * kAllowed);
    return "more was given than is allowed";
  } catch (const MemoryError& error) {
    const std::string text = error.what();
    return text.find(" GiB are free, but ulimit " + option + " allows this process ") == std::string::npos
               ? text
               : "";
  }
}

struct Limit {
  __rlimit_resource_t resource;
  const char* option;
  int field;  // of /proc/self/statm: how many pages of it there are
};

}  // namespace

TEST_CASE("a process has no more memory than ulimit -v and ulimit -d allow it") {
  const Limit limited = GENERATE(Limit{RLIMIT_AS, "-v", 0}, Limit{RLIMIT_DATA, "-d", 5});
  CAPTURE(limited.option);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = test::start_child([&] {
    int64_t pages = 0;
    std::ifstream statm("/proc/self/statm");
    for (int field = 0; field <= limited.field; ++field) statm >> pages;
    const auto most = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + kAllowed);
    const rlimit limit{most, most};
    ::setrlimit(limited.resource, &limit);
    const std::string said = complaint_of_limited(limited.option);
    if (::write(ends[1], said.data(), said.size()) != std::ssize(said)) ::_exit(1);
  });
  ::close(ends[1]);
  char said[256] = {};
  CHECK(::read(ends[0], said, sizeof said - 1) >= 0);
  ::close(ends[0]);
  CHECK(std::string(said).empty());
  const int status = test::status_of(child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("of a GPU that others have filled nothing is left, not less") {
  CHECK(share_of_gpu(6 * kGpuLibraryBytes, 2) == 2 * kGpuLibraryBytes);
  CHECK(share_of_gpu(kGpuLibraryBytes, 1) == 0);
  CHECK(share_of_gpu(kGpuLibraryBytes / 2, 1) == 0);
  CHECK(share_of_gpu(3 * kGpuLibraryBytes, 4) == 0);
}
