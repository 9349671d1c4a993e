// What this process may use of the machine: a container's limits count, not only the hardware. And what the
// machine is: its fingerprint, processor, caches, GPUs.
//
// `root` is where the file system begins (tests bring their own).
// Source: the document on utilities and helpers (device_fingerprint, get_device_platform, get_memory_usage,
// timer).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/convention.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// Cores this process may run on: its affinity, and the CPU quota of its control group (versions 1 and 2),
/// rounded up; at least 1.
int usable_cores(const std::string& root = "");

/// The CPU time that control groups leave this process, in cores, which need not be whole; nothing when they
/// set no limit.
std::optional<double> cpu_quota(const std::string& root = "");

/// Bytes this process may still take: the least of the memory that is available, the limits of its control
/// groups less what they use (page cache that can be dropped not counted), and the address space left.
std::int64_t memory_limit(const std::string& root = "");

/// The instruction sets that this build has kernels for and this machine can run, best first.
std::vector<std::string> instruction_sets();

/// The one in use: the best, or the one that the environment variable EJK_ISA names. Throws Error{usage} when
/// that is none of them, as does everything that computes. AMX's tiles are asked of the system at the first
/// product of matrices that would use them, for the whole process; when it refuses them, the next set is
/// used.
std::string instruction_set();

/// The most memory of its own that this process has held at once, in bytes: without the parts of mapped files
/// that are in memory now, which the system can take back at any time.
std::int64_t peak_memory();

/// Memory of this process in bytes.
struct MemoryUsage {
  std::int64_t allocated_bytes = 0;  // its own, held now: in memory or swapped out, mapped files not counted
  std::int64_t reserved_bytes = 0;   // asked of the system, touched or not; at least as much
  std::int64_t limit_bytes = 0;  // the most it may ever have: the machine's, a control group's limit where
                                 // that is lower, the limit of its address space
};
MemoryUsage get_memory_usage(const std::string& root = "");

/// Wall time since it was made, or restarted.
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

/// Asks `program` (looked up in PATH) for the GPUs, and ends it when it has not answered in time. Never
/// throws because of it.
GpuQuery query_gpus(const std::string& program = "nvidia-smi",
                    std::chrono::milliseconds patience = std::chrono::seconds(10));

/// A device as the documents see it.
struct Device {
  std::string platform = "cpu";  // "cpu", "gpu" or "tpu"
  std::string kind = "cpu";      // the device's own name: "NVIDIA H100 80GB HBM3", "TPU v4"
  GpuQuery::Outcome query = GpuQuery::Outcome::not_run;  // how asking for the driver's version went
  std::string driver_version;
};

/// The device that a framework takes on this machine by default: the first GPU when there is one, else the
/// CPU.
Device default_device(const GpuQuery& gpus, const std::string& root = "");

/// Its platform.
std::string get_device_platform();

/// PLATFORM|VERSION: "cpu|"; "gpu|cuda_535.104.05", "gpu|" when the query failed, "gpu|cuda_unknown" when it
/// could not be run; "tpu|v4" (v2, v3, v4, else unknown). In the convention of ejkernel KIND|VERSION:
/// "cpu|cpu", and for a GPU its name and "cuda" with the driver's version, where JAX says which CUDA it was
/// built for.
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

/// Looks at this machine. What cannot be found stays empty.
Machine inspect_machine(const GpuQuery& gpus, const std::string& root = "");

/// A report of it, with the instruction sets found and used; the first line of the text is its fingerprint
/// alone.
Report describe(const Machine& machine, Convention convention = Convention::document);

}  // namespace ejk
