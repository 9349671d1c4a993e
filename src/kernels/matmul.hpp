// Micro-kernels of matrix products: a tile of sums that stays in registers, and the forms in which it wants
// its factors.
//
//   A   rows × k, row-major, `a_stride` bytes from row to row (a constant, so that rows are displacements; it is
//       an odd number of cache lines, so that rows do not meet in one set of a cache)
//   B   panels of nr columns: unit u of column j at (u · nr + j) · unit bytes, where a unit is kr contraction
//       elements side by side
//   out rows × columns of sums (float, double for f64), row-major
//
// Contraction lengths are padded with zeros to a multiple of k_step in A and in B, columns to a multiple of
// nr in B; what is padded meets only padding or is not stored. Kernels know pointers and strides; who calls
// them decides the blocks.
#pragma once

#include <cstdint>

#include "ejk/dtype.hpp"
#include "kernels/softmax.hpp"

namespace ejk::kernels {

/// A rows × columns array of `dtype` in memory; strides in bytes.
struct StridedMatrix {
  const void* data;
  DType dtype;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

/// Where a tile's sums go: they are the result, they come on top of it, or they are written past the
/// caches (for results larger than those; stream_fence() before another thread reads).
enum class Store { overwrite, accumulate, stream };

/// Memory that is read next: rows of so many bytes; by default none.
struct Ahead {
  const void* data = nullptr;
  std::int64_t rows = 0, row_bytes = 0, row_stride = 0;
};

struct Gemm {
  const char* name;       // "f32", "f64", "bf16": the arithmetic
  std::int64_t mr;        // rows of a tile
  std::int64_t nr;        // columns of a tile
  std::int64_t kr;        // contraction elements in a unit
  std::int64_t k_step;    // a multiple of kr
  std::int64_t kc;        // the longest contraction of one call, a multiple of k_step
  std::int64_t pass_k;    // contraction of a call where there are several: sums are read and written by each
  std::int64_t a_stride;  // bytes
  std::int64_t unit;      // bytes of a unit, in A and in B
  std::int64_t together;  // tiles of rows that go through a panel of B one after another
  std::int64_t direct_rows;  // rows of a tile of direct()
  std::int64_t direct_k;     // and the contraction that suits one tile of them; twice that suits several
  std::int64_t small_m;      // up to so many direct() is faster than packing B for tile()

  /// Come before the first and after the last tile() of a thread; null where nothing needs be set up.
  void (*enter)();
  void (*leave)();

  /// rows × k (≤ kc) to A's form. float16, bfloat16, float32 to f32; those and float64 to f64;
  /// bfloat16 to bf16. So does pack_b.
  void (*pack_a)(const StridedMatrix& in, std::int64_t rows, std::int64_t k, void* out);

  /// k (≤ kc) × columns to B's form, panel_stride bytes from panel to panel.
  void (*pack_b)(const StridedMatrix& in, std::int64_t k, std::int64_t columns, void* out,
                 std::int64_t panel_stride);

  /// out = [out +] A · B for one tile: rows ≤ mr, columns ≤ nr, k the length before padding;
  /// out_stride in elements. It may read mr rows of A.
  void (*tile)(const void* a, const void* b, std::int64_t k, std::int64_t rows, std::int64_t columns,
               Store how, void* out, std::int64_t out_stride);

  /// The same as bfloat16, in the bits that Convert makes of the sums; not for Store::accumulate. Null: there
  /// is none.
  void (*tile_bf16)(const void* a, const void* b, std::int64_t k, std::int64_t rows, std::int64_t columns,
                    Store how, void* out, std::int64_t out_stride) = nullptr;

  /// The same as tile() with B in place, its columns contiguous, for any number of rows of A's form: B
  /// is read once. k is at most 2 · direct_k and kc, a multiple of kr unless it ends the contraction. A sum does
  /// not depend on how many columns there are. It prefetches `next`, a line for each of B's that it
  /// reads and no more. B's dtypes as for pack_b.
  void (*direct)(const void* a, const StridedMatrix& b, std::int64_t k, std::int64_t rows,
                 std::int64_t columns, bool add, void* out, std::int64_t out_stride, const Ahead& next);
};

/// Keys that dots() takes together.
inline constexpr std::int64_t kDotsKeys = 16;

/// out[r, j] = Σ_d a[r, d] · b[j, d] for `rows` rows of a and `keys` rows of b, d < k; elements of a row of b
/// lie side by side, or its rows do; elements of a row of a are 0 up to the next multiple of 16. out is written
/// up to the next multiple of kDotsKeys columns. Strides in elements. It prefetches `next`. A result
/// depends on the instruction set, its two rows and nothing else. b's dtypes as for pack_b of the same
/// arithmetic.
template <class Real>
using Dots = void(const Real* a, std::int64_t a_stride, std::int64_t rows, const StridedMatrix& b,
                  std::int64_t keys, std::int64_t k, Real* out, std::int64_t out_stride, const Ahead& next);

/// rows × k elements whose rows lie side by side in memory, to memory row by row: out_stride bytes from row
/// to row, a multiple of 64. What is behind the last element of a row may be written.
using TurnRows = void(const StridedMatrix& in, std::int64_t rows, std::int64_t k, void* out,
                      std::int64_t out_stride);

/// The rows of a may also lie in panels of so many, one element of all rows after the other: element d of row r at
/// a[(r / kPanelRows · a_stride + d) · kPanelRows + r % kPanelRows], in memory for whole panels. That is faster where
/// rows fill their panels, and sums otherwise, one element of the contraction after the other. Elements of a row of b
/// lie side by side then.
template <class Real>
inline constexpr std::int64_t kPanelRows = 64 / static_cast<std::int64_t>(sizeof(Real));

/// n sums to n elements of a float dtype, each rounded once. `stream`: 16-bit results past the caches.
using Convert = void(const void* sums, std::int64_t n, DType dtype, bool stream, void* out);

/// What an instruction set has for products, and for what attention does between two of them.
struct Products {
  const Gemm* f32 = nullptr;
  const Gemm* f64 = nullptr;
  const Gemm* bf16 = nullptr;  // null: bfloat16 goes through f32, which is as exact
  int bf16_rate = 1;           // about how many of its multiply-adds take the time of one of f32
  Convert* convert_f32 = nullptr;
  Convert* convert_f64 = nullptr;
  const Softmax<float>* softmax_f32 = nullptr;
  const Softmax<double>* softmax_f64 = nullptr;
  Dots<float>* dots_f32 = nullptr;
  Dots<double>* dots_f64 = nullptr;
  Dots<float>* panel_dots_f32 = nullptr;
  Dots<double>* panel_dots_f64 = nullptr;
  TurnRows* turn_rows = nullptr;
};

}  // namespace ejk::kernels
