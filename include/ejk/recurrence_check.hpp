// Verdicts on another implementation's recurrences.
//
// Short convolutions: every element of out is compared with the formula of conv1d.hpp in float64, within
//   B = u (max|x| · max Σ_j |weight[d, j]| + max|bias| + 1),  u = 2⁻²¹, of float64 results 2⁻⁵⁰,
// and the rounding of B and the element to the result's own type; final states are copies, and must be equal.
// Explanations have the kind conv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/against.hpp"
#include "ejk/conv1d.hpp"

namespace ejk {

/// Of any float types of 16 bits or more.
struct ActualConv1d {
  std::optional<ArrayView> out, final_state;
};

/// `tiles`: two axes of the picture. Throws Error{input} about "out" or "final_state" for another shape, and what
/// conv1d() throws.
Against compare_conv1d(const Conv1dOperands& operands, const Conv1dSettings& settings,
                       const ActualConv1d& given, Explain explain,
                       const std::vector<std::string>& tiles = {});
std::int64_t bytes_to_compare_conv1d(const Conv1dTypes& types, Explain explain);

}  // namespace ejk
