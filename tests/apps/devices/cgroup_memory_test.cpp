#include "apps/devices/cgroup_memory.h"

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;

namespace {

class FakeRoot {
 public:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<int64_t> left() const { return cgroup_memory_left(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("without control groups, or without limits, nothing is limited") {
  FakeRoot root;
  CHECK_FALSE(root.left());
  root.write("proc/self/cgroup", "0::/job\n");
  CHECK_FALSE(root.left());
  root.write("sys/fs/cgroup/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/job/memory.current", "1000\n");
  CHECK_FALSE(root.left());
  root.write("proc/self/cgroup", "nonsense\n\n:::\n0::\n");
  CHECK_FALSE(root.left());
}

TEST_CASE("version 2: the tightest group on the way to the root, with the page cache that could go") {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  root.write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  root.write("sys/fs/cgroup/slurm/job_7/step_0/memory.current", "500\n");
  root.write("sys/fs/cgroup/slurm/job_7/memory.max", "10000\n");
  root.write("sys/fs/cgroup/slurm/job_7/memory.current", "3000\n");
  CHECK(root.left() == 7000);
  root.write("sys/fs/cgroup/slurm/job_7/memory.stat", "anon 2000\ninactive_file 900\nactive_file 100\n");
  CHECK(root.left() == 7900);
  root.write("sys/fs/cgroup/slurm/memory.max", "8000\n");
  root.write("sys/fs/cgroup/slurm/memory.current", "6000\n");
  CHECK(root.left() == 2000);
  root.write("sys/fs/cgroup/slurm/memory.current", "9000\n");
  CHECK(root.left() == 0);
}

TEST_CASE("version 2 in a container: the group is the root of what is mounted") {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/docker/0123456789abcdef\n");  // the host's path, not visible here
  root.write("sys/fs/cgroup/memory.max", "4096\n");
  root.write("sys/fs/cgroup/memory.current", "96\n");
  CHECK(root.left() == 4000);
}

TEST_CASE("version 1: the memory controller's hierarchy") {
  FakeRoot root;
  root.write("proc/self/cgroup", "12:cpu,cpuacct:/a\n5:hugetlb,memory:/a\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "77\n");
  CHECK_FALSE(root.left());
  root.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n");
  root.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1500\n");
  root.write("sys/fs/cgroup/memory/a/memory.stat", "cache 600\ninactive_file 1\ntotal_inactive_file 500\n");
  CHECK(root.left() == 4000);
}
