// Resources of the process, from a temporary file system.
#include "ejk/program/machine.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <string>
#include <thread>
#include <vector>

#include "ejk/mask_info.hpp"
#include "settings/fake_root.hpp"
#include "support/shell.hpp"

TEST_CASE("the quota of any control group above limits the cores, rounded up") {
  const FakeRoot root;
  CHECK(ejk::usable_cores(root.path) >= 1);
  root.file("/proc/self/cgroup", "0::/a/b\n");
  root.file("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  const int free = ejk::usable_cores(root.path);
  root.file("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  CHECK(free >= 1);
  CHECK(ejk::usable_cores(root.path) == 1);
}

TEST_CASE("control groups of version 1 count too") {
  const FakeRoot root;
  root.file("/proc/self/cgroup", "4:cpu,cpuacct:/x\n7:memory:/x\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "100000\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  root.file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000000\n");
  root.file("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "300000\n");
  CHECK(ejk::usable_cores(root.path) == 1);
  CHECK(ejk::memory_limit(root.path) == 700000);
}

TEST_CASE("memory is the least of what is available and what the group has left, page cache not counted") {
  const FakeRoot root;
  root.file("/proc/meminfo", "MemTotal:  4000 kB\nMemAvailable:   2000 kB\n");
  CHECK(ejk::memory_limit(root.path) == 2000 * 1024);
  root.file("/proc/self/cgroup", "0::/\n");
  root.file("/sys/fs/cgroup/memory.max", "1000000\n");
  root.file("/sys/fs/cgroup/memory.current", "900000\n");
  root.file("/sys/fs/cgroup/memory.stat", "anon 100000\ninactive_file 700000\n");
  CHECK(ejk::memory_limit(root.path) == 800000);
  root.file("/sys/fs/cgroup/memory.max", "max\n");
  CHECK(ejk::memory_limit(root.path) == 2000 * 1024);
}

TEST_CASE("a quota need not be a whole number of cores") {
  const FakeRoot root;
  CHECK_FALSE(ejk::cpu_quota(root.path).has_value());
  root.file("/proc/self/cgroup", "0::/a\n");
  root.file("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  CHECK(ejk::cpu_quota(root.path) == 2.5);
  CHECK(ejk::usable_cores(root.path) <= 3);
}

TEST_CASE("the limit of memory is the machine's or the control group's, whichever is lower") {
  const FakeRoot root;
  root.file("/proc/meminfo", "MemTotal:  4000 kB\nMemAvailable:   2000 kB\n");
  root.file("/proc/self/status", "VmData:\t 900 kB\nVmStk:\t 100 kB\nRssAnon:\t 300 kB\nVmSwap:\t 20 kB\n");
  const ejk::MemoryUsage free = ejk::get_memory_usage(root.path);
  CHECK(free.allocated_bytes == 320 * 1024);
  CHECK(free.reserved_bytes == 1000 * 1024);
  CHECK(free.limit_bytes == 4000 * 1024);
  root.file("/proc/self/cgroup", "0::/\n");
  root.file("/sys/fs/cgroup/memory.max", "1000000\n");
  CHECK(ejk::get_memory_usage(root.path).limit_bytes == 1000000);
}

TEST_CASE("memory that is touched is allocated, memory that is asked for is reserved") {
  const ejk::MemoryUsage before = ejk::get_memory_usage();
  constexpr std::size_t size = std::size_t{64} << 20;
  std::vector<char> held(size, 'x');
  const ejk::MemoryUsage after = ejk::get_memory_usage();
  CHECK(held[size / 2] == 'x');
  CHECK(after.allocated_bytes - before.allocated_bytes > static_cast<std::int64_t>(size / 2));
  CHECK(after.reserved_bytes >= after.allocated_bytes);
  CHECK(after.limit_bytes > after.allocated_bytes);
}

TEST_CASE("a timer runs on until it is restarted") {
  const ejk::Timer outer;
  ejk::Timer timer;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double first = timer.seconds();
  CHECK(first >= 0.02);
  CHECK(timer.seconds() >= first);
  timer.restart();
  const double anew = timer.seconds();
  CHECK(anew < outer.seconds());
}

TEST_CASE("peak memory is that of a living process") { CHECK(ejk::peak_memory() > 100 * 1024); }

TEST_CASE("an instruction set that is not there is refused with those that are") {
  CHECK(ejk::instruction_sets().back() == "portable");
  setenv("EJK_ISA", "portabel", 1);
  CHECK_THROWS_WITH(ejk::instruction_set(),
                    "EJK_ISA: 'portabel' is not an instruction set of this build and machine");
  unsetenv("EJK_ISA");
  CHECK_FALSE(ejk::instruction_set().empty());
}

// Run by the next one in a process of its own, since the choice is made once.
TEST_CASE("under a mistyped EJK_ISA nothing is computed" * doctest::skip()) {
  for (int call = 0; call < 2; ++call)
    CHECK_THROWS_WITH(ejk::process_mask({ejk::causal_mask(16, 16)}, {8, 8}),
                      "EJK_ISA: 'avx3' is not an instruction set of this build and machine");
}

TEST_CASE("whoever computes under an instruction set that is not there is told so") {
  const auto run = ejk::test::shell("EJK_ISA=avx3 '" EJK_TEST_PROGRAM
                                    "' -ns -tc='under a mistyped EJK_ISA nothing is computed' 2>&1");
  INFO(run.text);
  CHECK(run.status == 0);
  CHECK(run.text.find("1 passed") != std::string::npos);
}
