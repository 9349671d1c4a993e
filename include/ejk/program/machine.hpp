// Resources of this process (within a container's limits), and the machine: fingerprint, processor, caches,
// GPUs.
//
// `root` is the root of the file system (for tests). Source: the document on utilities and helpers
// (device_fingerprint, get_device_platform, get_memory_usage, timer).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/convention.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// Cores of its affinity and of its control group's CPU quota (versions 1 and 2), rounded up; at least 1.
int usable_cores(const std::string& root = "");

/// The CPU quota of the control groups in cores, perhaps fractional; nothing without a limit.
std::optional<double> cpu_quota(const std::string& root = "");

/// Bytes this process may still allocate: the least of available memory, its control groups' limits less
/// their use (without page cache), and the remaining address space.
std::int64_t memory_limit(const std::string& root = "");

/// The instruction sets that this build has kernels for and this machine can run, best first.
std::vector<std::string> instruction_sets();

/// The one in use: the best, or that of the environment variable EJK_ISA. Throws Error{usage} for an
/// unavailable one. AMX tiles are requested at the first product that uses them; if refused, the next set is
/// used.
std::string instruction_set();

/// Peak memory of this process in bytes, without mapped files.
std::int64_t peak_memory();

/// Memory of this process in bytes.
struct MemoryUsage {
  std::int64_t allocated_bytes = 0;  // its own, held now: in memory or swapped out, mapped files not counted
  std::int64_t reserved_bytes = 0;   // asked of the system, touched or not; at least as much
  std::int64_t limit_bytes = 0;  // the most it may ever have: the machine's, a control group's limit where
                                 // that is lower, the limit of its address space
};
MemoryUsage get_memory_usage(const std::string& root = "");

/// Wall time since construction or restart.
class Timer {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  void restart() { begin_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

struct Gpu {
  std::string name;            // "NVIDIA H100 80GB HBM3"
  std::string driver_version;  // "535.104.05"
  std::optional<std::int64_t> memory_bytes;
};

/// What the driver's tool answered.
struct GpuQuery {
  enum class Outcome {
    done,     // it answered
    failed,   // it reported failure
    not_run,  // it is not there, cannot be started, or did not end in time
  };
  Outcome outcome = Outcome::not_run;
  std::vector<Gpu> gpus;
};

/// Queries `program` (found in PATH) for the GPUs; kills it after `patience`. Does not throw if it fails.
GpuQuery query_gpus(const std::string& program = "nvidia-smi",
                    std::chrono::milliseconds patience = std::chrono::seconds(10));

/// A device as the documents see it.
struct Device {
  std::string platform = "cpu";  // "cpu", "gpu" or "tpu"
  std::string kind = "cpu";      // the device's own name: "NVIDIA H100 80GB HBM3", "TPU v4"
  GpuQuery::Outcome query = GpuQuery::Outcome::not_run;  // how asking for the driver's version went
  std::string driver_version;
};

/// A framework's default: the first GPU, else the CPU.
Device default_device(const GpuQuery& gpus, const std::string& root = "");

std::string get_device_platform();

/// PLATFORM|VERSION: "cpu|"; "gpu|cuda_535.104.05", "gpu|" if the query failed, "gpu|cuda_unknown" if it did
/// not run; "tpu|v4" (v2, v3, v4, else unknown). Convention of ejkernel: KIND|VERSION, "cpu|cpu", a GPU's
/// name and "cuda" with the driver's version (JAX uses the CUDA version of its build).
std::string device_fingerprint(const Device& device, Convention convention = Convention::document);
std::string device_fingerprint(Convention convention = Convention::document);

struct CpuCache {
  std::string name;  // "L1d", "L1i", "L2"
  std::int64_t bytes = 0;
  std::int64_t shared_by = 1;  // cores
};

struct Machine {
  Device device;
  std::string cpu;           // "AMD EPYC 7B13", or the architecture where the system gives no name
  std::string architecture;  // "x86_64"
  std::vector<std::string> vector_extensions;  // of the CPU, those that matter here: "avx2", "avx512f"
  std::int64_t cores = 0;                      // logical ones that are on
  int usable_cores = 0;
  std::optional<double> cpu_quota;
  std::vector<CpuCache> caches;  // of the first core
  std::int64_t memory_bytes = 0;
  std::int64_t memory_limit_bytes = 0;      // the most this process may have
  std::int64_t memory_available_bytes = 0;  // what it may still take
  GpuQuery gpus;
};

/// Fields that cannot be determined stay empty.
Machine inspect_machine(const GpuQuery& gpus, const std::string& root = "");

/// With the instruction sets found and used; the first line of the text is the fingerprint alone.
Report describe(const Machine& machine, Convention convention = Convention::document);

}  // namespace ejk
