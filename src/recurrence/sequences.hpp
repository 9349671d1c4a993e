// Sequences of a batch or of packed tokens, and the states that each reads and writes: what the recurrences of linear
// attention and short convolutions share.
// tests: tests/recurrence/test_sequences.cpp
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/state_slots.hpp"

namespace ejk::recurrence {

/// `length` tokens from `begin` on, of an entry of the batch; packed tokens are one entry.
struct Sequence {
  std::int64_t entry = 0, begin = 0, length = 0;
};

std::vector<Sequence> sequences_of_batch(std::int64_t entries, std::int64_t tokens);

/// Throws Error{input}: the errors of core::read_offsets, and an end other than `tokens`, the tokens of array `name`.
std::vector<Sequence> packed_sequences(const ArraySource& cu_seqlens, std::int64_t tokens,
                                       std::string_view name);

/// The states of a sequence: indices of the first axis of the initial and of the final states.
struct Slot {
  std::int64_t read = -1;   // −1: it begins from 0
  std::int64_t write = -1;  // −1: its final state is not kept
  bool is_padding = false;  // its results are 0
};

/// One for each sequence. `states`: the first axis of the initial states; nothing where there are none. Throws
/// Error{usage} for slots without initial states, Error{input} about "state_indices", "write_indices",
/// "has_initial_state" or "initial_state": another number of them than of sequences, a slot out of range or written
/// twice.
std::vector<Slot> slots_of(const StateSlots& given, std::int64_t sequences,
                           std::optional<std::int64_t> states);

}  // namespace ejk::recurrence
