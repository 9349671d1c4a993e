// Elements of any float dtype and stride as float or double, and back.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ejk/dtype.hpp"
#include "kernels/kernels.hpp"

namespace ejk::attn {

/// `count` elements of a float dtype, `stride` bytes apart.
template <class Real>
void load(DType dtype, const std::byte* from, std::int64_t stride, std::int64_t count, Real* out) {
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>)
      for (std::int64_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + i * stride, sizeof value);
        if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
          out[i] = static_cast<Real>(static_cast<float>(value));
        else
          out[i] = static_cast<Real>(value);
      }
  });
}

/// Row `row` of a matrix, `count` elements from column `first` on.
template <class Real>
void load_row(const kernels::Block& matrix, std::int64_t row, std::int64_t first, std::int64_t count,
              Real* out) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  load(matrix.dtype, data + row * matrix.row_stride + first * matrix.column_stride, matrix.column_stride,
       count, out);
}

/// `count` elements side by side, rounded once; none may lie nowhere.
inline void store(const float* from, std::int64_t count, DType dtype, void* out) {
  if (count > 0) kernels::active().products.convert_f32(from, count, dtype, false, out);
}
inline void store(const double* from, std::int64_t count, DType dtype, void* out) {
  if (count > 0) kernels::active().products.convert_f64(from, count, dtype, false, out);
}

}  // namespace ejk::attn
