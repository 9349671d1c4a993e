// Loads and stores of rows: any float dtype and stride to float or double, and back.
#pragma once

#include <cstdint>
#include <limits>

#include "core/elements.hpp"
#include "ejk/dtype.hpp"
#include "kernels/kernels.hpp"

namespace ejk::attn {

using core::load;

template <class Real>
void load_row(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t first, std::int64_t count,
              Real* out) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  load(matrix.dtype, data + row * matrix.row_stride + first * matrix.column_stride, matrix.column_stride,
       count, out);
}

/// `count` elements contiguous, rounded once; `out` may be null where there are none.
inline void store(const float* from, std::int64_t count, DType dtype, void* out) {
  if (count > 0) kernels::active().products.convert_f32(from, count, dtype, false, out);
}
inline void store(const double* from, std::int64_t count, DType dtype, void* out) {
  if (count > 0) kernels::active().products.convert_f64(from, count, dtype, false, out);
}

/// The positive NaN for any.
template <class Real>
Real one_nan(Real x) {
  return x == x ? x : std::numeric_limits<Real>::quiet_NaN();
}

}  // namespace ejk::attn
