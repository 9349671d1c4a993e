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

/// Results of rows, in the order of lse.
template <class Real>
struct RowResults {
  const RowWriter& out;
  Real* lse;
  Real* most;  // largest scores of keys; null: not wanted
};

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
    const Real next = larger_of(most[r], found);
    if (next != most[r] && most[r] != kEmpty) {
      const Real factor = std::exp(most[r] - next);
      total[r] *= factor;
      softmax.scale(row(r), setup.shape.value_size, factor);
    }
    most[r] = next;
    total[r] += softmax.weights(row_of_products, columns.count(), next, row_of_products);
    return true;
  }

  /// Row r as the result of a query, its lse, and its largest score where `to` has these.
  void finish(const CheckedArguments& setup, std::int64_t r, const Problem& p, std::int64_t query,
              const RowResults<Real>& to) const {
    const RowEnd<Real> of_keys{most[r], total[r]},
        end = of_keys.with(static_cast<Real>(setup.ends.sink(p.head)));
    if (!end.is_empty()) {
      const Real factor = end.most == of_keys.most ? Real{1} : std::exp(of_keys.most - end.most);
      for (std::int64_t d = 0; d < setup.shape.value_size; ++d) row(r)[d] = row(r)[d] * factor / end.total;
    }
    const std::int64_t at = p.first_row + query;
    to.lse[at] = one_nan((setup.ends.lse_of_keys ? of_keys : end).lse());
    if (to.most != nullptr) to.most[at] = of_keys.most;
    to.out.store(p.entry, p.head, setup.q_offsets, query, row(r), setup.shape.value_size);
  }
};

}  // namespace ejk::attn
