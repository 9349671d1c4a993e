// Loads and stores of rows: any float dtype and stride to float or double, and back.
#pragma once

#include <cstdint>
#include <limits>

#include "core/elements.hpp"
#include "ejk/dtype.hpp"
#include "kernels/kernels.hpp"
#include "matmul/packed.hpp"

namespace ejk::attn {

using core::load;
using matmul::store;

template <class Real>
void load_row(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t first, std::int64_t count,
              Real* out) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  load(matrix.dtype, data + row * matrix.row_stride + first * matrix.column_stride, matrix.column_stride,
       count, out);
}

/// The positive NaN for any.
template <class Real>
Real one_nan(Real x) {
  return x == x ? x : std::numeric_limits<Real>::quiet_NaN();
}

}  // namespace ejk::attn
