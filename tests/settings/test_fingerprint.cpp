// Fingerprints: golden cases, and machines in a temporary file system.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>

#include "ejk/program/machine.hpp"
#include "settings/fake_root.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

Device device_of(const nlohmann::json& p) {
  Device device;
  device.platform = p.at("platform");
  device.kind = p.value("device_kind", device.platform);
  const std::string query = p.value("query", "raised");
  device.query = query == "ok"       ? GpuQuery::Outcome::done
                 : query == "failed" ? GpuQuery::Outcome::failed
                                     : GpuQuery::Outcome::not_run;
  device.driver_version = p.value("driver_version", "");
  // As query_gpus hands it on.
  while (device.driver_version.ends_with('\n')) device.driver_version.pop_back();
  return device;
}

}  // namespace

TEST_CASE("golden cases of fingerprints") {
  for (const golden::Case& c : golden::load("device_fingerprint")) {
    CAPTURE(c.name);
    CHECK(device_fingerprint(device_of(c.params)) == c.texts.at("fingerprint"));
  }
  for (const golden::Case& c : golden::load("device_fingerprint_ejkernel"))
    CHECK(device_fingerprint(device_of(c.params), Convention::ejkernel) == c.texts.at("fingerprint"));
}

TEST_CASE("the device is the first GPU, whether its tool answers or the driver alone knows of it") {
  const FakeRoot root;
  GpuQuery none;
  CHECK(device_fingerprint(default_device(none, root.path)) == "cpu|");
  GpuQuery two;
  two.outcome = GpuQuery::Outcome::done;
  two.gpus = {{"NVIDIA A100", "535.1", {}}, {"NVIDIA T4", "535.1", {}}};
  CHECK(device_fingerprint(default_device(two, root.path)) == "gpu|cuda_535.1");
  CHECK(device_fingerprint(default_device(two, root.path), Convention::ejkernel) == "NVIDIA A100|cuda 535.1");
  root.file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: x\n");
  CHECK(device_fingerprint(default_device(none, root.path)) == "gpu|cuda_unknown");
  none.outcome = GpuQuery::Outcome::failed;
  CHECK(device_fingerprint(default_device(none, root.path)) == "gpu|");
}

TEST_CASE("a machine is read from its files") {
  const FakeRoot root;
  root.file("/proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu avx2 sse4_2 wp avx512f\n\n"
            "processor\t: 1\nmodel name\t: Another\n");
  root.file("/proc/meminfo", "MemTotal:  4000 kB\nMemAvailable:   2000 kB\n");
  root.file("/proc/self/cgroup", "0::/\n");
  root.file("/sys/fs/cgroup/memory.max", "1000000\n");
  root.file("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  root.file("/sys/devices/system/cpu/online", "0-5,8\n");
  root.file("/sys/devices/system/cpu/cpu0/cache/index0/level", "1\n");
  root.file("/sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n");
  root.file("/sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n");
  root.file("/sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0,4\n");
  root.file("/sys/devices/system/cpu/cpu0/cache/index1/level", "3\n");
  root.file("/sys/devices/system/cpu/cpu0/cache/index1/type", "Unified\n");
  root.file("/sys/devices/system/cpu/cpu0/cache/index1/size", "32M\n");
  const Machine machine = inspect_machine({}, root.path);
  CHECK(machine.cpu == "Some CPU @ 3 GHz");
  CHECK(machine.vector_extensions == std::vector<std::string>{"avx2", "sse4_2", "avx512f"});
  CHECK(machine.cores == 7);
  CHECK(machine.usable_cores <= 2);
  CHECK(machine.cpu_quota == 1.5);
  CHECK(machine.memory_bytes == 4000 * 1024);
  CHECK(machine.memory_limit_bytes == 1000000);
  REQUIRE(machine.caches.size() == 2);
  CHECK(machine.caches[0].name == "L1d");
  CHECK(machine.caches[0].bytes == 48 * 1024);
  CHECK(machine.caches[0].shared_by == 2);
  CHECK(machine.caches[1].name == "L3");
  CHECK(machine.caches[1].bytes == 32 << 20);
  CHECK(machine.caches[1].shared_by == 1);
}

TEST_CASE("a machine of which nothing can be found is described all the same") {
  const FakeRoot root;
  const Machine machine = inspect_machine({}, root.path);
  CHECK_FALSE(machine.cpu.empty());
  CHECK(machine.cores >= 1);
  const std::string text = to_text(describe(machine));
  CHECK(text.starts_with("cpu|\n"));
  CHECK(to_text(describe(machine, Convention::ejkernel)).starts_with("cpu|cpu\n"));
  CHECK(nlohmann::json::parse(to_json(describe(machine), {})).at("result").at("fingerprint") == "cpu|");
}
