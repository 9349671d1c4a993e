// Q·Kᵀ of the decode path with unpacked K, shared by both passes: exp(s − lse) needs bit-identical scores.
// tests: tests/attention/test_decode.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/packing.hpp"
#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "kernels/kernels.hpp"

namespace ejk::attn {

inline constexpr std::int64_t kWholeRow = 16;  // elements: rows of so many are whole cache lines

/// Row stride, in elements, of rows that were copied.
inline std::int64_t moved_stride(std::int64_t size) { return core::round_up(size, kWholeRow); }

/// Rows of `size` elements with contiguous elements; else copied to `buffer`.
template <class Real>
kernels::StridedMatrix side_by_side(const CheckedArguments& setup, const kernels::StridedMatrix& from,
                                    std::int64_t rows, std::int64_t size, Real* buffer) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Real));
  if (from.column_stride == size_of(from.dtype)) return from;
  const std::int64_t stride = moved_stride(size);
  if (from.row_stride == size_of(from.dtype)) {
    kernels::active().products.turn_rows(from, rows, size, buffer, stride * kSize);
    return {buffer, from.dtype, stride * kSize, size_of(from.dtype)};
  }
  for (std::int64_t r = 0; r < rows; ++r) load_row(from, r, 0, size, buffer + r * stride);
  return {buffer, setup.shape.arithmetic, stride * kSize, kSize};
}

/// Few queries as factors, row by row or in panels; dtypes and shapes choose, as last bits differ.
template <class Real>
class RowProducts {
 public:
  explicit RowProducts(const CheckedArguments& setup)
      : setup_(setup), stride_(core::round_up(setup.shape.head_size, kWholeRow)) {}

  /// Panels are faster where rows fill seven eighths of them, except for float16.
  bool in_panels(std::int64_t entry) const {
    const std::int64_t rows = setup_.rows_of_key(entry);
    return setup_.k.dtype != DType::float16 && rows > 0 && 8 * rows >= 7 * core::round_up(rows, kPanel);
  }

  /// Elements from row to row of memory, and the rows that queries of an entry take.
  std::int64_t stride() const { return stride_; }
  std::int64_t rows_held(std::int64_t entry, std::int64_t rows) const {
    return in_panels(entry) ? core::round_up(rows, kPanel) : rows;
  }

  /// Packs queries [begin, begin + count) of a head from row `row` of `to` on, in order.
  void take_queries(std::int64_t entry, const kernels::StridedMatrix& q, std::int64_t begin,
                    std::int64_t count, std::int64_t row, Real* to) const {
    const std::int64_t panel = in_panels(entry) ? kPanel : 1;
    thread_local std::vector<Real> elements;
    elements.assign(static_cast<std::size_t>(stride_), Real{0});
    for (std::int64_t r = row; r < row + count; ++r) {
      load_row(q, begin + r - row, 0, setup_.shape.head_size, elements.data());
      Real* const first = to + r / panel * panel * stride_;
      if (r % panel == 0) std::fill_n(first, panel * stride_, Real{0});
      for (std::int64_t d = 0; d < stride_; ++d)
        first[d * panel + r % panel] = elements[static_cast<std::size_t>(d)];
    }
  }

  /// Keys in the form of run(); copied to `buffer`, keys × moved_stride(head size), where they have another.
  kernels::StridedMatrix keys(std::int64_t entry, const kernels::StridedMatrix& k, std::int64_t keys,
                              Real* buffer) const {
    if (k.row_stride == size_of(k.dtype) && !in_panels(entry)) return k;
    return side_by_side(setup_, k, keys, setup_.shape.head_size, buffer);
  }

  /// out[r, j] = query r · key j of the rows [begin, end), in panels also of those before. out has columns up
  /// to a multiple of kernels::kDotsKeys; `next` is prefetched.
  void run(std::int64_t entry, const Real* queries, Positions rows, const kernels::StridedMatrix& k,
           std::int64_t keys, Real* out, std::int64_t out_stride, const kernels::Ahead& next) const {
    const bool panels = in_panels(entry);
    const std::int64_t first = panels ? 0 : rows.begin;
    const auto& products = kernels::active().products;
    const auto run = [&](const auto& kernel) {
      kernel(queries + first * stride_, stride_, rows.end - first, k, keys, setup_.shape.head_size,
             out + first * out_stride, out_stride, next);
    };
    if constexpr (sizeof(Real) == 8)
      run(panels ? *products.panel_dots_f64 : *products.dots_f64);
    else
      run(panels ? *products.panel_dots_f32 : *products.dots_f32);
  }

 private:
  static constexpr std::int64_t kPanel = kernels::kPanelRows<Real>;

  const CheckedArguments& setup_;
  std::int64_t stride_;
};

}  // namespace ejk::attn
