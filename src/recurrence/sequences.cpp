// Sequences and slots of states, read whole and checked. Cost: some nanoseconds a sequence, and the slots of the pool.
// tests: tests/recurrence/test_sequences.cpp
#include "recurrence/sequences.hpp"

#include "core/named.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"

namespace ejk::recurrence {

namespace {

using core::invalid;

std::vector<std::int64_t> read_of_each(const IntegerArray& array, const char* what, std::int64_t sequences) {
  return core::about(what, [&] {
    std::vector<std::int64_t> values = core::read_integers(*array, what);
    if (std::ssize(values) != sequences)
      throw std::move(
          invalid("{} has {} elements, and there are {} sequences", what, values.size(), sequences)
              .at(array->name()));
    return values;
  });
}

void require_slot(const IntegerArray& array, const char* does, std::int64_t sequence, std::int64_t slot,
                  std::int64_t slots) {
  if (slot < 0 || slot >= slots)
    throw std::move(
        invalid("sequence {} {} slot {}, and the initial state has {}", sequence, does, slot, slots)
            .about("state_indices")
            .at(array->name()));
}

}  // namespace

std::vector<Sequence> sequences_of_batch(std::int64_t entries, std::int64_t tokens) {
  std::vector<Sequence> all;
  for (std::int64_t n = 0; n < entries; ++n) all.push_back({n, 0, tokens});
  return all;
}

std::vector<Sequence> packed_sequences(const ArraySource& cu_seqlens, std::int64_t tokens,
                                       std::string_view name) {
  const std::vector<std::int64_t> offsets = core::read_offsets(cu_seqlens);
  if (offsets.back() != tokens)
    throw Error(Error::Kind::input,
                fmt::format("{}: cu_seqlens ends at {} (index {}), and {} has {} tokens", cu_seqlens.name(),
                            offsets.back(), offsets.size() - 1, name, tokens));
  std::vector<Sequence> all;
  for (std::size_t n = 1; n < offsets.size(); ++n)
    all.push_back({0, offsets[n - 1], offsets[n] - offsets[n - 1]});
  return all;
}

std::vector<Slot> slots_of(const StateSlots& given, std::int64_t sequences,
                           std::optional<std::int64_t> states) {
  if ((given.read || given.write || given.has_initial_state) && !states)
    throw core::usage("slots are those of an initial state, which is missing");
  if (given.write && !given.read) throw core::usage("slots are written, and those that are read are missing");
  if (states && !given.read && *states != sequences)
    throw invalid("initial_state has {} states, and there are {} sequences", *states, sequences)
        .about("initial_state")
        .hint("of a pool of slots, state indices say which are those of the sequences");
  std::vector<Slot> slots(static_cast<std::size_t>(sequences));
  std::vector<std::int64_t> read, write, has;
  if (given.read) read = read_of_each(given.read, "state_indices", sequences);
  write = given.write ? read_of_each(given.write, "write_indices", sequences) : read;
  if (given.has_initial_state) has = read_of_each(given.has_initial_state, "has_initial_state", sequences);

  std::vector<std::int64_t> writer(given.read ? static_cast<std::size_t>(*states) : 0, -1);
  for (std::int64_t n = 0; n < sequences; ++n) {
    const auto i = static_cast<std::size_t>(n);
    Slot& slot = slots[i];
    if (given.read) {
      if (read[i] != given.pad_slot) require_slot(given.read, "reads", n, slot.read = read[i], *states);
      if (write[i] != given.pad_slot) {
        const IntegerArray& array = given.write ? given.write : given.read;
        require_slot(array, "writes", n, slot.write = write[i], *states);
        std::int64_t& first = writer[static_cast<std::size_t>(slot.write)];
        if (first >= 0)
          throw std::move(invalid("sequences {} and {} both write slot {}", first, n, slot.write)
                              .about("state_indices")
                              .at(array->name()));
        first = n;
      }
      slot.is_padding = slot.read < 0 && slot.write < 0;
    } else {
      slot.read = states ? n : -1;
      slot.write = n;
    }
    if (given.has_initial_state && has[i] == 0) slot.read = -1;
  }
  return slots;
}

}  // namespace ejk::recurrence
