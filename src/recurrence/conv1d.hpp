// A short convolution as computed: arrays with their axes in one order, sequences, and the slots of their states.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ejk/conv1d.hpp"
#include "recurrence/sequences.hpp"

namespace ejk::recurrence {

struct Conv1dProblem {
  Conv1dTypes types;
  Conv1dActivation activation = Conv1dActivation::none;
  ArrayView x;                           // (entries, tokens, channels)
  ArrayView weight;                      // (channels, W)
  std::optional<ArrayView> bias, state;  // (channels,); (states, channels, L)
  std::vector<Sequence> sequences;
  std::vector<Slot> slots;
  bool has_pool = false;  // the final state is a copy of the pool with the slots that are written
  bool is_double = false;

  const std::byte* x_at(const Sequence& sequence, std::int64_t token, std::int64_t channel) const {
    return x.data + sequence.entry * x.strides[0] + (sequence.begin + token) * x.strides[1] +
           channel * x.strides[2];
  }
  const std::byte* state_at(std::int64_t state_index, std::int64_t channel, std::int64_t column) const {
    return state->data + state_index * state->strides[0] + channel * state->strides[1] +
           column * state->strides[2];
  }
};

/// Throws what types_of() throws. Only integers are read.
Conv1dProblem conv1d_problem(const Conv1dOperands& operands, const Conv1dSettings& settings);

bool is_packed(Conv1dLayout layout);
bool has_tokens_last(Conv1dLayout layout);

/// (entries, tokens, channels).
ArrayView in_one_form(ArrayView x, Conv1dLayout layout);
/// (states, channels, columns).
ArrayView in_one_form(ArrayView state, Conv1dStateLayout layout);

}  // namespace ejk::recurrence
