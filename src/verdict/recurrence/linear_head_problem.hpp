// Linear attention of one sequence and head of the state in float64, as it is defined and with one step changed. A known
// fault is a change of what is read, or of a step. Cost: 8 · K · V flop a token, twice that token by token.
// tests: tests/verdict/recurrence/test_linear.cpp
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "ejk/dtype.hpp"
#include "recurrence/linear_plan.hpp"

namespace ejk::recurrence_verdict {

/// What a sequence's head reads, in the order of tokens.
struct HeadProblem {
  std::int64_t tokens = 0, keys = 0, values = 0;
  std::int64_t heads = 0;  // of out
  std::int64_t width = 1;  // of gates: 1, or K
  bool delta = false;
  std::vector<double> k, v;   // (tokens, K) normalised, (tokens, V)
  std::vector<double> q;      // (heads, tokens, K), normalised and scaled
  std::vector<double> gates;  // (tokens, width), logarithms of decays; empty: none
  std::vector<double> beta;   // (tokens,)
  std::vector<double> state;  // (K, V)
  std::vector<double> skip;   // (heads, V); empty: none

  double* gates_at(std::int64_t token) { return gates.data() + token * width; }
  const double* gates_at(std::int64_t token) const { return gates.data() + token * width; }
};

struct HeadResult {
  std::vector<double> out;    // (heads, tokens, V)
  std::vector<double> state;  // (K, V), the final one
};

enum class LinearStep : std::uint8_t {
  none,
  error_before_decay,  // Sᵀk of the state before its decay
  decay_last,          // after the update
  decay_of_values,     // by columns of the state instead of rows
  factors,             // gates are factors, and no logarithms
  beta_on_values,      // u = β v − Sᵀk
  out_before_update,
  out_before_decay,
  rounded_state,  // after each token
  // Of the chunk form:
  mask_for_scores,  // q kᵀ without decays between the tokens of a chunk
  mask_for_keys,    // A without them
  mask_for_both,
  plain_w,            // W without the decay from the begin of the chunk
  lower_for_inverse,  // A in the place of (1 + A)⁻¹
  first_order,        // 1 − A
};

struct LinearSteps {
  LinearStep step = LinearStep::none;
  std::int64_t chunk = 64;
  DType state = DType::float32;  // of rounded_state
};

constexpr std::int64_t kAllTokens = std::numeric_limits<std::int64_t>::max();

/// The first tokens of a sequence, at most `tokens`. Throws what LinearRows::gates() throws.
HeadProblem load_head(const recurrence::LinearPlan& plan, const recurrence::LinearInputs& inputs,
                      std::int64_t sequence, std::int64_t head, std::int64_t tokens = kAllTokens);

/// A part of the tokens, with another initial state.
HeadProblem part_of(const HeadProblem& problem, std::int64_t begin, std::int64_t end,
                    std::vector<double> state);

HeadResult solve(const HeadProblem& problem, const LinearSteps& steps = {});

}  // namespace ejk::recurrence_verdict
