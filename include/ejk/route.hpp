// Routing of tokens to experts: the experts of each token from its logits, the rows of a grouped product from
// the experts of all tokens, and the sum of each token's rows of the product.
//
// Choice f of topk_ids (tokens, k), flattened in C order, belongs to token f / k. Sorted by expert, stably,
// choices become rows: row r is choice order[r], so that x[token] are the rows of a grouped product of x, and
// its result y gives those of the choices as y[inverse]. Choices of -1 come last and belong to no group.
//
// A layer of experts is
//   out[t] = Σ_j weights[t, j] · (activation(x[t] · gate[e]) ∘ (x[t] · up[e])) · down[e], e = topk_ids[t, j]
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// n = tokens · k. All int32.
struct Route {
  Array group_sizes;  // (experts,): rows of each expert
  Array order;        // (n,): the choice of each row
  Array inverse;      // (n,): the row of each choice
  Array token;        // (n,): the token of each row

  std::int64_t tokens = 0, choices = 0;  // choices without -1
};

/// topk_ids (..., k), or (tokens,) for k = 1, any integer dtype. Memory: route_bytes. Throws Error{input} with
/// the index of an id that is below -1 or not below `experts`, and for more than 2^31 - 1 choices.
Route make_route(const IntegerArray& topk_ids, std::int64_t experts);

std::int64_t route_bytes(const ArraySource& topk_ids, std::int64_t experts);

enum class RouterScore : std::uint8_t { softmax, sigmoid };
/// "softmax", "sigmoid".
std::string_view name_of(RouterScore score);

struct RouterSettings {
  std::int64_t top_k = 1;
  RouterScore score = RouterScore::softmax;
  /// (experts,): added to the scores that choose, not to the weights. Null: none.
  std::shared_ptr<const ArraySource> bias = nullptr;
  /// The number of consecutive groups of experts, equal in size. Experts of the best `top_groups` are eligible. The
  /// score of a group is the largest of its experts, with a bias the sum of the two largest (DeepSeek-V2, V3).
  std::int64_t groups = 1, top_groups = 1;
  bool renormalize = false;      // the weights of a token sum to 1
  DType dtype = DType::float32;  // of the weights
};

struct RoutedTokens {
  Array topk_ids;      // (tokens, k) int32, by descending score; of equal ones the lower expert first
  Array topk_weights;  // (tokens, k)
  /// Tokens whose k-th and next score are equal, or whose last eligible group and the next.
  std::int64_t ties = 0;
};

/// Scores of logits (tokens, experts) of a float type, in float64. Throws Error{usage} for settings out of
/// range, Error{input} for another shape or type of logits and bias, and NaN.
RoutedTokens choose_experts(const ArraySource& logits, const RouterSettings& settings,
                            const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// The weights (tokens, k) of given choices by these settings, float64; 0 for −1. Throws as choose_experts(), and
/// Error{input} for ids that are no experts.
Array weights_of_choices(const ArraySource& logits, const RouterSettings& settings,
                         const ArraySource& topk_ids);

/// Weights of the same choices that are wrong in a known way: "the weights are those with the bias".
struct OtherWeights {
  std::string text;
  Array weights;  // (tokens, k) float64
};
std::vector<OtherWeights> wrong_weights_of_choices(const ArraySource& logits, const RouterSettings& settings,
                                                   const ArraySource& topk_ids);

struct CombineSettings {
  /// (tokens, k), or (tokens,) for k = 1, of a float type. Null: each is 1.
  std::shared_ptr<const ArraySource> weights = nullptr;
  /// Without weights: k.
  std::int64_t top_k = 1;
  /// The rows of all groups: choices with later rows are of no expert and add nothing. By default all.
  std::optional<std::int64_t> rows = std::nullopt;
  /// By default that of y.
  std::optional<DType> dtype = std::nullopt;
};

/// out (tokens, n): out[t] = Σ weights[t, j] y[inverse[t k + j]] over j < k, of y (rows, n) of a float type and
/// Route::inverse (tokens k,). Sums are float64, in order, and rounded once. Throws Error{input} for other
/// shapes and types, and with the index for an element of `inverse` that is no row of y.
Array combine_experts(const ArrayView& y, const IntegerArray& inverse, const CombineSettings& settings = {});

/// Load of the experts, and of `ranks` expert-parallel ranks with as many consecutive experts each. Throws
/// Error{usage} if they do not divide the experts.
Report describe(const Route& route, std::int64_t ranks = 1);

enum class Activation : std::uint8_t { silu, gelu, gelu_tanh };
/// "silu", "gelu", "gelu-tanh".
std::string_view name_of(Activation activation);

struct MoeOperands {
  ArrayView x;             // (tokens, hidden)
  ArrayView gate, up;      // (experts, hidden, inter); any strides
  ArrayView down;          // (experts, inter, hidden)
  ArrayView topk_ids;      // (tokens, k) int32; −1 is no expert
  ArrayView topk_weights;  // (tokens, k) of a float type
};

/// The halves of the last axis of (experts, hidden, 2 inter).
struct GateAndUp {
  ArrayView gate, up;
};
GateAndUp split_gate_and_up(const ArrayView& both);

using MoeProgress = std::function<void(std::int64_t done, std::int64_t all)>;

/// (tokens, hidden) of `dtype`. Products and the activation are float32, or float64 where x is; the sums of a token
/// float64, rounded once. Throws Error{input} about the operand for shapes and types that do not fit.
Array moe(const MoeOperands& operands, Activation activation, DType dtype, const MoeProgress& progress = {});

/// Shapes and types, for plans; k of topk_ids.
struct MoeTypes {
  ArrayType x, gate, down;
  std::int64_t top_k = 1;
};
/// Throws as moe(); operands without elements will do.
MoeTypes types_of(const MoeOperands& operands);
std::int64_t moe_bytes(const MoeTypes& types, DType dtype);

}  // namespace ejk
