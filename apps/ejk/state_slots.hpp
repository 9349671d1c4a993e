// Options for states in the slots of a pool: --state-indices, --has-initial-state, --pad-slot.
#pragma once

#include <string>
#include <vector>

#include "ejk/state_slots.hpp"
#include "job.hpp"
#include "options.hpp"
#include "sources.hpp"

namespace ejk::app {

struct SlotOptions {
  std::vector<std::string> indices;  // to read, and where others are written those
  std::string has_initial_state;
  std::int64_t pad_slot = -1;

  bool given() const { return !indices.empty(); }
};

/// Of a command with --initial-state.
void declare_state_slots(OptionSet& set, SlotOptions& into);

/// Their arrays, in memory.
StateSlots open_state_slots(const SlotOptions& options, Job& job);

}  // namespace ejk::app
