// Stored blocks as bits. Cost: one pass over the elements that are read, by 64 x 64 bits where they are
// transposed.
// tests: tests/layouts/test_splash.cpp
#include "layouts/element_bits.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"

namespace ejk::blocks {

ElementBits::ElementBits(std::shared_ptr<const ArraySource> array, bool forward)
    : array_(std::move(array)), forward_(forward) {
  const Shape& shape = array_->shape();
  rows_ = shape[shape.size() - 2];
  columns_ = shape[shape.size() - 1];
  leading_.assign(shape.begin(), shape.end() - 2);
}

void ElementBits::fill(const Shape& block, const Rectangle& part, const BitRows& out) const {
  if (forward_) {
    read(block, part.q_begin, part.rows(), part.k_begin, part.columns(), out);
    return;
  }
  thread_local BitBuffer buffer;
  const BitRows stored = buffer.rows(part.columns(), part.rows());
  read(block, part.k_begin, part.columns(), part.q_begin, part.rows(), stored);
  transpose(stored, out);
}

void ElementBits::read(const Shape& block, std::int64_t row, std::int64_t rows, std::int64_t column,
                       std::int64_t columns, const BitRows& out) const {
  const auto to_bits = [&](const std::byte* in, std::int64_t r) {
    kernels::active().nonzero_bits_8(in, columns, out.row(r));
  };
  if (const auto& view = array_->mapped(); view && view->strides.back() == 1) {
    const std::byte* first = view->data + column;
    for (std::size_t d = 0; d < block.size(); ++d) first += block[d] * view->strides[d];
    const std::int64_t step = view->strides[block.size()];
    for (std::int64_t r = 0; r < rows; ++r) to_bits(first + (row + r) * step, r);
    return;
  }
  if (!array_->random_access()) {
    std::call_once(once_, [&] { hold(); });
    std::int64_t at = 0;
    for (std::size_t d = 0; d < block.size(); ++d) at = at * leading_[d] + block[d];
    BitRows all = held_rows();
    all.words += (at * rows_ + row) * all.row_words;
    all.rows = rows;
    gather(all, column, columns, out.row_words, out.words);
    return;
  }
  thread_local std::vector<std::byte> raw;
  raw.resize(static_cast<std::size_t>(rows * columns));
  Shape start = block, count(block.size(), 1);
  start.insert(start.end(), {row, column});
  count.insert(count.end(), {rows, columns});
  array_->read(start, count, raw.data());
  for (std::int64_t r = 0; r < rows; ++r) to_bits(raw.data() + r * columns, r);
}

BitRows ElementBits::held_rows() const {
  return {bits_.elements<Word>().data(), words_for(columns_), bits_.shape()[0], columns_};
}

void ElementBits::hold() const {
  const std::int64_t blocks = element_count(leading_);
  bits_ = Array(DType::uint64, {blocks * rows_, words_for(columns_)});
  const BitRows to = held_rows();
  std::vector<std::byte> raw(static_cast<std::size_t>(rows_ * columns_));
  Shape start(leading_.size() + 2, 0), count(leading_.size(), 1);
  count.insert(count.end(), {rows_, columns_});
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::size_t d = leading_.size(), rest = static_cast<std::size_t>(b); d-- > 0;) {
      const auto length = static_cast<std::size_t>(leading_[d]);
      start[d] = static_cast<std::int64_t>(rest % length);
      rest /= length;
    }
    array_->read(start, count, raw.data());
    for (std::int64_t r = 0; r < rows_; ++r)
      kernels::active().nonzero_bits_8(raw.data() + r * columns_, columns_, to.row(b * rows_ + r));
  }
}

}  // namespace ejk::blocks
