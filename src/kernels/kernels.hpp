// Kernels: the inner loops, each compiled for several instruction sets, and their table, in order of
// preference; the portable entry is last. active() chooses once, EJK_ISA forces one by name. Truth values are
// bits: bit i % 64 of word i / 64 is element i, and bits past the last element are 0.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/codes.hpp"
#include "kernels/matmul.hpp"

namespace ejk::kernels {

/// Results of this many bytes and more are written past the caches.
inline constexpr std::int64_t kLargerThanCaches = std::int64_t{32} << 20;

/// How far apart pairs of floats are, computed in V.
template <class V>
struct PairStats {
  bool finite = false;
  /// All are close. An allowance may be rounded otherwise on each instruction set, so leave room for that.
  bool close = false;
  std::int64_t zeros = 0;   // how many are 0 on both sides
  V difference = 0;         // the largest |a - e|
  V relative = 0;           // the largest |a - e| / |e| where e is not 0, if it is above what is known
  std::uint64_t steps = 0;  // the most steps from one float to the next between a and e
  V difference_squares = 0, actual_squares = 0, expected_squares = 0;  // sums, in any order
};

struct Kernels {
  const char* name;
  std::uint32_t needs;  // Feature bits

  /// out bit i = (element i of n is not all zero bits); elements of 1, 2, 4, 8 bytes. Writes ceil(n / 64)
  /// words.
  using NonzeroBits = void(const void* in, std::int64_t n, std::uint64_t* out);
  NonzeroBits* nonzero_bits_8;
  NonzeroBits* nonzero_bits_16;
  NonzeroBits* nonzero_bits_32;
  NonzeroBits* nonzero_bits_64;

  /// out bit i = (in[i] == value).
  void (*equal_bits_32)(const std::int32_t* in, std::int64_t n, std::int32_t value, std::uint64_t* out);

  /// any |= words and all &= words, word by word.
  void (*fold_bits)(const std::uint64_t* words, std::int64_t n, std::uint64_t* any, std::uint64_t* all);

  std::int64_t (*count_bits)(const std::uint64_t* words, std::int64_t n);

  void (*expand_bits)(const std::uint64_t* bits, std::int64_t n, std::uint8_t* out);

  /// out[i - begin] = firsts[r] + (i - offsets[r]) · step, modulo 2^32 or 2^64, for begin ≤ i < end and the
  /// run r with offsets[r] ≤ i < offsets[r + 1]; firsts null: all 0. offsets[0] ≤ begin < offsets[1], or
  /// begin = end; some offset is ≥ end. `stream`: past the caches, then stream_fence() before another thread
  /// reads.
  void (*progressions_32)(const std::int64_t* offsets, const std::int64_t* firsts, std::uint32_t step,
                          std::int64_t begin, std::int64_t end, bool stream, std::uint32_t* out);
  void (*progressions_64)(const std::int64_t* offsets, const std::int64_t* firsts, std::uint64_t step,
                          std::int64_t begin, std::int64_t end, bool stream, std::uint64_t* out);
  void (*stream_fence)();

  /// Statistics of n ≤ 2¹⁶ pairs; close: |a - e| <= atol + rtol · |e|. 16-bit floats are computed in float32.
  /// No quotient is computed unless |a - e| / |e| may be above `known`.
  using PairStats16 = PairStats<float>(const std::uint16_t* a, const std::uint16_t* e, std::int64_t n,
                                       float rtol, float atol, float known);
  PairStats<float> (*pair_stats_32)(const float* a, const float* e, std::int64_t n, float rtol, float atol,
                                    float known);
  PairStats<double> (*pair_stats_64)(const double* a, const double* e, std::int64_t n, double rtol,
                                     double atol, double known);
  PairStats16* pair_stats_f16;
  PairStats16* pair_stats_bf16;

  /// n bytes are the same on both sides.
  bool (*same_bytes)(const void* a, const void* e, std::int64_t n);

  /// differs[i] = 0 where equal, both NaN with `nan_agrees`, or both finite and |a - e| <= atol + rtol · |e|;
  /// else 1. Returns the number of ones.
  std::int64_t (*mark_differences)(const double* a, const double* e, std::int64_t n, double rtol, double atol,
                                   bool nan_agrees, std::uint8_t* differs);

  /// Σ a · b, in eight sums, and to += factor · row, of n. Rounded differently by instruction set.
  double (*dot_64)(const double* a, const double* b, std::int64_t n);
  void (*add_64)(double* to, double factor, const double* row, std::int64_t n);

  Codes codes;

  Products products = {};  // of matrices; the table adds them
};

std::span<const Kernels> all();

bool supported(const Kernels& row);

/// The supported row of that name. Throws Error{usage} when there is none.
const Kernels& row_named(const char* name);

/// The entry that EJK_ISA names, or the best supported one. Throws Error{usage} for an unsupported EJK_ISA.
const Kernels& active();

/// active(), for products of bfloat16: AMX's tiles are requested once; if refused, the next entry becomes
/// active, or an EJK_ISA that names AMX is an Error{usage}.
const Kernels& active_for_bf16();

/// Makes an entry active, for tests; null: the choice above. Not while others compute.
void force(const Kernels* row);

}  // namespace ejk::kernels
