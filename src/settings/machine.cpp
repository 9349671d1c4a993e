// Limits and memory use of this process, from /proc and /sys/fs/cgroup.
//
// A control group is at /sys/fs/cgroup/<path> (version 2) or /sys/fs/cgroup/<controller>/<path> (version 1),
// path from /proc/self/cgroup, limited by all its parents. In a container the mounted root may be the group.
//
// tests: tests/settings/test_machine.cpp
#include "ejk/program/machine.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/error.hpp"
#include "ejk/program/text.hpp"
#include "kernels/kernels.hpp"
#include "settings/text_file.hpp"

namespace ejk {

namespace {

using settings::first_line;
using settings::lines_of;
using settings::number_after;
using settings::split;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// "12345" → 12345; "max" and whatever else is no number → nothing.
std::optional<std::int64_t> number_in(const std::string& path) { return parse_integer(first_line(path)); }

// The folders of this process's control group for `controller` ("" is version 2) and of all groups above.
std::vector<std::string> control_groups(const std::string& root, const std::string& controller) {
  std::vector<std::string> folders;
  for (const std::string& line : lines_of(root + "/proc/self/cgroup")) {  // id:controller,controller:/path
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (fmt::format(",{},", controllers).find(fmt::format(",{},", controller)) == std::string::npos) continue;
    const std::string base =
        fmt::format("{}/sys/fs/cgroup{}{}", root, controllers.empty() ? "" : "/", controllers);
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      folders.push_back(base + path);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return folders;
}

// The limit of this process's address space.
std::int64_t address_space() {
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return static_cast<std::int64_t>(std::min<rlim_t>(space.rlim_cur, kUnlimited));
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  const auto limit_to = [&](std::int64_t quota, std::int64_t period) {
    if (quota < 1 || period < 1) return;
    const double cores = static_cast<double>(quota) / static_cast<double>(period);
    least = std::min(cores, least.value_or(cores));
  };
  for (const std::string& folder : control_groups(root, "")) {
    const std::vector<std::string> words = split(first_line(folder + "/cpu.max"), ' ');  // "max 100000"
    if (words.size() == 2)
      limit_to(parse_integer(words[0]).value_or(-1), parse_integer(words[1]).value_or(-1));
  }
  for (const std::string& folder : control_groups(root, "cpu"))
    limit_to(number_in(folder + "/cpu.cfs_quota_us").value_or(-1),
             number_in(folder + "/cpu.cfs_period_us").value_or(-1));
  return least;
}

int usable_cores(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  if (cores < 1) cores = static_cast<int>(std::max<long>(sysconf(_SC_NPROCESSORS_ONLN), 1));
  if (const auto quota = cpu_quota(root); quota && *quota < cores)
    cores = static_cast<int>(std::ceil(*quota));
  return cores;
}

std::int64_t memory_limit(const std::string& root) {
  std::int64_t least = kUnlimited;
  if (const auto available = number_after(root + "/proc/meminfo", "MemAvailable")) least = *available * 1024;

  const auto group = [&](const std::string& folder, const char* limit, const char* use, const char* cache) {
    const auto most = number_in(folder + limit);
    if (!most) return;
    const auto droppable = number_after(folder + "/memory.stat", cache).value_or(0);
    const auto used = std::max<std::int64_t>(number_in(folder + use).value_or(0) - droppable, 0);
    least = std::min(least, std::max<std::int64_t>(*most - used, 0));
  };
  for (const std::string& folder : control_groups(root, ""))
    group(folder, "/memory.max", "/memory.current", "inactive_file");
  for (const std::string& folder : control_groups(root, "memory"))
    group(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file");

  if (const std::int64_t most = address_space(); most < kUnlimited) {
    const auto used = number_after(root + "/proc/self/status", "VmSize").value_or(0) * 1024;
    least = std::min(least, std::max<std::int64_t>(most - used, 0));
  }
  return least;
}

MemoryUsage get_memory_usage(const std::string& root) {
  const auto status_bytes = [&](const char* key) {
    return number_after(root + "/proc/self/status", key).value_or(0) * 1024;
  };
  MemoryUsage usage;
  usage.allocated_bytes = status_bytes("RssAnon") + status_bytes("VmSwap");
  usage.reserved_bytes = std::max(status_bytes("VmData") + status_bytes("VmStk"), usage.allocated_bytes);
  usage.limit_bytes = address_space();
  const auto limit_to = [&](std::optional<std::int64_t> bytes) {
    if (bytes) usage.limit_bytes = std::min(usage.limit_bytes, *bytes);
  };
  if (const auto total = number_after(root + "/proc/meminfo", "MemTotal")) limit_to(*total * 1024);
  for (const std::string& folder : control_groups(root, "")) limit_to(number_in(folder + "/memory.max"));
  for (const std::string& folder : control_groups(root, "memory"))
    limit_to(number_in(folder + "/memory.limit_in_bytes"));
  return usage;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const kernels::Kernels& row : kernels::all())
    if (kernels::supported(row)) names.emplace_back(row.name);
  return names;
}

std::string instruction_set() {
  if (const char* requested = std::getenv("EJK_ISA"); requested != nullptr && *requested != '\0')
    kernels::row_named(requested);
  return kernels::active().name;
}

std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  // Resident pages of mapped files are reclaimable. The peak includes them, and may lag.
  const std::int64_t file_kib = number_after("/proc/self/status", "RssFile").value_or(0),
                     own_kib = number_after("/proc/self/status", "RssAnon").value_or(0);
  return std::max<std::int64_t>(usage.ru_maxrss - file_kib, own_kib) * 1024;
}

}  // namespace ejk
