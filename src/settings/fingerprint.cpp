// The machine's processor, caches, memory and GPUs, from /proc and /sys.
// tests: tests/settings/test_fingerprint.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "ejk/program/machine.hpp"
#include "ejk/program/text.hpp"
#include "settings/text_file.hpp"

namespace ejk {

namespace {

using settings::first_line;
using settings::lines_of;
using settings::split;

// "key : value" lines of the first processor in /proc/cpuinfo.
std::map<std::string, std::string> first_processor(const std::string& root) {
  std::map<std::string, std::string> values;
  for (const std::string& line : lines_of(root + "/proc/cpuinfo")) {
    const auto colon = line.find(':');
    if (colon == std::string::npos && !values.empty()) break;
    if (colon == std::string::npos) continue;
    const std::string_view text = line;
    values.emplace(trimmed(text.substr(0, colon)), trimmed(text.substr(colon + 1)));
  }
  return values;
}

std::vector<std::string> vector_extensions_in(const std::string& flags) {
  static constexpr std::string_view kKnown[] = {
      "sse4_2",      "popcnt",   "avx",      "avx2",     "fma",         "f16c",     "bmi2",
      "avx512f",     "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx_vnni", "avx512_bf16",
      "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",  // x86
      "asimd",       "asimdhp",  "asimddp",  "sve",      "sve2",        "bf16",     "i8mm",
      "svebf16"};  // Arm
  std::vector<std::string> found = split(flags, ' ');
  std::erase_if(found, [](const std::string& word) {
    return std::find(std::begin(kKnown), std::end(kKnown), word) == std::end(kKnown);
  });
  return found;
}

// "0-3,8" → 5.
std::int64_t count_in_list(const std::string& list) {
  std::int64_t count = 0;
  for (const std::string& part : split(list, ',')) {
    const auto dash = part.find('-');
    const auto first = parse_integer(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_integer(part.substr(dash + 1));
    if (first && last && *last >= *first) count += *last - *first + 1;
  }
  return count;
}

std::vector<CpuCache> caches_below(const std::string& root) {
  std::vector<CpuCache> caches;
  for (int index = 0;; ++index) {
    const std::string folder = fmt::format("{}/sys/devices/system/cpu/cpu0/cache/index{}", root, index);
    const std::string level = first_line(folder + "/level");
    if (level.empty()) break;
    const std::string type = first_line(folder + "/type");
    CpuCache cache;
    cache.name = "L" + level + (type == "Data" ? "d" : type == "Instruction" ? "i" : "");
    std::string size = first_line(folder + "/size");  // "48K", in units of 1024
    if (size.ends_with('K') || size.ends_with('M')) size += "i";
    cache.bytes = parse_size(size).value_or(0);
    cache.shared_by = std::max<std::int64_t>(count_in_list(first_line(folder + "/shared_cpu_list")), 1);
    caches.push_back(std::move(cache));
  }
  return caches;
}

// The driver's own list, for machines without its tool.
bool driver_lists_gpus(const std::string& root) {
  std::error_code failed;
  return std::filesystem::directory_iterator(root + "/proc/driver/nvidia/gpus", failed) !=
         std::filesystem::directory_iterator();
}

std::string tpu_version(const std::string& kind) {
  for (const char* version : {"v2", "v3", "v4"})
    if (kind.find(version) != std::string::npos) return version;
  return "unknown";
}

}  // namespace

Device default_device(const GpuQuery& gpus, const std::string& root) {
  if (gpus.gpus.empty() && !driver_lists_gpus(root)) return {};
  Device device;
  device.platform = "gpu";
  device.query = gpus.outcome;
  device.kind = gpus.gpus.empty() ? "unknown" : gpus.gpus.front().name;
  if (!gpus.gpus.empty()) device.driver_version = gpus.gpus.front().driver_version;
  return device;
}

std::string get_device_platform() { return default_device(query_gpus()).platform; }

std::string device_fingerprint(const Device& device, Convention convention) {
  using Outcome = GpuQuery::Outcome;
  if (convention == Convention::ejkernel) {
    if (device.platform == "gpu")
      return fmt::format("{}|cuda{}{}", device.kind, device.driver_version.empty() ? "" : " ",
                         device.driver_version);
    return fmt::format("{}|{}", device.kind, device.platform);
  }
  std::string version;
  if (device.platform == "gpu")
    version = device.query == Outcome::done      ? "cuda_" + device.driver_version
              : device.query == Outcome::not_run ? "cuda_unknown"
                                                 : "";
  if (device.platform == "tpu") version = tpu_version(device.kind);
  return fmt::format("{}|{}", device.platform, version);
}

std::string device_fingerprint(Convention convention) {
  return device_fingerprint(default_device(query_gpus()), convention);
}

Machine inspect_machine(const GpuQuery& gpus, const std::string& root) {
  Machine machine;
  machine.gpus = gpus;
  machine.device = default_device(gpus, root);
  utsname names{};
  if (uname(&names) == 0) machine.architecture = names.machine;
  const auto processor = first_processor(root);
  const auto processor_field = [&](const char* key) {
    const auto at = processor.find(key);
    return at == processor.end() ? std::string() : at->second;
  };
  machine.cpu = processor_field("model name");
  if (machine.cpu.empty()) machine.cpu = machine.architecture;
  machine.vector_extensions =
      vector_extensions_in(processor_field("flags") + " " + processor_field("Features"));
  machine.cores = count_in_list(first_line(root + "/sys/devices/system/cpu/online"));
  if (machine.cores == 0) machine.cores = std::max<long>(sysconf(_SC_NPROCESSORS_ONLN), 1);
  machine.usable_cores = usable_cores(root);
  machine.cpu_quota = cpu_quota(root);
  machine.caches = caches_below(root);
  machine.memory_bytes = settings::number_after(root + "/proc/meminfo", "MemTotal").value_or(0) * 1024;
  machine.memory_limit_bytes = get_memory_usage(root).limit_bytes;
  machine.memory_available_bytes = memory_limit(root);
  return machine;
}

Report describe(const Machine& machine, Convention convention) {
  Report report;
  report.add(Line{"fingerprint", device_fingerprint(machine.device, convention)});
  report.add("convention", "convention", convention == Convention::document ? "document" : "ejkernel")
      .add("platform", "platform", machine.device.platform)
      .add("device_kind", "device", machine.device.kind)
      .add("cpu", "processor", machine.cpu)
      .add("architecture", "architecture", machine.architecture)
      .add("vector_extensions", "its vector extensions",
           fmt::format("{}", fmt::join(machine.vector_extensions, " ")))
      .add("instruction_sets", "instruction sets found",
           fmt::format("{}", fmt::join(instruction_sets(), ", ")))
      .add("instruction_set", "instruction set used", instruction_set())
      .add("cores", "cores", machine.cores)
      .add("usable_cores", "cores for this process", static_cast<std::int64_t>(machine.usable_cores));
  if (machine.cpu_quota) report.add("cpu_quota", "its control group's share, in cores", *machine.cpu_quota);
  report.add("memory", "memory", machine.memory_bytes, Unit::bytes)
      .add("memory_limit", "memory for this process", machine.memory_limit_bytes, Unit::bytes)
      .add("memory_available", "of it free now", machine.memory_available_bytes, Unit::bytes);

  Table caches{"caches",
               "caches",
               {{"name", "cache"}, {"size", "size", Unit::bytes}, {"shared_by", "cores that share it"}},
               {},
               INT64_MAX};
  for (const CpuCache& cache : machine.caches)
    caches.rows.push_back({cache.name, cache.bytes, cache.shared_by});
  report.add(std::move(caches));

  Table gpus{"gpus",
             "GPUs",
             {{"name", "GPU"}, {"driver_version", "driver"}, {"memory", "memory", Unit::bytes}},
             {},
             INT64_MAX};
  for (const Gpu& gpu : machine.gpus.gpus)
    gpus.rows.push_back({printable(gpu.name), printable(gpu.driver_version),
                         gpu.memory_bytes ? ReportValue(*gpu.memory_bytes) : ReportValue()});
  using Outcome = GpuQuery::Outcome;
  const Outcome outcome = machine.gpus.outcome;
  const auto [query, reason] = outcome == Outcome::done ? std::pair("\"done\"", "")
                               : outcome == Outcome::failed
                                   ? std::pair("\"failed\"", ": nvidia-smi reports failure")
                                   : std::pair("\"not_run\"", ": nvidia-smi cannot be run");
  report.add(JsonField{"gpu_query", query}).add(std::move(gpus));
  if (machine.gpus.gpus.empty()) report.add(Remark{fmt::format("No GPU was found{}.", reason)});
  return report;
}

}  // namespace ejk
