// Products of few queries with keys where the keys lie. The forward pass of few queries and the gradients of
// them take the same, since exp(s − lse) of a large score is right only where lse was made of the same bits.
// tests: tests/attention/test_few_queries.cpp
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/packing.hpp"
#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "kernels/kernels.hpp"

namespace ejk::attn {

inline constexpr std::int64_t kWholeRow = 16;  // elements: rows of so many are whole cache lines

/// Rows of a matrix with their elements side by side, `columns` of them (0 behind the matrix's own); in
/// `room`, where they do not lie so.
template <class Real>
kernels::StridedMatrix side_by_side(const CheckedArguments& setup, const kernels::StridedMatrix& from,
                                    std::int64_t rows, std::int64_t size, std::int64_t columns, Real* room) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Real));
  if (from.column_stride == size_of(from.dtype) && size == columns) return from;
  for (std::int64_t r = 0; r < rows; ++r) {
    load_row(from, r, 0, size, room + r * columns);
    std::fill(room + r * columns + size, room + (r + 1) * columns, Real{0});
  }
  return {room, setup.shape.arithmetic, columns * kSize, kSize};
}

template <class Real>
class RowProducts {
 public:
  explicit RowProducts(const CheckedArguments& setup)
      : setup_(setup), stride_(core::round_up(setup.shape.head_size, kWholeRow)) {}

  /// Elements from query to query in memory.
  std::int64_t stride() const { return stride_; }

  /// Queries [begin, begin + count) to `to`.
  void take_queries(const kernels::StridedMatrix& q, std::int64_t begin, std::int64_t count, Real* to) const {
    std::fill_n(to, count * stride_, Real{0});
    for (std::int64_t r = 0; r < count; ++r)
      load_row(q, begin + r, 0, setup_.shape.head_size, to + r * stride_);
  }

  /// Keys as run() wants them; in `room`, keys × head size, where they do not lie so.
  kernels::StridedMatrix keys(const kernels::StridedMatrix& k, std::int64_t keys, Real* room) const {
    return side_by_side(setup_, k, keys, setup_.shape.head_size, setup_.shape.head_size, room);
  }

  /// out[r, j] = query r · key j. out has room for the next multiple of kernels::kDotsKeys columns; `next` is
  /// asked for meanwhile.
  void run(const Real* queries, std::int64_t count, const kernels::StridedMatrix& k, std::int64_t keys,
           Real* out, std::int64_t out_stride, const kernels::Ahead& next) const {
    const kernels::Products& products = kernels::active().products;
    const auto dots = [&](const auto& kernel) {
      kernel(queries, stride_, count, k, keys, setup_.shape.head_size, out, out_stride, next);
    };
    if constexpr (sizeof(Real) == 8)
      dots(*products.dots_f64);
    else
      dots(*products.dots_f32);
  }

 private:
  const CheckedArguments& setup_;
  std::int64_t stride_;
};

}  // namespace ejk::attn
