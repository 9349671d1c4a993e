// Slots of new tokens: one number of sound ones is changed, and a plain loop over positions detects it.
#include <algorithm>
#include <numeric>
#include <string>

#include "check/artefacts.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// Sequences on different pages, the last tokens of which are new.
struct Batch {
  std::int64_t page_size, columns;
  Numbers lengths, cu{0}, table, positions, slots;
};

Batch random_batch(Random& random) {
  Batch b{between(random, 1, 4), between(random, 1, 4), {}, {0}, {}, {}, {}};
  const std::int64_t batch = between(random, 1, 4);
  b.table.resize(static_cast<std::size_t>(batch * b.columns));
  std::iota(b.table.begin(), b.table.end(), 0);
  std::shuffle(b.table.begin(), b.table.end(), random);
  for (std::int64_t s = 0; s < batch; ++s) {
    b.lengths.push_back(between(random, 0, b.columns * b.page_size));
    const std::int64_t count = between(random, 0, b.lengths.back());
    b.cu.push_back(b.cu.back() + count);
    for (std::int64_t p = b.lengths.back() - count; p < b.lengths.back(); ++p) {
      b.positions.push_back(p);
      b.slots.push_back(b.table[static_cast<std::size_t>(s * b.columns + p / b.page_size)] * b.page_size +
                        p % b.page_size);
    }
  }
  return b;
}

Findings check_slots(const Batch& b, const Numbers& slots, bool by_positions) {
  SlotMappingClaims claims;
  claims.page_size = b.page_size;
  (by_positions ? claims.positions : claims.seq_lens) = integers(by_positions ? b.positions : b.lengths);
  claims.cu_seqlens = integers(b.cu);
  return check_slot_mapping(integers(slots), integers(b.table, {std::ssize(b.lengths), b.columns}), claims);
}

}  // namespace

TEST_CASE("a changed slot is an error, or a token that is not written") {
  Random random(2);
  int changes = 0;
  for (int n = 0; n < 500; ++n) {
    const Batch b = random_batch(random);
    for (const bool by_positions : {false, true}) {
      const Findings sound = check_slots(b, b.slots, by_positions);
      CHECK(sound.errors() + sound.warnings() == 0);
      if (b.slots.empty()) continue;
      Numbers slots = b.slots;
      std::int64_t& one = slots[static_cast<std::size_t>(between(random, 0, std::ssize(slots) - 1))];
      const std::int64_t was = one;
      one += between(random, -3, 3);
      changes += one != was;
      CHECK((check_slots(b, slots, by_positions).errors() == 0) == (one == was || one < 0));
      CHECK((check_slots(b, slots, by_positions).warnings() > 0) == (one < 0));
    }
  }
  CHECK(changes > 300);
}

TEST_CASE("a wrong slot has the right one beside it, and the sequence whose page it is in") {
  const Batch b{4, 2, {8, 6}, {0, 1, 2}, {10, 11, 3, 6}, {7, 5}, {47, 25}};
  const auto message = [&](const Numbers& slots) {
    const Findings found = check_slots(b, slots, false);
    return found.kept().front().finding.message;
  };
  CHECK(message({43, 25}) == "position 7 of sequence 0 is at 11 x 4 + 3 = 47");
  CHECK(message({27, 25}) == "position 7 of sequence 0 is at 11 x 4 + 3 = 47; page 6 is of sequence 1");
  CHECK(check_slots(b, {47, 25, -1, -1}, false).errors() == 0);
}
