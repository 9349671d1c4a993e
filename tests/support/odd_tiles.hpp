// Portable kernels with tiles of unusual sizes: 5 × 3 sums of float32, 3 × 3 of float64, and contractions of
// at most 101 and 83. Code that assumes even sizes or powers of two fails with them on any machine.
#pragma once

#include "kernels/kernels.hpp"

namespace test {

const ejk::kernels::Kernels& odd_tiles();

}  // namespace test
