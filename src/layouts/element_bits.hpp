// The elements of stored blocks as rows of bits.
#pragma once

#include <memory>
#include <mutex>

#include "layouts/block_mask.hpp"

namespace ejk::blocks {

/// Elements of an array (..., q, kv) of one byte each, or (..., kv, q) for dkv, read on demand; if only in
/// order, all at first use and kept as bits. Thread-safe.
class ElementBits {
 public:
  ElementBits(std::shared_ptr<const ArraySource> array, bool forward);
  /// A part of the block with these leading indices; blocks of dkv are transposed.
  void fill(const Shape& block, const Rectangle& part, const BitRows& out) const;

 private:
  void read(const Shape& block, std::int64_t row, std::int64_t rows, std::int64_t column,
            std::int64_t columns, const BitRows& out) const;
  BitRows held_rows() const;
  void hold() const;

  std::shared_ptr<const ArraySource> array_;
  bool forward_;
  std::int64_t rows_ = 0, columns_ = 0;
  Shape leading_;
  mutable std::once_flag once_;
  mutable Array bits_;
};

}  // namespace ejk::blocks
