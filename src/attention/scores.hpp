// A tile of scores: a block of queries with a block of keys. Forward and backward are made of these.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"

namespace ejk::attn {

/// What stands for a pair that does not attend.
template <class Real>
inline constexpr Real kHidden = -std::numeric_limits<Real>::infinity();

/// Positions [begin, end).
struct Positions {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
};

/// Rows of a matrix in Real, as they are and transposed.
template <class Real>
class Rows {
 public:
  void load(const kernels::Block& matrix, Positions rows, std::int64_t columns) {
    columns_ = columns;
    values_.resize(static_cast<std::size_t>(rows.count() * columns));
    for (std::int64_t r = 0; r < rows.count(); ++r)
      load_row(matrix, rows.begin + r, 0, columns, values_.data() + r * columns);
  }
  /// column(d)[r] is row(r)[d].
  void transpose() {
    const std::int64_t rows = columns_ == 0 ? 0 : std::ssize(values_) / columns_;
    transposed_.resize(values_.size());
    rows_ = rows;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t d = 0; d < columns_; ++d)
        transposed_[static_cast<std::size_t>(d * rows + r)] =
            values_[static_cast<std::size_t>(r * columns_ + d)];
  }
  const Real* row(std::int64_t r) const { return values_.data() + r * columns_; }
  const Real* column(std::int64_t d) const { return transposed_.data() + d * rows_; }

 private:
  std::int64_t columns_ = 0, rows_ = 0;
  std::vector<Real> values_, transposed_;
};

/// out[j] = Σ_d left[d] · right.column(d)[j], over `depth` elements in order.
template <class Real>
void products(const Real* left, const Rows<Real>& right, std::int64_t depth, std::int64_t count, Real* out) {
  std::fill_n(out, count, Real{0});
  for (std::int64_t d = 0; d < depth; ++d) {
    const Real factor = left[d];
    const Real* const column = right.column(d);
    for (std::int64_t j = 0; j < count; ++j) out[j] += factor * column[j];
  }
}

template <class Real>
class Scores {
 public:
  /// The scores of a tile: rows of q (in `q`) with the transposed rows of k. Hidden pairs are −∞. Slopes, the
  /// derivative of the soft cap, are made only where there is one.
  void compute(const Setup& setup, const Problem& p, const MaskTiles* tiles, Positions queries,
               Positions keys, const Rows<Real>& q, const Rows<Real>& k) {
    columns_ = keys.count();
    values_.resize(static_cast<std::size_t>(queries.count() * columns_));
    const auto scale = static_cast<Real>(setup.scale), cap = static_cast<Real>(setup.softcap);
    slopes_.resize(cap > 0 ? values_.size() : 0);  // what is kept from another problem goes
    if (p.bias.data) bias_.resize(static_cast<std::size_t>(columns_));
    mask::BitRows bits;
    const bool partial = tiles && tiles->state(queries.begin / setup.block.q, keys.begin / setup.block.kv) ==
                                      mask::BlockState::partial;
    if (partial) {
      bits = buffer_.rows(queries.count(), columns_);
      MaskPlan::fill(*tiles, {queries.begin, queries.end, keys.begin, keys.end}, bits);
    }
    for (std::int64_t r = 0; r < queries.count(); ++r) {
      Real* const s = row(r);
      products(q.row(r), k, setup.shape.head_size, columns_, s);
      for (std::int64_t j = 0; j < columns_; ++j) s[j] *= scale;
      if (cap > 0) {
        Real* const slope = slopes_.data() + r * columns_;
        for (std::int64_t j = 0; j < columns_; ++j) {
          const Real t = std::tanh(s[j] / cap);
          s[j] = cap * t;
          slope[j] = 1 - t * t;
        }
      }
      if (p.bias.data) {
        load_row(p.bias, queries.begin + r, keys.begin, columns_, bias_.data());
        for (std::int64_t j = 0; j < columns_; ++j) s[j] += bias_[static_cast<std::size_t>(j)];
      }
      if (partial)
        for (std::int64_t j = 0; j < columns_; ++j)
          if ((bits.row(r)[j / 64] >> (j % 64) & 1u) == 0) s[j] = kHidden<Real>;
    }
  }

  Real* row(std::int64_t r) { return values_.data() + r * columns_; }
  /// Null without a soft cap.
  const Real* slopes(std::int64_t r) const {
    return slopes_.empty() ? nullptr : slopes_.data() + r * columns_;
  }

 private:
  std::int64_t columns_ = 0;
  std::vector<Real> values_, slopes_, bias_;
  mask::BitBuffer buffer_;
};

/// Block `block` of `length` positions.
inline Positions block_of(std::int64_t block, std::int64_t size, std::int64_t length) {
  return {block * size, std::min((block + 1) * size, length)};
}

inline bool is_empty(const MaskTiles* tiles, std::int64_t q_block, std::int64_t kv_block) {
  return tiles && tiles->state(q_block, kv_block) == mask::BlockState::empty;
}

}  // namespace ejk::attn
