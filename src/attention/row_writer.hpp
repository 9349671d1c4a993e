// Writer of result rows: rounds a row and stores it in its place of an array or a box of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"

namespace ejk::attn {

class RowWriter {
 public:
  /// `rounded_first`: values are rounded to that dtype before they are rounded to the array's.
  RowWriter(const CheckedArguments& setup, const MutableArrayView& array,
            std::optional<DType> rounded_first = std::nullopt)
      : setup_(setup),
        view_(in_one_form({array.data, array.dtype, array.shape}, setup.layout)),
        data_(array.data),
        rounded_first_(rounded_first) {}

  /// A box of an array of this shape: only rows within it are written. `rows`: of a bias or sinks, their own
  /// axes.
  RowWriter(const CheckedArguments& setup, const MutableArrayView& elements, const ArrayBox& box,
            const Shape& shape, std::optional<DType> rounded_first = std::nullopt,
            RowsOf rows = RowsOf::queries)
      : setup_(setup), rounded_first_(rounded_first) {
    const ArrayView part{elements.data, elements.dtype, elements.shape};
    const ArrayView whole = seen_as_whole(part, box, shape);
    view_ = rows == RowsOf::bias    ? with_four_axes(whole)
            : rows == RowsOf::sinks ? of_sinks_form(whole)
                                    : in_one_form(whole, setup.layout);
    data_ = elements.data + (whole.data - part.data);
  }

  /// Elements of one position of an entry and head, side by side from `first` on.
  template <class Real>
  void store(std::int64_t entry, std::int64_t head, const std::vector<std::int64_t>& offsets,
             std::int64_t position, const Real* values, std::int64_t count, std::int64_t first = 0) const {
    const kernels::StridedMatrix to = setup_.rows_of(view_, entry, head, offsets);
    std::byte* const row = data_ + (static_cast<const std::byte*>(to.data) - view_.data);
    values = with_one_nan(values, count);
    attn::store(rounded_first_ ? rounded(values, count) : values, count, to.dtype,
                row + position * to.row_stride + first * to.column_stride);
  }

 private:
  // The sign of a NaN depends on the order of an instruction's operands, which differs among the kernels for
  // numbers of rows: all become the positive one.
  template <class Real>
  static const Real* with_one_nan(const Real* values, std::int64_t count) {
    // A word as wide as a value: compilers vectorize that, and no bool.
    std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t> nans = 0;
    for (std::int64_t i = 0; i < count; ++i) nans |= values[i] != values[i] ? 1 : 0;
    if (nans == 0) return values;
    thread_local std::vector<Real> same;
    same.resize(static_cast<std::size_t>(count));
    std::transform(values, values + count, same.begin(), one_nan<Real>);
    return same.data();
  }

  template <class Real>
  const Real* rounded(const Real* values, std::int64_t count) const {
    thread_local std::vector<std::byte> narrow;
    thread_local std::vector<Real> wide;
    const std::int64_t size = size_of(*rounded_first_);
    narrow.resize(static_cast<std::size_t>(count * size));
    wide.resize(static_cast<std::size_t>(count));
    attn::store(values, count, *rounded_first_, narrow.data());
    load(*rounded_first_, narrow.data(), size, count, wide.data());
    return wide.data();
  }

  const CheckedArguments& setup_;
  ArrayView view_;
  std::byte* data_;
  std::optional<DType> rounded_first_;
};

}  // namespace ejk::attn
