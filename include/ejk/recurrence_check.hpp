// Verdicts on another implementation's recurrences.
//
// Short convolutions: every element of out is compared with the formula of conv1d.hpp in float64, within
//   B = u (max|x| · max Σ_j |weight[d, j]| + max|bias| + 1),  u = 2⁻²¹, of float64 results 2⁻⁵⁰,
// and the rounding of B and the element to the result's own type; final states are copies, and must be equal.
// Explanations have the kind conv.
//
// Linear attention: every element of out and of the final states is compared with float64, within a bound that is
// measured on the problem. Kernels compute in chunks and round factors of products: E is such a computation, of chunks
// of 16, 128 and 256 tokens, D the largest |E − reference| of them over a head's block of 64 tokens and its two
// neighbours; of a final state over its matrix. The bound is
//   F D + 2⁻²⁰ max |reference| + u |element|,  F = 4, of factors in float32 16,
// max over the sequence's head or the matrix, u the unit roundoffs of the result's type and of factors. Of an input in
// float64 without a type of factors it is 2⁻³⁶ max |reference| + u |element|. Slots that no sequence writes must be equal.
// Explanations have the kinds boundary, chunk, decay, beta, delta, scale, order, norm, heads, operands, state, slots
// and empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/against.hpp"
#include "ejk/conv1d.hpp"
#include "ejk/linear_attention.hpp"

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

/// The type to which kernels round the factors of products.
enum class FactorType : std::uint8_t { f32, tf32, bf16, f16 };
std::string_view name_of(FactorType type);

/// Of any float types of 16 bits or more.
struct ActualLinearAttention {
  std::optional<ArrayView> out, final_state;
};

struct LinearAttentionVerdict {
  Against against;
  LinearAttentionWork work;
  bool tests_recurrence = true;  // some element shows what came before its token
};

/// `factors`: absent, the type of inputs of 16 bits, else float32. Throws as compare_conv1d() does. Cost: seven times
/// the computation, 40 times with explanations.
LinearAttentionVerdict compare_linear_attention(const LinearAttentionArrays& arrays,
                                                const LinearAttentionSettings& settings,
                                                const ActualLinearAttention& given,
                                                std::optional<FactorType> factors, Explain explain,
                                                const std::vector<std::string>& tiles = {});
std::int64_t bytes_to_compare_linear_attention(const LinearAttentionPlan& plan, Explain explain);

/// Gradients. D is the largest difference of those of three problems whose q, k, v and dout are multiplied by 1 ± the
/// unit roundoff of `factors`, of random signs, in float64: over a block of 64 tokens and its neighbours, of one head
/// for dq, dk, dv and a decay by channel and of all for other gates; over a matrix of states; else over the array. The
/// bound is F D + 2⁻²⁰ max |array| + u |element|; of an input in float64 2⁻³² max |array| + u |element|. Cost: four
/// float64 gradients, with explanations a dozen.
Against compare_linear_attention_grad(const LinearAttentionArrays& arrays,
                                      const LinearAttentionCotangents<ArrayView>& cotangents,
                                      const LinearAttentionSettings& settings,
                                      const LinearAttentionOperands<ArrayView>& given,
                                      std::optional<FactorType> factors, Explain explain,
                                      const std::vector<std::string>& tiles = {});
std::int64_t bytes_to_compare_linear_attention_grad(const LinearAttentionGradPlan& plan, Explain explain);

}  // namespace ejk
