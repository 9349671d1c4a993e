// Micro-kernels of matrix products: a tile of sums that stays in registers, and the forms of its factors.
//   A   rows × k, row-major, `a_stride` bytes from row to row (constant; an odd number of cache lines)
//   B   panels of nr columns: unit u of column j at (u · nr + j) · unit bytes; a unit is kr elements of k
//   out rows × columns of sums (float, double for f64), row-major
// Contraction lengths are padded with zeros to a multiple of k_step, columns to a multiple of nr in B.
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

/// The sums of a tile are the result, are added to it, or are written past the caches (then stream_fence()).
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

  /// rows × k (≤ kc) to A's form. f32: 16-bit floats and float32; f64: any float; bf16: bfloat16.
  void (*pack_a)(const StridedMatrix& in, std::int64_t rows, std::int64_t k, void* out);

  /// k (≤ kc) × columns to B's form, panel_stride bytes from panel to panel.
  void (*pack_b)(const StridedMatrix& in, std::int64_t k, std::int64_t columns, void* out,
                 std::int64_t panel_stride);

  /// out = [out +] A · B for one tile: rows ≤ mr, columns ≤ nr; out_stride in elements. It may read mr rows
  /// of A.
  void (*tile)(const void* a, const void* b, std::int64_t k, std::int64_t rows, std::int64_t columns,
               Store how, void* out, std::int64_t out_stride);

  /// The same rounded to bfloat16; not for Store::accumulate. May be null.
  void (*tile_bf16)(const void* a, const void* b, std::int64_t k, std::int64_t rows, std::int64_t columns,
                    Store how, void* out, std::int64_t out_stride) = nullptr;

  /// As tile() with B in place, its columns contiguous, for any number of rows of A's form: B is read once. k
  /// ≤ 2 · direct_k and kc, a multiple of kr unless it ends the contraction. Prefetches `next`, a line for
  /// each of B's.
  void (*direct)(const void* a, const StridedMatrix& b, std::int64_t k, std::int64_t rows,
                 std::int64_t columns, bool add, void* out, std::int64_t out_stride, const Ahead& next);
};

/// Keys that dots() takes together.
inline constexpr std::int64_t kDotsKeys = 16;

/// out[r, j] = Σ_d a[r, d] · b[j, d], d < k; b is contiguous along elements or rows; rows of a are padded
/// with 0 to a multiple of 16, out to a multiple of kDotsKeys columns. Strides in elements. Prefetches
/// `next`. A result depends on the instruction set and its two rows alone.
template <class Real>
using Dots = void(const Real* a, std::int64_t a_stride, std::int64_t rows, const StridedMatrix& b,
                  std::int64_t keys, std::int64_t k, Real* out, std::int64_t out_stride, const Ahead& next);

/// rows × k elements, contiguous along rows, transposed: out_stride bytes from row to row, a multiple of 64.
/// Elements past the last of a row may be written.
using TurnRows = void(const StridedMatrix& in, std::int64_t rows, std::int64_t k, void* out,
                      std::int64_t out_stride);

/// Rows of a in panels: element d of row r at a[(r / kPanelRows · a_stride + d) · kPanelRows + r %
/// kPanelRows]. Faster where rows fill their panels; sums run along the contraction in order. Rows of b are
/// contiguous.
template <class Real>
inline constexpr std::int64_t kPanelRows = 64 / static_cast<std::int64_t>(sizeof(Real));

/// A row of a short convolution: element i is act(bias + Σ_j weight_j · rows[j][i]), j < width in order; silu(x) = x /
/// (1 + exp(−x)). weight_j is weights[j · weight_stride], and bias bias[0], of the row; or, by channel, those of element
/// i begin i further. An element's bits depend on its numbers and the instruction set alone.
template <class Real>
struct ConvolvedRow {
  const Real *bias, *weights;
  std::int64_t weight_stride, width;
  bool by_channel, silu;
  const Real* const* rows;
};
template <class Real>
using Convolve = void(const ConvolvedRow<Real>& of, std::int64_t n, Real* out);

using Convert = void(const void* sums, std::int64_t n, DType dtype, bool stream, void* out);

/// What an instruction set has for products, for what attention does between two of them, and for convolutions.
struct Products {
  const Gemm* f32 = nullptr;
  const Gemm* f64 = nullptr;
  const Gemm* bf16 = nullptr;  // null: bfloat16 goes through f32, which is as exact
  int bf16_rate = 1;           // about how many of its multiply-adds take the time of one of f32
  Convert* convert_f32 = nullptr;
  Convert* convert_f64 = nullptr;
  const Softmax<float>* softmax_f32 = nullptr;
  const Softmax<double>* softmax_f64 = nullptr;
  Convolve<float>* convolve_f32 = nullptr;
  Convolve<double>* convolve_f64 = nullptr;
  Dots<float>* dots_f32 = nullptr;
  Dots<double>* dots_f64 = nullptr;
  Dots<float>* panel_dots_f32 = nullptr;
  Dots<double>* panel_dots_f64 = nullptr;
  TurnRows* turn_rows = nullptr;
};

}  // namespace ejk::kernels
