// Kernels for floats of at most 8 bits in blocks that share a scale, and for widening those of 16 bits. Element
// i is in block (first + i) / block, 0 ≤ first < block. The same bits on every instruction set but for the sign
// of a NaN that is the product of two.
#pragma once

#include <cstdint>

#include "ejk/dtype.hpp"

namespace ejk::kernels {

/// Where a number halfway between two elements goes: to the even code, away from zero, towards zero.
enum class Ties : std::uint8_t { even, away, down };

/// Scales of blocks.
struct BlockScales {
  const float* scales;
  std::int64_t block = 1, first = 0;
};

enum class ScaleUse : std::uint8_t { multiplies, divides };

/// Scales of blocks, above 0 or NaN: an element is multiplied or divided by the one of its block in `encode`, and
/// its number times that in `decode` times `factor` is the element decoded.
struct EncodeScales {
  const float *encode, *decode;
  float factor;
  ScaleUse use;
  std::int64_t block = 1, first = 0;
};

/// Counts of elements, added up over calls.
struct EncodeCounts {
  /// Above the largest number (infinities too), those that became 0 and were not, NaN.
  std::int64_t overflows = 0, flushed = 0, nans = 0;
};

/// Errors of decoded elements, added up over calls.
struct CodeErrors {
  std::int64_t lost = 0;  // finite elements that are decoded to NaN
  /// The sums of squares of the other finite elements and of their errors.
  double signal = 0, noise = 0;
  /// The largest error and the first element that has it, where float32 does not tell errors apart; -1 if there
  /// is none.
  double largest = -1;
  std::int64_t largest_at = 0;
};

struct Codes {
  /// out[i] = (number of the code) · scale · factor, each product rounded. Not of fnu. Bits above a code are
  /// ignored. Arrays do not overlap.
  void (*decode)(const FloatFormat& format, const std::uint8_t* codes, std::int64_t n,
                 const BlockScales& scales, float factor, float* out);

  /// out[b] = the bits of the largest magnitude in block b, of NaN as well; or of finite elements.
  void (*largest)(const float* x, std::int64_t n, std::int64_t block, std::int64_t first, bool finite,
                  std::uint32_t* out);

  /// codes[i] = the code nearest to x[i], scaled, and decoded[i] = the element that it has. Numbers above the
  /// largest become it; so does NaN in formats without NaN. `decoded` is undefined for elements that are not finite.
  /// Not for fnuz and fnu. Arrays do not overlap.
  void (*encode)(const FloatFormat& format, Ties ties, const float* x, std::int64_t n,
                 const EncodeScales& scales, std::uint8_t* codes, float* decoded, EncodeCounts& counts);

  /// Errors of elements x that became `decoded`. `at`: the position of x[0] among all.
  void (*errors)(const float* x, const float* decoded, std::int64_t n, std::int64_t at, CodeErrors& errors);

  /// Elements of float16 or bfloat16 as float32; NaN keeps its bits.
  void (*widen)(DType dtype, const void* from, std::int64_t n, float* out);
};

}  // namespace ejk::kernels
