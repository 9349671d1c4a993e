// Softmax state of query rows: the largest score m, Σ exp(s − m) and Σ exp(s − m) · v. A larger score
// rescales both sums by exp(m_old − m_new).
// tests: tests/attention/test_attention.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention/packing.hpp"
#include "attention/problem.hpp"
#include "attention/row_writer.hpp"

namespace ejk::attn {

template <class Real>
struct RowSums {
  static constexpr Real kEmpty = RowEnd<Real>::kEmpty;

  Real *value, *most, *total;
  std::int64_t stride;  // of value's rows

  void reserve(ScratchLayout& memory, std::int64_t rows) {
    memory.add(value, rows * stride);
    memory.add(most, rows);
    memory.add(total, rows);
  }

  Real* row(std::int64_t r) const { return value + r * stride; }

  void clear(std::int64_t rows) const {
    std::fill_n(value, rows * stride, Real{0});
    std::fill_n(most, rows, kEmpty);
    std::fill_n(total, rows, Real{0});
  }

  /// Products of row r to weights, in place; false where all are 0, and then nothing else changes.
  bool weigh(const CheckedArguments& setup, std::int64_t r, Real* row_of_products, Positions columns,
             const Real* bias, const mask::Word* bits) const {
    const kernels::Softmax<Real>& softmax = softmax_of<Real>();
    const Real found = softmax.scores(scoring_of<Real>(setup), row_of_products, columns.count(), bias, bits,
                                      columns.begin, nullptr);
    if (found == kEmpty) {
      std::fill_n(row_of_products, columns.count(), Real{0});
      return false;
    }
    const Real next = larger(most[r], found);
    if (next != most[r] && most[r] != kEmpty) {
      const Real factor = std::exp(most[r] - next);
      total[r] *= factor;
      softmax.scale(row(r), setup.shape.value_size, factor);
    }
    most[r] = next;
    total[r] += softmax.weights(row_of_products, columns.count(), next, row_of_products);
    return true;
  }

  /// Row r as the result of a query, and its lse.
  void finish(const CheckedArguments& setup, std::int64_t r, const Problem& p, std::int64_t query,
              const RowWriter& out, Real* lse) const {
    const RowEnd<Real> end{most[r], total[r]};
    if (!end.is_empty())
      for (std::int64_t d = 0; d < setup.shape.value_size; ++d) row(r)[d] /= end.total;
    lse[p.first_row + query] = end.lse();
    out.store(p.entry, p.head, setup.q_offsets, query, row(r), setup.shape.value_size);
  }

  /// NaN stays.
  static Real larger(Real most, Real found) { return found > most || std::isnan(found) ? found : most; }
};

}  // namespace ejk::attn
