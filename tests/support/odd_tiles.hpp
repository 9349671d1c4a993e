// Portable kernels whose tiles have sizes that no other row has: 5 × 3 sums of float32, 3 × 3 of float64,
// and contractions of at most 101 and 83. What relies on even sizes, or on powers of two, fails with them
// on any machine.
#pragma once

#include "kernels/kernels.hpp"

namespace test {

const ejk::kernels::Kernels& odd_tiles();

}  // namespace test
