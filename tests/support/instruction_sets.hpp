// The instruction sets that tests go through.
#pragma once

#include <vector>

#include "kernels/kernels.hpp"

namespace test {

/// The rows of kernels that this machine can run, best first; the portable one is last.
inline std::vector<const ejk::kernels::Kernels*> instruction_sets() {
  std::vector<const ejk::kernels::Kernels*> found;
  for (const ejk::kernels::Kernels& row : ejk::kernels::all())
    if (ejk::kernels::supported(row)) found.push_back(&row);
  return found;
}

}  // namespace test
