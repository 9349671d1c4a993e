// The reference of a verdict on linear attention, and what right kernels may differ from it by.
//
// Right kernels compute in chunks and round factors of products. E is such a computation, of chunks of 16, 128
// and 256 tokens, D the largest |E − reference| of them over a head's block of 64 tokens and its two neighbours, of a final state
// over its matrix. The bound is
//   F D + 2⁻²⁰ max |reference| + u |element|,  F = 4, 16 for float32,
// with max over the sequence's head or the matrix and u the unit roundoffs of the result's type and of factors: the only
// factor of an element may be rounded further in one program than in E; of inputs in float64,
// where no type of factors is given, 2⁻³⁶ max |reference| + u |element|. Cost: six times the computation.
// tests: tests/verdict/recurrence/test_linear.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compare/float_type.hpp"
#include "core/parallel.hpp"
#include "ejk/recurrence_check.hpp"
#include "recurrence/linear_plan.hpp"

namespace ejk::recurrence_verdict {

/// The unit roundoff.
constexpr double unit_of(FactorType type) {
  constexpr double kUnits[] = {0x1p-24, 0x1p-11, 0x1p-8, 0x1p-11};
  return kUnits[static_cast<std::size_t>(type)];
}

/// What the elements of a row may be off by: what is measured, and the rounding of the result's type.
struct RowBound {
  double unit = 0, least = 0;
  double usual = 0;                  // of other heads, by their largest element
  double absolute = 0, largest = 0;  // of the head; largest 0: none is measured, as of padding
  bool is_copy = false;              // of a slot that no sequence writes

  /// `most`: of values with a fault the largest one of their head; of the reference 0.
  void operator()(std::span<const double> values, double most, double* allowed) const {
    const bool is_exact = is_copy && most == 0;
    const double measured = largest > 0 ? absolute * std::max(1.0, most / largest) : absolute + usual * most;
    for (std::size_t c = 0; c < values.size(); ++c)
      allowed[c] =
          is_exact ? 0 : measured + unit * (std::isfinite(values[c]) ? std::abs(values[c]) : 0) + least;
  }
};

/// Of the type alone, and of elements with a relative error `unit` more.
inline RowBound rounding_of(DType dtype, double unit = 0, double usual = 0) {
  const verify::FloatType type = verify::float_type(dtype);
  return {type.epsilon() / 2 + unit, type.spacing_at(0) / 2, usual};
}

inline double largest_of(std::span<const double> numbers) {
  double most = 0;
  for (const double x : numbers)
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  return most;
}

/// Of final states: the sequence that writes each; −1: none.
inline std::vector<std::int64_t> writers_of(const recurrence::LinearPlan& plan) {
  std::vector<std::int64_t> writers(static_cast<std::size_t>(plan.final_state.shape[0]), -1);
  for (std::size_t n = 0; n < plan.slots.size(); ++n)
    if (plan.slots[n].write >= 0)
      writers[static_cast<std::size_t>(plan.slots[n].write)] = static_cast<std::int64_t>(n);
  return writers;
}

/// f(sequence, head) for all that are no padding, on several threads.
template <class F>
void for_each_head(const recurrence::LinearPlan& plan, F&& f) {
  const std::int64_t all = std::ssize(plan.sequences) * plan.state_heads;
  const double nanoseconds = 0.4 * static_cast<double>(plan.tokens * plan.state_heads) *
                             static_cast<double>(plan.key_size * plan.value_size);
  core::parallel_for(all, nanoseconds, [&](std::int64_t i) {
    const std::int64_t sequence = i / plan.state_heads;
    if (!plan.slots[static_cast<std::size_t>(sequence)].is_padding) f(sequence, i % plan.state_heads);
  });
}

struct LinearTruth {
  LinearTruth(const recurrence::LinearPlan& plan, const recurrence::LinearInputs& inputs,
              std::optional<FactorType> type);

  const double* out_row(std::int64_t entry, std::int64_t head, std::int64_t token) const {
    return out.data() + ((entry * heads + head) * tokens + token) * values;
  }
  const double* state(std::int64_t slot, std::int64_t head) const {
    return final_state.data() + (slot * state_heads + head) * state_size;
  }
  /// The largest of the output heads that share the state, and of the final state.
  double largest_of_out(std::int64_t sequence, std::int64_t head, std::int64_t shared) const {
    const double* const from = largest_out.data() + sequence * heads + head * shared;
    return *std::max_element(from, from + shared);
  }
  double largest_of_state(std::int64_t sequence, std::int64_t head) const {
    return largest_state[static_cast<std::size_t>(sequence * state_heads + head)];
  }
  /// Without u |element|. `token` is counted in the sequence.
  double out_allowed(std::int64_t sequence, std::int64_t head, std::int64_t token) const;
  double state_allowed(std::int64_t sequence, std::int64_t head) const;

  std::int64_t heads, state_heads, tokens, values, state_size;  // tokens of an entry
  std::vector<double> out;                                      // (entries, heads, tokens, V)
  std::vector<double> final_state;    // (states, HS, K, V); slots that no sequence writes as they are
  std::vector<std::int64_t> writers;  // of states: the sequence; −1: none
  std::vector<double> largest_out;    // (sequences, heads)
  std::vector<double> largest_state;  // (sequences, HS)
  LinearAttentionWork work;
  FactorType factors = FactorType::f32;         // of the bound
  double unit = 0;                              // their unit roundoff
  double usual_of_out = 0, usual_of_state = 0;  // out_allowed() and state_allowed() by the largest: medians

  /// Whether an element of out differs by more than the bound, without u, from that of its token alone.
  bool shows_recurrence(const recurrence::LinearPlan& plan, const recurrence::LinearInputs& inputs) const;

 private:
  std::int64_t at_block(std::int64_t sequence, std::int64_t token) const;
  void solve(const recurrence::LinearPlan& plan, const recurrence::LinearInputs& inputs);
  void see_usual(const recurrence::LinearPlan& plan);
  void measure(const recurrence::LinearPlan& plan, const recurrence::LinearInputs& inputs);

  double factor_ = 0, floor_ = 0x1p-36;
  std::vector<std::int64_t> first_blocks_;  // of sequences
  std::vector<double> out_error_;           // (heads, blocks of all sequences)
  std::vector<double> state_error_;         // (sequences, HS)
};

}  // namespace ejk::recurrence_verdict
