// Factors of attention's matrix products, and what their elements say of masked pairs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/workspace.hpp"
#include "kernels/kernels.hpp"
#include "matmul/packed.hpp"
#include "matmul/product.hpp"

namespace ejk::attn {

inline Positions block_of(std::int64_t block, std::int64_t size, std::int64_t length) {
  return {block * size, std::min((block + 1) * size, length)};
}

using matmul::gemm_of, matmul::PackedA, matmul::PackedB, matmul::part_of, matmul::ScratchLayout,
    matmul::softmax_of, matmul::transposed;

/// Rows of a left factor of `first` whose products then are left factors of `second`.
inline std::int64_t group_rows(const kernels::Gemm& first, const kernels::Gemm& second) {
  return first.mr < second.mr ? first.mr : first.mr / second.mr * second.mr;
}

/// The score of a pair that the mask allows is −∞, by its bias or by what q and k hold: it counts as masked.
template <class Real>
bool without_weight(const CheckedArguments& setup, const Problem& p, std::int64_t query, std::int64_t key,
                    const kernels::StridedMatrix& key_row) {
  thread_local std::vector<Real> q, k;
  q.resize(static_cast<std::size_t>(setup.shape.head_size));
  k.resize(q.size());
  load_row(p.q, query, 0, setup.shape.head_size, q.data());
  load_row(key_row, 0, 0, setup.shape.head_size, k.data());
  Real score = 0;
  for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k[d];
  score *= static_cast<Real>(setup.scale);
  if (setup.softcap > 0 && setup.softcap_order == SoftcapOrder::after_bias) return false;
  if (setup.softcap > 0) score = std::max(score, static_cast<Real>(-setup.softcap));
  return score + p.bias.at<Real>(query, key) == -std::numeric_limits<Real>::infinity();
}
template <class Real>
bool without_weight(const CheckedArguments& setup, const Problem& p, std::int64_t query, std::int64_t key) {
  return without_weight<Real>(setup, p, query, key, p.k.at({key, key + 1}));
}

template <class Real>
kernels::Scoring<Real> scoring_of(const CheckedArguments& setup) {
  return {static_cast<Real>(setup.scale), static_cast<Real>(setup.softcap),
          setup.softcap_order == SoftcapOrder::after_bias};
}

/// Rows with NaN and infinities separated, as a weight of 0 must not be multiplied by them.
template <class Real>
class NonFiniteRows {
 public:
  kernels::StridedMatrix of(const kernels::StridedMatrix& from, std::int64_t rows, std::int64_t columns) {
    rows_.clear();
    columns_ = columns;
    if (all_finite(from, rows, columns)) return from;
    const std::int64_t size = size_of(from.dtype);
    values_.resize(static_cast<std::size_t>(rows * columns));
    clean_.resize(values_.size() * static_cast<std::size_t>(size));
    row_.resize(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      Real* const row = values_.data() + r * columns;
      load_row(from, r, 0, columns, row);
      std::transform(row, row + columns, row_.begin(), [](Real x) { return std::isfinite(x) ? x : Real{0}; });
      store(row_.data(), columns, from.dtype, clean_.data() + r * columns * size);
      if (!std::all_of(row, row + columns, [](Real x) { return std::isfinite(x); })) rows_.push_back(r);
    }
    return {clean_.data(), from.dtype, columns * size, size};
  }

  const std::vector<std::int64_t>& rows() const { return rows_; }

  /// out += weight · the separated elements of a row.
  void add(std::int64_t row, Real weight, Real* out, std::int64_t out_stride = 1) const {
    const Real* const from = values_.data() + row * columns_;
    for (std::int64_t d = 0; d < columns_; ++d)
      if (!std::isfinite(from[d])) out[d * out_stride] += weight * from[d];
  }

 private:
  // In the order of memory.
  static bool all_finite(const kernels::StridedMatrix& matrix, std::int64_t rows, std::int64_t columns) {
    if (matrix.column_stride > matrix.row_stride) return all_finite(transposed(matrix), columns, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      if (!is_finite(matrix, r, columns)) return false;
    return true;
  }
  static bool is_finite(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t columns) {
    const auto* from = static_cast<const std::byte*>(matrix.data) + row * matrix.row_stride;
    switch (matrix.dtype) {
      case DType::float64:
        return all_below<std::uint64_t>(from, matrix, columns, 0x7FF0000000000000u);
      case DType::float32:
        return all_below<std::uint32_t>(from, matrix, columns, 0x7F800000u);
      case DType::bfloat16:
        return all_below<std::uint16_t>(from, matrix, columns, 0x7F80u);
      default:
        return all_below<std::uint16_t>(from, matrix, columns, 0x7C00u);
    }
  }
  // No element has all bits of the exponent set.
  template <class Word>
  static bool all_below(const std::byte* from, const kernels::StridedMatrix& matrix, std::int64_t columns,
                        Word exponent) {
    Word found = 0;
    const auto test = [&](std::int64_t stride) {
      for (std::int64_t d = 0; d < columns; ++d) {
        Word word = 0;
        std::memcpy(&word, from + d * stride, sizeof word);
        found |= static_cast<Word>((word & exponent) == exponent ? 1 : 0);
      }
    };
    if (matrix.column_stride == static_cast<std::int64_t>(sizeof(Word)))
      test(sizeof(Word));
    else
      test(matrix.column_stride);
    return found == 0;
  }

  std::int64_t columns_ = 0;
  std::vector<Real> values_, row_;
  std::vector<std::byte> clean_;
  std::vector<std::int64_t> rows_;
};

}  // namespace ejk::attn
