// The instruction sets under test.
#pragma once

#include <vector>

#include "kernels/isa.hpp"
#include "kernels/kernels.hpp"
#include "support/amx_emulation.hpp"
#include "support/odd_tiles.hpp"

namespace test {

/// The rows of kernels that this machine can run, best first, and last portable ones with odd tiles. Where
/// only AMX's tiles are missing they are emulated for the test case that asks.
inline std::vector<const ejk::kernels::Kernels*> instruction_sets() {
  std::vector<const ejk::kernels::Kernels*> found;
  for (const ejk::kernels::Kernels& row : ejk::kernels::all()) {
    ejk::kernels::Kernels rest = row;
    rest.needs &= ~static_cast<std::uint32_t>(ejk::kernels::kAmxBf16);
    if (!ejk::kernels::supported(rest)) continue;
    const bool uses_tiles = (row.needs & ejk::kernels::kAmxBf16) != 0;
    if (uses_tiles && !(ejk::kernels::supported(row) && ejk::kernels::request_tiles())) amx::emulate();
    found.push_back(&row);
  }
  found.push_back(&odd_tiles());
  return found;
}

}  // namespace test
