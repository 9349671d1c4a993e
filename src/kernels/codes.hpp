// Kernels for floats of at most 8 bits with a sign, a code in a byte, in blocks that share a scale. Element i
// is in block (first + i) / block, 0 ≤ first < block. The same bits on every instruction set.
#pragma once

#include <cstdint>

#include "ejk/dtype.hpp"

namespace ejk::kernels {

struct Codes {
  /// out[i] = (number of codes[i]) · scales[its block] · factor, each product rounded. Bits above a code are
  /// ignored.
  void (*decode)(const FloatFormat& format, const std::uint8_t* codes, std::int64_t n, const float* scales,
                 std::int64_t block, std::int64_t first, float factor, float* out);
};

}  // namespace ejk::kernels
