// A layer of experts, as one function:
//
//   out[t] = Σ_j weights[t, j] · (activation(x[t] · gate[e]) ∘ (x[t] · up[e])) · down[e], e = topk_ids[t, j]
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "ejk/array.hpp"

namespace ejk {

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
