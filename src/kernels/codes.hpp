// Kernels for floats of at most 8 bits in blocks that share a scale, and for widening those of 16 bits. Element
// i is in block (first + i) / block, 0 ≤ first < block. The same bits on every instruction set but for the sign
// of a NaN that is the product of two.
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

/// Elements that are encoded at once; while they are, those after them in memory are prefetched.
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

/// How the E8M0 code of a scale follows from the bits of a largest magnitude. Decided by bits: log2 in float32
/// is wrong next to powers of two.
struct E8M0Rule {
  static constexpr std::int32_t kFraction = 0x7FFFFF, kInfinity = 0x7F800000;
  std::uint32_t added = 0;                 // to the bits, before the exponent is taken
  std::int32_t offset = 0;                 // from the code to the exponent
  std::int32_t last_fraction = kFraction;  // larger ones round up
  std::int32_t infinity = 254;             // the code of infinity

  /// The code for the bits of a magnitude. Without branches, so that loops are vectorized; inlined, as it is
  /// compiled for the instruction set of its caller.
  [[gnu::always_inline]] std::uint8_t code(std::uint32_t amax) const {
    const auto bits = static_cast<std::int32_t>(amax);
    const auto exponent = static_cast<std::int32_t>((amax + added) >> 23);
    std::int32_t code = exponent - offset + ((bits & kFraction) > last_fraction ? 1 : 0);
    code = code > 0 ? code : 0;
    code = code < 254 ? code : 254;
    const std::int32_t is_infinity = -(bits == kInfinity), is_nan = -(bits > kInfinity);
    return static_cast<std::uint8_t>((code & ~is_infinity) | (infinity & is_infinity) | (255 & is_nan));
  }
};

struct Codes {
  /// out[r, i] = (number of the code) · scales[its block] · factor, each product rounded; rows of `out` are
  /// contiguous, and do not overlap scales or codes. Bits above a code are ignored.
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

  /// E8M0 codes of scales for the bits of largest magnitudes, their numbers, and those of the inverse scales:
  /// NaN for NaN. Arrays do not overlap.
  void (*scales)(const E8M0Rule& rule, const std::uint32_t* largest, std::int64_t n, std::uint8_t* codes,
                 float* numbers, float* inverses);

  /// n codes below 16, an even number, to bytes, the first of two in the lower half.
  void (*pack)(const std::uint8_t* codes, std::int64_t n, std::uint8_t* out);

  /// Whether all codes are in a set of 256 bits: bit code % 8 of byte code / 8.
  bool (*are_in)(const std::uint8_t* set, const std::uint8_t* codes, std::int64_t n);

  /// Elements of float16 or bfloat16 as float32; NaN keeps its bits.
  void (*widen)(DType dtype, const void* from, std::int64_t n, float* out);
};

}  // namespace ejk::kernels
