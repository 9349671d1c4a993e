// Slots of states: one of sound ones is changed, and plain loops detect it.
#include <algorithm>
#include <numeric>

#include "check/artefacts.hpp"
#include "support/failure.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// Sequences on different pages; those without a slot are padding.
struct States {
  std::int64_t page_size, columns;
  Numbers table, computed, initial, slots;

  explicit States(Random& random) : page_size(between(random, 1, 4)), columns(between(random, 1, 3)) {
    const std::int64_t sequences = between(random, 1, 4);
    table.resize(static_cast<std::size_t>(sequences * columns));
    std::iota(table.begin(), table.end(), 1);
    std::shuffle(table.begin(), table.end(), random);
    for (std::int64_t s = 0; s < sequences; ++s) {
      computed.push_back(between(random, 0, 1) == 0 ? 0 : between(random, 1, columns * page_size));
      initial.push_back(computed.back() > 0);
      slots.push_back(between(random, 0, 4) == 0 ? -1 : page(s));
    }
  }
  std::int64_t page(std::int64_t s) const {
    const std::int64_t tokens = std::max<std::int64_t>(computed[static_cast<std::size_t>(s)], 1);
    return table[static_cast<std::size_t>(s * columns + (tokens - 1) / page_size)];
  }
  bool is_sound() const {
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (slots[s] == -1) continue;
      if (slots[s] < 0 || slots[s] > std::ssize(table) ||
          std::count(slots.begin(), slots.end(), slots[s]) > 1)
        return false;
      if (computed[s] > 0 && slots[s] != page(static_cast<std::int64_t>(s))) return false;
      if ((initial[s] != 0) != (computed[s] > 0)) return false;
    }
    return true;
  }
  StateIndicesClaims claims() const {
    StateIndicesClaims of;
    of.slots = std::ssize(table) + 1;
    of.block_table = integers(table, {std::ssize(slots), columns}), of.page_size = page_size;
    of.computed = integers(computed), of.has_initial_state = integers(initial);
    return of;
  }
};

}  // namespace

TEST_CASE("a changed slot, length or flag of a state is an error") {
  Random random(6);
  Answers sound;
  for (int n = 0; n < 2000; ++n) {
    States states(random);
    CHECK(check_state_indices(integers(states.slots), states.claims()).errors() == 0);
    Numbers* changed[] = {&states.slots, &states.slots, &states.initial};
    Numbers& numbers = *changed[between(random, 0, 2)];
    numbers[static_cast<std::size_t>(between(random, 0, std::ssize(numbers) - 1))] = between(random, -2, 9);
    CAPTURE(to_string(states.slots));
    sound.add(states.is_sound());
    CHECK((check_state_indices(integers(states.slots), states.claims()).errors() == 0) == states.is_sound());
  }
  CHECK(sound.yes > 300);
  CHECK(sound.no > 300);
}

TEST_CASE("a finding of a state has its sequence, and the page where it should be") {
  StateIndicesClaims claims;
  claims.slots = 8;
  claims.block_table = integers({4, 5, 2, 3}, {2, 2}), claims.page_size = 16;
  claims.computed = integers({33, 17});
  CHECK(text_of(check_state_indices(integers({5, 2}), claims)) ==
        "column: state_indices(0,): sequence 0 has 33 computed tokens, and the table 2 pages of 16\n"
        "column: state_indices(1,): sequence 1 has 17 computed tokens: its state is in page 3 (column 1)\n");
  claims.block_table = {};
  claims.has_initial_state =
      make_source(Array::from<bool>({2}, std::initializer_list<bool>{true, false}), "has.npy");
  CHECK(text_of(check_state_indices(integers({5, 5}), claims)) ==
        "duplicate: state_indices(1,): sequences 0 and 1 write it\n"
        "fresh: has_initial_state(1,): sequence 1 begins from 0, with 17 computed tokens\n");
  claims.read = true;
  CHECK(check_state_indices(integers({5, 5}), claims).errors() == 1);
  claims.pad_slot = 5;
  CHECK(check_state_indices(integers({5, 5}), claims).errors() == 0);
  claims.computed = integers({1, 2, 3});
  CHECK(plain::failure([&] {
          check_state_indices(integers({5, 5}), claims);
        }) == "x.npy: computed tokens are of shape (3,), and the slots of 2 sequences");
  claims.computed = integers({1, -2});
  CHECK(plain::failure([&] {
          check_state_indices(integers({5, 5}), claims);
        }) == "x.npy: sequence 1 has -2 computed tokens");
}
