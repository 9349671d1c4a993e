// States in the slots of a pool: the options, and the arrays that they name.
// tests: tests/cli/conv1d/slots.case
#include "state_slots.hpp"

#include <limits>

#include "ejk/io.hpp"

namespace ejk::app {

namespace {

std::vector<std::string> read_indices(const std::string& word) {
  std::vector<std::string> references = split_references(word);
  if (references.size() > 2)
    throw usage("{} arrays are given, and READ[,WRITE] are one or two", references.size());
  return references;
}

}  // namespace

void declare_state_slots(OptionSet& set, SlotOptions& into) {
  add_word(
      set, "--state-indices", into.indices, read_indices, "READ[,WRITE]",
      "slots of the pool --initial-state (sequences,)\n"
      "Sequence n begins from slot READ[n]; its final state is slot WRITE[n], by default READ[n], of a copy of "
      "the pool, the result. No slot is written twice; those that no sequence writes keep what they have.")
      .needs("--initial-state");
  add_reference(set, "--has-initial-state", into.has_initial_state,
                "0: the sequence begins from 0, whatever its state (sequences,)\nbool, or integers.")
      .needs("--initial-state");
  add_word(
      set, "--pad-slot", into.pad_slot, at_least(std::numeric_limits<std::int64_t>::min()), "N",
      "the slot of padding, by default -1\n"
      "A sequence with no other slot is padding: its results are 0, and no slot is written. In READ alone: it begins "
      "from 0; in WRITE alone: its final state is not kept.")
      .needs("--state-indices")
      .recorded();
}

StateSlots open_state_slots(const SlotOptions& options, Job& job) {
  const auto open = [&](const char* role, const std::string& reference) {
    return IntegerArray(in_memory(*job.open_integers(role, reference)));
  };
  StateSlots slots;
  if (options.given()) slots.read = open("state_indices", options.indices[0]);
  if (options.indices.size() > 1) slots.write = open("write_indices", options.indices[1]);
  if (!options.has_initial_state.empty())
    slots.has_initial_state = open("has_initial_state", options.has_initial_state);
  slots.pad_slot = options.pad_slot;
  return slots;
}

}  // namespace ejk::app
