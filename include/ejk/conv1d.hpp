// The short causal convolution of linear attention and state-space layers, channel by channel, with its state.
//
// Of channel d, with W weights, the last of them on the token itself:
//   out[t, d] = act(bias[d] + Σ_j weight[d, j] · x[t − (W − 1) + j, d]),  silu(x) = x / (1 + exp(−x))
// Before the first token of a sequence are the newest columns of its initial state, else 0. The state is the
// last L ≥ W − 1 tokens, the newest last: the final one that of the initial state and the sequence together,
// exact copies. An empty sequence has the final state that it began with.
//
// Arithmetic is float32, float64 where an input is float64, rounded once to the type of out: within
// 2⁻²¹ (max|x| · max Σ_j |weight[d, j]| + 1) of the formula, and that rounding. A sequence's bits depend on it
// alone. Cost: one pass over x and out.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ejk/array.hpp"
#include "ejk/report.hpp"
#include "ejk/state_slots.hpp"

namespace ejk {

/// Of x and out: (batch, sequence, channels), (batch, channels, sequence); of packed sequences (tokens, channels),
/// (channels, tokens).
enum class Conv1dLayout : std::uint8_t { bsd, bds, td, dt };
std::string_view name_of(Conv1dLayout layout);

enum class Conv1dActivation : std::uint8_t { none, silu };
std::string_view name_of(Conv1dActivation activation);

/// Of states: (sequences, channels, L), or (sequences, L, channels).
enum class Conv1dStateLayout : std::uint8_t { dw, wd };
std::string_view name_of(Conv1dStateLayout layout);

/// Any float types of 16 bits or more.
struct Conv1dOperands {
  ArrayView x;
  ArrayView weight;                        // (channels, W) or (channels, 1, W)
  std::optional<ArrayView> bias;           // (channels,)
  std::optional<ArrayView> initial_state;  // of the sequences, or of the slots
  IntegerArray cu_seqlens;                 // of packed tokens
  StateSlots slots;
};

struct Conv1dSettings {
  std::optional<Conv1dLayout> layout;  // absent: bsd, with cu_seqlens td
  Conv1dActivation activation = Conv1dActivation::none;
  Conv1dStateLayout state_layout = Conv1dStateLayout::dw;
  std::optional<std::int64_t> state_width;  // L; absent: that of the initial state, else W − 1
  std::optional<DType> dtype;               // of out; absent: that of x
};

struct Conv1dTypes {
  Conv1dLayout layout = Conv1dLayout::bsd;
  ArrayType out;
  ArrayType final_state;  // of x's type, with slots of the pool's
  std::int64_t sequences = 0, tokens = 0, channels = 0, width = 0, state_width = 0;
};

/// What conv1d() returns. Of x, weight, bias and initial_state only types are used. Throws Error{usage} for settings
/// that contradict each other, Error{input} about the operand for one that does not fit the others.
Conv1dTypes types_of(const Conv1dOperands& operands, const Conv1dSettings& settings);

struct Conv1dResult {
  Array out, final_state;
};

/// Throws what types_of() throws.
Conv1dResult conv1d(const Conv1dOperands& operands, const Conv1dSettings& settings);

Report describe(const Conv1dTypes& types);

}  // namespace ejk
