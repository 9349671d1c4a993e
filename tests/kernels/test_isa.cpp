// Dispatch: wide registers are not used where the system does not save them.
#include "kernels/isa.hpp"

#include <doctest/doctest.h>

using namespace ejk::kernels;

TEST_CASE("features need the CPU's bit and the system's consent") {
  CpuidRegisters cpu{.leaf1_ecx = ~0u, .leaf7_ebx = ~0u, .xcr0 = 0xE7};
  CHECK((features_of(cpu) & kAvx512bw) != 0);
  CHECK((features_of(cpu) & kAvx2) != 0);
  cpu.xcr0 = 0x7;  // YMM only
  CHECK((features_of(cpu) & kAvx512bw) == 0);
  CHECK((features_of(cpu) & kAvx2) != 0);
  cpu.xcr0 = 0x3;  // XMM only
  CHECK(features_of(cpu) == kPopcnt);
  cpu.xcr0 = 0;
  CHECK(features_of(cpu) == kPopcnt);
  cpu = {.leaf1_ecx = ~0u, .leaf7_ebx = ~(1u << 30), .xcr0 = 0xE7};
  CHECK((features_of(cpu) & kAvx512bw) == 0);
  CHECK((features_of(cpu) & kAvx512f) != 0);
  cpu = {.leaf1_ecx = ~0u, .leaf7_ebx = ~0u, .leaf7_edx = ~0u, .leaf7_1_eax = ~0u, .xcr0 = 0xE7};
  CHECK((features_of(cpu) & (kFma | kF16c | kAvx512bf16)) == (kFma | kF16c | kAvx512bf16));
  CHECK((features_of(cpu) & kAmxBf16) == 0);
  cpu.xcr0 = 0x600E7;  // tiles are saved, and the system does not grant them
  CHECK((features_of(cpu) & kAmxBf16) == 0);
  cpu.tiles_offered = true;
  CHECK((features_of(cpu) & kAmxBf16) != 0);
  cpu.xcr0 = 0x200E7;  // their configuration without their data
  CHECK((features_of(cpu) & kAmxBf16) == 0);
  cpu.xcr0 = 0x600E7;
  cpu.leaf7_edx = ~(1u << 22);  // tiles, and no products of bfloat16
  CHECK((features_of(cpu) & kAmxBf16) == 0);
}
