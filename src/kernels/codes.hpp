// Kernels for floats of at most 8 bits in blocks that share a scale. Element i is in block
// (first + i) / block, 0 ≤ first < block. The same bits on every instruction set but for the sign of a NaN that
// is the product of two.
#pragma once

#include <cstdint>

#include "ejk/dtype.hpp"

namespace ejk::kernels {

/// Where a number halfway between two elements goes: to the even code, away from zero, towards zero.
enum class Ties : std::uint8_t { even, away, down };

enum class ScaleUse : std::uint8_t { multiplies, divides };

/// What elements and their codes are found to be, added up over calls.
struct EncodeTotals {
  /// Elements above the largest number (infinities too), those that became 0 and were not, NaN, and finite
  /// elements that are decoded to NaN.
  std::int64_t overflows = 0, flushed = 0, nans = 0, lost = 0;
  /// The sums of squares of the other finite elements and of their errors, in float32 over up to 1,024 of
  /// them, so rounded differently by instruction set.
  double signal = 0, noise = 0;
  /// The largest error and the first element that has it, where float32 does not tell errors apart; -1 if there
  /// is none.
  double largest = -1;
  std::int64_t largest_at = 0;
  /// Smaller errors are not located: another element has one as large as this.
  float known = 0;
};

/// Elements that are encoded at once; while they are, the next ones are prefetched.
inline constexpr std::int64_t kEncodeStep = 2048;

/// Scales of blocks, above 0 or NaN: an element is multiplied or divided by the one of its block in `encode`,
/// and its number times that in `decode` times `factor` is the element decoded.
struct EncodeScales {
  const float *encode, *decode;
  float factor;
  ScaleUse use;
};

/// Where codes of 4 bits are: two of a row in a byte, or one, in this half. Others have a byte each: `low`.
enum class CodeHalves : std::uint8_t { low_first, high_first, low, high };

/// Rows of codes, and the scales of their blocks.
struct CodeRows {
  const std::uint8_t* bytes = nullptr;
  std::int64_t n = 0;  // elements of a row
  const float* scales = nullptr;
  std::int64_t block = 1, first = 0;
  float factor = 1;
  CodeHalves halves = CodeHalves::low;
  std::int64_t skipped = 0;  // 1: the first element is the second in its byte
  std::int64_t rows = 1;
  std::int64_t stride = 0;         // bytes from row to row
  std::int64_t scales_stride = 0;  // scales from row to row
  std::int64_t ahead = 0;          // bytes so far after those of a row are prefetched; 0: none

  bool is_packed() const { return halves == CodeHalves::low_first || halves == CodeHalves::high_first; }
};

struct Codes {
  /// out[r, i] = (number of the code) · scales[its block] · factor, each product rounded; rows of `out` are
  /// contiguous. Bits above a code are ignored.
  void (*decode)(const FloatFormat& format, const CodeRows& codes, float* out);

  /// out[b] = the bits of the largest magnitude in block b, of NaN as well; or of finite elements.
  void (*largest)(const float* x, std::int64_t n, std::int64_t block, std::int64_t first, bool finite,
                  std::uint32_t* out);

  /// codes[i] = the code nearest to x[i], scaled. Numbers above the largest become it; so does NaN in formats
  /// without NaN. Not for fnuz and fnu. `at`: the position of x[0] among the elements of the totals.
  /// n < 2^31.
  void (*encode)(const FloatFormat& format, Ties ties, const float* x, std::int64_t n,
                 const EncodeScales& scales, std::int64_t block, std::int64_t first, std::int64_t at,
                 std::uint8_t* codes, EncodeTotals& totals);
};

}  // namespace ejk::kernels
