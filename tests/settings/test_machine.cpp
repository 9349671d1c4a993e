// What the process may use, read from a file system made for the test.
#include "ejk/machine.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

struct FakeRoot {
  std::string path;
  FakeRoot() {
    std::string name = std::filesystem::temp_directory_path() / "ejk_machine_XXXXXX";
    path = mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path); }
  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path + name).parent_path());
    std::ofstream(path + name) << text;
  }
};

}  // namespace

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

TEST_CASE("peak memory is that of a living process") { CHECK(ejk::peak_memory() > 100 * 1024); }
