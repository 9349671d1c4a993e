// What this process may use of the machine: a container's limits count, not only the hardware.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ejk {

/// Cores this process may run on: its affinity, and the CPU quota of its control group (versions 1 and 2),
/// rounded up; at least 1. `root` is where the file system begins (tests bring their own).
int usable_cores(const std::string& root = "");

/// Bytes this process may still take: the least of the memory that is available, the limits of its control
/// groups less what they use (page cache that can be dropped not counted), and the address space left.
std::int64_t memory_limit(const std::string& root = "");

/// The instruction sets that this build has kernels for and this machine can run, best first.
std::vector<std::string> instruction_sets();

/// The one in use: the best, or the one that the environment variable EJK_ISA names. Throws Error{usage} when
/// that is none of them.
std::string instruction_set();

/// The most memory of its own that this process has held at once, in bytes: without the parts of mapped files
/// that are in memory now, which the system can take back at any time.
std::int64_t peak_memory();

}  // namespace ejk
