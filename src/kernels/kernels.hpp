// Kernels: the inner loops, each compiled for several instruction sets, and the table that holds them.
//
// An instruction set is one row: its name, the features it needs, its kernels. Rows stand in order of
// preference; the portable one is last and runs anywhere. The row is chosen once, by active(), and EJK_ISA
// forces one by name. Kernels know pointers and sizes only.
//
// Truth values are bits here: bit i % 64 of word i / 64 stands for element i, and the bits behind the last
// element of a run are 0.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matmul.hpp"

namespace ejk::kernels {

/// Results of this many bytes and more are written past the caches. What a core can hold of them is less,
/// whatever size a shared one has.
inline constexpr std::int64_t kLargerThanCaches = std::int64_t{32} << 20;

/// How far apart pairs of floats are, computed in V.
template <class V>
struct PairStats {
  /// All are finite, and so are the sums below. Otherwise only this is said.
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

  /// out bit i = (the element i of n is not all zero bits); elements of 1, 2, 4, 8 bytes, no alignment asked.
  /// Writes ceil(n / 64) words.
  using NonzeroBits = void(const void* in, std::int64_t n, std::uint64_t* out);
  NonzeroBits* nonzero_bits_8;
  NonzeroBits* nonzero_bits_16;
  NonzeroBits* nonzero_bits_32;
  NonzeroBits* nonzero_bits_64;

  /// out bit i = (in[i] == value).
  void (*equal_bits_32)(const std::int32_t* in, std::int64_t n, std::int32_t value, std::uint64_t* out);

  /// any |= words and all &= words, word by word.
  void (*fold_bits)(const std::uint64_t* words, std::int64_t n, std::uint64_t* any, std::uint64_t* all);

  /// The number of ones in n words.
  std::int64_t (*count_bits)(const std::uint64_t* words, std::int64_t n);

  /// out[i] = bit i as 0 or 1, n bytes.
  void (*expand_bits)(const std::uint64_t* bits, std::int64_t n, std::uint8_t* out);

  /// Runs of progressions: run r is the elements [offsets[r], offsets[r + 1]), some of which may be empty.
  /// out[i - begin] = firsts[r] + (i - offsets[r]) · step, modulo 2^32 or 2^64, for begin ≤ i < end, r being
  /// the run of i; firsts null: all 0. offsets[0] ≤ begin < offsets[1], or begin = end; some offset is ≥ end.
  /// out is aligned to its elements. `stream` writes whole cache lines past the caches, for results larger
  /// than those; stream_fence() then comes before another thread reads.
  void (*progressions_32)(const std::int64_t* offsets, const std::int64_t* firsts, std::uint32_t step,
                          std::int64_t begin, std::int64_t end, bool stream, std::uint32_t* out);
  void (*progressions_64)(const std::int64_t* offsets, const std::int64_t* firsts, std::uint64_t step,
                          std::int64_t begin, std::int64_t end, bool stream, std::uint64_t* out);
  void (*stream_fence)();

  /// What is said of n pairs, at most 2¹⁶, with |a - e| <= atol + rtol · |e| as close. 16-bit floats are
  /// computed in float32, differences and quotients rounded to it. Without |a - e| / |e| above `known` no quotient is
  /// computed, and `relative` is at most that.
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

  /// differs[i] = 0 where a[i] and e[i] are equal, or |a - e| <= atol + rtol · |e| and both finite, or with
  /// `nan_agrees` both NaN; else 1. Returns how many are 1.
  std::int64_t (*mark_differences)(const double* a, const double* e, std::int64_t n, double rtol, double atol,
                                   bool nan_agrees, std::uint8_t* differs);

  /// Σ a · b of n, in eight sums that are added at last, and to += factor · row of n: for what is computed in float64
  /// row by row. Rounded otherwise on each instruction set.
  double (*dot_64)(const double* a, const double* b, std::int64_t n);
  void (*add_64)(double* to, double factor, const double* row, std::int64_t n);

  Products products = {};  // of matrices; the table adds them
};

/// All rows this build has, best first.
std::span<const Kernels> all();

/// This CPU and system can run the row.
bool supported(const Kernels& row);

/// The supported row of that name. Throws Error{usage} when there is none.
const Kernels& row_named(const char* name);

/// The row that EJK_ISA names, or the best supported one. Throws Error{usage} when EJK_ISA names none that
/// can run here.
const Kernels& active();

/// active(), for products of bfloat16, which alone use tiles: where that is AMX the system is asked for them,
/// once a process. When it refuses, the next row becomes the active one; an EJK_ISA that names AMX is then an
/// Error{usage}.
const Kernels& active_for_bf16();

/// Makes a row the active one, for tests that go through all of them; null: the choice above. Not while
/// others compute.
void force(const Kernels* row);

}  // namespace ejk::kernels
