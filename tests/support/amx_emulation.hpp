// AMX's tiles in plain C++, and its instructions on a machine that has none of them: there they raise SIGILL,
// and a handler does what they say, so that the kernel's own machine code runs.
//
// Source: Intel's Software Developer's Manual, volume 2: LDTILECFG, STTILECFG, TILERELEASE, TILEZERO,
// TILELOADD(T1), TILESTORED, TDPBF16PS, each with the shapes and the faults that it names there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace test::amx {

/// 16 rows of 64 bytes.
using Tile = std::array<std::array<std::byte, 64>, 16>;

/// sum += a · b as TDPBF16PS adds: pairs' first and second elements in two sums of float32 each, from zero,
/// which then go to the tile's; subnormal factors and sums count as zero. sum is rows × columns floats, a is
/// rows × 2·pairs bfloat16, b pairs × 2·columns.
void dot_bf16(Tile& sum, const Tile& a, const Tile& b, int rows, int columns, int pairs);

/// From here on threads of this process may run AMX's instructions, until somebody else handles SIGILL
/// (doctest does so at the start of every test case). An instruction that a CPU would refuse (tiles that are
/// not configured, shapes that do not fit) raises SIGILL as ever.
void emulate();

/// Instructions that were emulated so far.
std::int64_t emulated();

}  // namespace test::amx
