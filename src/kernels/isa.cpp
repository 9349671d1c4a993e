// tests: tests/kernels/test_isa.cpp
#include "kernels/isa.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ejk::kernels {

CpuWords read_cpu() {
  CpuWords cpu;
#if defined(__x86_64__)
  constexpr std::uint32_t kOsxsave = 1u << 27;
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return cpu;
  cpu.leaf1_ecx = c;
  if ((c & kOsxsave) != 0) {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    cpu.xcr0 = (static_cast<std::uint64_t>(high) << 32) | low;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) cpu.leaf7_ebx = b;
#endif
  return cpu;
}

std::uint32_t features_of(const CpuWords& cpu) {
  constexpr std::uint64_t kYmmState = 0x6;   // XMM and YMM
  constexpr std::uint64_t kZmmState = 0xE6;  // and opmask, ZMM 0-15, ZMM 16-31
  const auto bit = [](std::uint32_t word, int n) { return (word >> n & 1u) != 0; };
  std::uint32_t found = 0;
  if (bit(cpu.leaf1_ecx, 23)) found |= kPopcnt;
  if ((cpu.xcr0 & kYmmState) == kYmmState && bit(cpu.leaf1_ecx, 28)) {
    if (bit(cpu.leaf7_ebx, 5)) found |= kAvx2;
    if ((cpu.xcr0 & kZmmState) == kZmmState) {
      if (bit(cpu.leaf7_ebx, 16)) found |= kAvx512f;
      if (bit(cpu.leaf7_ebx, 30)) found |= kAvx512bw;
    }
  }
  return found;
}

}  // namespace ejk::kernels
