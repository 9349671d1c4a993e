// The products of a layer of experts, for some tokens at once: the rows of their choices, sorted by expert.
// tests: tests/matmul/test_moe.cpp
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/route.hpp"

namespace ejk::matmul {

/// Rows of choices; those of no expert come last and are 0.
struct ExpertRows {
  Route route;
  Array gate, up;  // (rows, inter): the products
  Array h, y;      // (rows, inter) and (rows, hidden)
};

/// The parts of the layer that faults change.
struct MoeSteps {
  Activation activation = Activation::silu;
  bool exchanges_gate_and_up = false;
  bool weighs_input = false;  // x is multiplied by the weights
  bool weighs_output = true;
  std::int64_t expert_step = 0;  // the matrices of expert e + expert_step, modulo the experts
};

/// `sums`: float32 or float64.
ExpertRows expert_rows(const MoeOperands& operands, IndexRange tokens, DType sums, const MoeSteps& steps);

/// The elements in C order.
std::vector<double> numbers_of(const ArrayView& array);

double activate(Activation activation, double x);
double activation_slope(Activation activation, double x);

/// Tokens at once, so that the buffers of expert_rows, `bytes_of_token` each, are no larger than the weights.
std::int64_t tokens_at_once(const MoeTypes& types, std::int64_t bytes_of_token);
std::int64_t bytes_of_token(const MoeTypes& types, std::int64_t element);

}  // namespace ejk::matmul
