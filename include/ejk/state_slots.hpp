// States of sequences in the slots of a pool, as servers keep them between the calls of a recurrence: which slot each
// sequence reads, and which it writes.
//
// The initial state is a pool (slots, ...): sequence n begins from slot read[n], and its final state goes to slot
// write[n] of a copy of the pool, the result. Slots that no sequence writes keep their bits. A sequence whose
// slots are all the padding slot is padding: its results are 0, and it writes none. One that reads the padding slot
// alone begins from 0; of one that writes it alone the state is not kept.
#pragma once

#include <cstdint>

#include "ejk/array.hpp"

namespace ejk {

struct StateSlots {
  IntegerArray read, write;        // (sequences,); write absent: as read
  IntegerArray has_initial_state;  // (sequences,) bool or integers; 0: it begins from 0 whatever its state is
  std::int64_t pad_slot = -1;      // not read, not written
};

}  // namespace ejk
