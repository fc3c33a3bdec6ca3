#include "parallel/ranks/cpu_quota.h"

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;

TEST_CASE("a quota of CPU time is the least of the control groups on the way to the root") {
  const TemporaryFolder root;
  const auto quota = [&] { return cpu_quota(root.path()); };
  CHECK_FALSE(quota());
  root.write("proc/self/cgroup", "0::/pods/pod7\n");
  CHECK_FALSE(quota());
  root.write("sys/fs/cgroup/pods/pod7/cpu.max", "max 100000\n");
  CHECK_FALSE(quota());
  root.write("sys/fs/cgroup/pods/cpu.max", "250000 100000\n");
  CHECK(quota() == 2.5);
  root.write("sys/fs/cgroup/pods/pod7/cpu.max", "100000 200000\n");
  CHECK(quota() == 0.5);
  // In a container the path may be the host's: the root is what counts.
  root.write("proc/self/cgroup", "0::/docker/0123456789abcdef\n");
  CHECK_FALSE(quota());
  root.write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  CHECK(quota() == 4);
}

TEST_CASE("a quota of CPU time of version 1 is in the hierarchy of its controller") {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "12:cpu,cpuacct:/a\n5:memory:/b\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(cpu_quota(root.path()));
  root.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "300000\n");
  root.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(root.path()) == 3);
}
