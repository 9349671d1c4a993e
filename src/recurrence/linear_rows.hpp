// Operands of linear attention for one sequence and head of the state: tokens as rows of floats, activated gates, states.
// All forms of the recurrence read them here.
// tests: tests/recurrence/test_linear_attention.cpp
#pragma once

#include <algorithm>
#include <cstdint>

#include "matmul/packed.hpp"
#include "recurrence/linear_plan.hpp"

namespace ejk::recurrence {

/// Rows in a buffer that is not theirs.
template <class Real>
struct Rows {
  Real* data = nullptr;
  std::int64_t stride = 0;
  Real* operator[](std::int64_t row) const { return data + row * stride; }
  kernels::StridedMatrix matrix() const {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(Real));
    return {data, dtype_of<Real>(), stride * kSize, kSize};
  }
};

/// to (columns × rows) = from (rows × columns) transposed, in blocks that stay in the first-level cache.
template <class Real>
void transpose(const Real* from, std::int64_t rows, std::int64_t columns, Real* to) {
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t r = 0; r < rows; r += kBlock)
    for (std::int64_t c = 0; c < columns; c += kBlock)
      for (std::int64_t i = r; i < std::min(rows, r + kBlock); ++i)
        for (std::int64_t j = c; j < std::min(columns, c + kBlock); ++j)
          to[j * rows + i] = from[i * columns + j];
}

inline LinearAttentionWork joined(const LinearAttentionWork& a, const LinearAttentionWork& b) {
  return {std::min(a.least_decay, b.least_decay), std::max(a.largest_decay, b.largest_decay),
          std::min(a.least_dt, b.least_dt), std::max(a.largest_beta_k, b.largest_beta_k)};
}

/// Tokens are counted from the begin of the sequence.
template <class Real>
class LinearRows {
 public:
  LinearRows(const LinearPlan& plan, const LinearInputs& inputs) : plan_(plan), in_(inputs) {}

  void select(std::int64_t sequence, std::int64_t head) {
    sequence_ = plan_.sequences[static_cast<std::size_t>(sequence)];
    head_ = head;
  }
  const Sequence& sequence() const { return sequence_; }
  std::int64_t head() const { return head_; }

  /// (K, V) of a slot; below 0: zeros. `turned` is of the same size, for states that are stored as (V, K).
  void state(std::int64_t slot, Real* to, Real* turned) const;
  void keys(std::int64_t first, std::int64_t count, const Rows<Real>& to) const;  // normalised
  void values(std::int64_t first, std::int64_t count, const Rows<Real>& to) const;
  /// Of a head of out: normalised, and scaled, too.
  void unscaled_queries(std::int64_t out_head, std::int64_t first, std::int64_t count,
                        const Rows<Real>& to) const;
  void queries(std::int64_t out_head, std::int64_t first, std::int64_t count, const Rows<Real>& to) const;
  /// beta[t], 1 where there is none, and gates[t · width + d], logarithms of decays, which are left alone where there
  /// are none. Throws Error{input} for NaN in decay, beta or dt, and for a factor below 0.
  void gates(std::int64_t first, std::int64_t count, double* gates, double* beta);

  /// Of all gates that were read.
  LinearAttentionWork& work() { return work_; }
  const LinearAttentionWork& work() const { return work_; }

 private:
  void load(const ArrayView& from, std::int64_t head, std::int64_t first, std::int64_t count,
            const Rows<Real>& to, std::int64_t size) const;
  void normalize(const Rows<Real>& rows, std::int64_t count) const;
  void load_beta(std::int64_t first, std::int64_t count, double* beta) const;
  void activate(std::int64_t first, std::int64_t count, double* gates, double* beta);
  [[noreturn]] void refuse(bool is_beta, std::int64_t token, std::int64_t channel, double value) const;

  const LinearPlan& plan_;
  const LinearInputs& in_;
  Sequence sequence_;
  std::int64_t head_ = 0;
  LinearAttentionWork work_;
};

}  // namespace ejk::recurrence
