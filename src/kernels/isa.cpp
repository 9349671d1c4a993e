// CPUID and XCR0 as words, and Linux's permission for AMX; features are derived from these words.
// tests: tests/kernels/test_isa.cpp
#include "kernels/isa.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ejk::kernels {

namespace {

constexpr int kTileBit = 24, kBf16TileBit = 22;  // of leaf 7's EDX
constexpr std::uint64_t kTileState = 0x60000;    // of XCR0: tile configuration and data

#if defined(__x86_64__) && defined(__linux__)
constexpr long kTileData = 18;  // XFEATURE_XTILEDATA

bool tiles_offered() {
  constexpr long kSupported = 0x1021;  // ARCH_GET_XCOMP_SUPP
  std::uint64_t offered = 0;
  return syscall(SYS_arch_prctl, kSupported, &offered) == 0 && (offered >> kTileData & 1u) != 0;
}
#elif defined(__x86_64__)
bool tiles_offered() { return false; }
#endif

}  // namespace

bool request_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

CpuidRegisters read_cpu() {
  CpuidRegisters cpu;
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
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    cpu.leaf7_ebx = b;
    cpu.leaf7_edx = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) cpu.leaf7_1_eax = a;
  }
  if ((cpu.leaf7_edx >> kTileBit & 1u) != 0 && (cpu.xcr0 & kTileState) == kTileState)
    cpu.tiles_offered = tiles_offered();
#endif
  return cpu;
}

std::uint32_t features_of(const CpuidRegisters& cpu) {
  constexpr std::uint64_t kYmmState = 0x6;   // XMM and YMM
  constexpr std::uint64_t kZmmState = 0xE6;  // and opmask, ZMM 0-15, ZMM 16-31
  const auto bit = [](std::uint32_t word, int n) { return (word >> n & 1u) != 0; };
  std::uint32_t found = 0;
  if (bit(cpu.leaf1_ecx, 23)) found |= kPopcnt;
  if ((cpu.xcr0 & kYmmState) == kYmmState && bit(cpu.leaf1_ecx, 28)) {
    if (bit(cpu.leaf7_ebx, 5)) found |= kAvx2;
    if (bit(cpu.leaf1_ecx, 12)) found |= kFma;
    if (bit(cpu.leaf1_ecx, 29)) found |= kF16c;
    if ((cpu.xcr0 & kZmmState) == kZmmState) {
      if (bit(cpu.leaf7_ebx, 16)) found |= kAvx512f;
      if (bit(cpu.leaf7_ebx, 30)) found |= kAvx512bw;
      if (bit(cpu.leaf7_1_eax, 5)) found |= kAvx512bf16;
    }
  }
  if ((cpu.xcr0 & kTileState) == kTileState && cpu.tiles_offered && bit(cpu.leaf7_edx, kTileBit) &&
      bit(cpu.leaf7_edx, kBf16TileBit))
    found |= kAmxBf16;
  return found;
}

}  // namespace ejk::kernels
