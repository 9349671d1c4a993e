// Operands of linear attention for one sequence and head of the state: tokens as rows of floats, activated gates, states.
// All forms of the recurrence read them here.
// tests: tests/recurrence/test_linear_attention.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

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

template <class Real>
bool all_finite(const Real* x, std::int64_t count) {
  using Word = std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t>;
  constexpr auto kExponent = std::bit_cast<Word>(std::numeric_limits<Real>::infinity());
  Word found = 0;
  for (std::int64_t i = 0; i < count; ++i)
    found |= static_cast<Word>((std::bit_cast<Word>(x[i]) & kExponent) == kExponent ? 1 : 0);
  return found == 0;
}
template <class Real>
bool all_finite(const Rows<Real>& rows, std::int64_t count, std::int64_t size) {
  bool is_finite = true;
  for (std::int64_t r = 0; r < count && is_finite; ++r) is_finite = all_finite(rows[r], size);
  return is_finite;
}

template <class Real>
Real dot_of(const Real* a, const Real* b, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  Real sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) sums[l] += a[i + l] * b[i + l];
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/// to += factor · row
template <class Real>
void add_row(Real* to, Real factor, const Real* row, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += factor * row[i];
}

/// row ← e^decay · row. The rounding of a factor near 1 would add up over the chunks of a long sequence: that of its
/// distance does not; of a small factor that of the distance would be larger than the result.
template <class Real>
void decay_row(Real* row, double decay, std::int64_t count) {
  const bool is_near = decay > -0.5 && decay < 0.5;
  const auto factor = static_cast<Real>(is_near ? std::expm1(decay) : std::exp(decay));
  for (std::int64_t i = 0; i < count; ++i) row[i] = factor * row[i] + (is_near ? row[i] : Real{0});
}

/// e^x
template <class Real>
void exponentials(const double* x, std::int64_t count, Real* to) {
  constexpr double kMost = sizeof(Real) == 4 ? 88 : 709;
  double most = 0;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, x[i]);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Real>(x[i]);
  if (most <= kMost)
    matmul::softmax_of<Real>().weights(to, count, Real{0}, to);
  else
    std::transform(x, x + count, to, [](double e) { return static_cast<Real>(std::exp(e)); });
}

/// Decays of heads in a chunk of `count` tokens: the running sums G of gates, e^(G_i − G_j) for i ≥ j, e^G, e^(G of the
/// last − G). Returns the last sum. `scratch` is of `count` numbers, and may be the gates.
template <class Real>
double decays_of_heads(const double* gates, std::int64_t count, double* sums, double* scratch,
                       const Rows<Real>& between, Real* from_start, Real* to_end) {
  double sum = 0;
  for (std::int64_t t = 0; t < count; ++t) sums[t] = sum += gates[t];
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) scratch[j] = sums[i] - sums[j];
    exponentials(scratch, i + 1, between[i]);
  }
  exponentials(sums, count, from_start);
  for (std::int64_t i = 0; i < count; ++i) scratch[i] = sum - sums[i];
  exponentials(scratch, count, to_end);
  return sum;
}

/// f(group, first row, rows of the group) for the rows of a packed left factor.
template <class F>
void for_groups(const kernels::Gemm& gemm, std::int64_t rows, F&& f) {
  for (std::int64_t r = 0, g = 0; r < rows; r += gemm.mr, ++g) f(g, r, std::min(gemm.mr, rows - r));
}

/// Tokens are counted from the begin of the sequence.
template <class Real>
class LinearRows {
 public:
  LinearRows(const LinearPlan& plan, const LinearInputs& inputs) : plan_(plan), in_(inputs) {}

  void select(std::int64_t sequence, std::int64_t head) {
    select(plan_.sequences[static_cast<std::size_t>(sequence)], head);
  }
  /// Any tokens of an entry.
  void select(const Sequence& tokens, std::int64_t head) { sequence_ = tokens, head_ = head; }
  const Sequence& sequence() const { return sequence_; }
  std::int64_t head() const { return head_; }

  /// (K, V) of a slot; below 0: zeros. `turned` is of the same size, for states that are stored as (V, K).
  void state(std::int64_t slot, Real* to, Real* turned) const;
  /// Normalised; 1/√(Σ x² + 10⁻⁶) of each row also goes to `factors`, where that is not null.
  void keys(std::int64_t first, std::int64_t count, const Rows<Real>& to, double* factors = nullptr) const;
  void values(std::int64_t first, std::int64_t count, const Rows<Real>& to) const;
  /// Normalised and multiplied by `scale`, of a head of out.
  void queries(std::int64_t out_head, std::int64_t first, std::int64_t count, double scale,
               const Rows<Real>& to, double* factors = nullptr) const;
  /// beta[t], 1 where there is none, and gates[t · width + d], logarithms of decays, which are left alone where there
  /// are none. Throws Error{input} for NaN in decay, beta or dt, and for a factor below 0.
  void gates(std::int64_t first, std::int64_t count, double* gates, double* beta);

  /// Gradients of logarithms of decays (in linear space: of factors) and of beta become those of the gates as given;
  /// both are as in gates(). Returns the sum of those of a_log. Those of biases are those of gates.
  double through_gates(std::int64_t first, std::int64_t count, double* gates, double* beta) const;
  /// Rows of `size` of a head of an array in one form.
  void load(const ArrayView& from, std::int64_t head, std::int64_t first, std::int64_t count,
            const Rows<Real>& to, std::int64_t size) const;

  /// Of all gates that were read.
  LinearAttentionWork& work() { return work_; }
  const LinearAttentionWork& work() const { return work_; }

 private:
  void normalize(const Rows<Real>& rows, std::int64_t count, double* factors) const;
  void load_beta(std::int64_t first, std::int64_t count, double* beta) const;
  void load_gates(std::int64_t first, std::int64_t count, double* gates) const;
  void activate(std::int64_t first, std::int64_t count, double* gates, double* beta);
  [[noreturn]] void refuse(bool is_beta, std::int64_t token, std::int64_t channel, double value) const;

  const LinearPlan& plan_;
  const LinearInputs& in_;
  Sequence sequence_;
  std::int64_t head_ = 0;
  LinearAttentionWork work_;
};

}  // namespace ejk::recurrence
