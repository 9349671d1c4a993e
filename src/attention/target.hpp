// Where the rows of a result go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"

namespace ejk::attn {

/// An array of the layout's axes, C order.
class Target {
 public:
  Target(const Setup& setup, DType dtype, const Shape& shape, void* data)
      : setup_(setup),
        view_(in_one_form({static_cast<const std::byte*>(data), dtype, shape, c_strides(shape, dtype)},
                          setup.layout)),
        data_(static_cast<std::byte*>(data)) {}

  /// Elements of one position of an entry and head, side by side, rounded once.
  template <class Real>
  void store(std::int64_t entry, std::int64_t head, const std::vector<std::int64_t>& offsets,
             std::int64_t position, const Real* values, std::int64_t count) const {
    const kernels::Block to = setup_.rows_of(view_, entry, head, offsets);
    std::byte* const first = data_ + (static_cast<const std::byte*>(to.data) - view_.data);
    attn::store(values, count, to.dtype, first + position * to.row_stride);
  }

 private:
  const Setup& setup_;
  ArrayView view_;
  std::byte* data_;
};

}  // namespace ejk::attn
