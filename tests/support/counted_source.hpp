// A source that counts the elements read.
#pragma once

#include <cstdint>
#include <span>

#include "ejk/array.hpp"

namespace plain {

/// Counts the elements that are read, and tells whether rows came in order.
class CountedSource final : public ejk::ForwardingSource {
 public:
  CountedSource(const ejk::Array& array, ejk::ArrayAccess::Order order)
      : ForwardingSource(ejk::make_source(array.view()), {array.dtype(), array.shape()},
                         ejk::ArrayAccess(order)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    elements += ejk::element_count(count);
    in_order = in_order && start[0] >= next_row;
    next_row = start[0] + count[0];
    inner().read(start, count, out);
  }

  mutable std::int64_t elements = 0, next_row = 0;
  mutable bool in_order = true;
};

}  // namespace plain
