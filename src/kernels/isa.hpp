// Instruction sets: the CPU's features that the operating system lets a program use (XCR0; AMX's tiles must
// be requested from Linux).
#pragma once

#include <cstdint>

namespace ejk::kernels {

enum Feature : std::uint32_t {
  kPopcnt = 1u << 0,
  kAvx2 = 1u << 1,
  kFma = 1u << 2,
  kF16c = 1u << 3,
  kAvx512f = 1u << 4,
  kAvx512bw = 1u << 5,
  kAvx512bf16 = 1u << 6,
  kAmxBf16 = 1u << 7,
};

/// The words that features are derived from; a fake one makes "has the bit, may not use it" a unit test.
struct CpuidRegisters {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;
  std::uint64_t xcr0 = 0;      // 0 when the CPU or the system does not support XGETBV
  bool tiles_offered = false;  // the system grants AMX's tiles to a process that asks
};

CpuidRegisters read_cpu();
std::uint32_t features_of(const CpuidRegisters& cpu);

/// Requests AMX's tiles for the process, whose alternate signal stacks must then hold them; false if refused.
bool request_tiles();

}  // namespace ejk::kernels
