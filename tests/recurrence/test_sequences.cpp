// Sequences and slots: which state each sequence reads and writes, and what is refused.
#include <doctest/doctest.h>

#include "recurrence/sequences.hpp"
#include "support/failure.hpp"

using namespace ejk;
using recurrence::Slot;

namespace {

using Integers = std::vector<std::int64_t>;

std::string text_of(const std::vector<Slot>& slots) {
  std::string text;
  for (const Slot& slot : slots)
    text += std::to_string(slot.read) + ">" + std::to_string(slot.write) + (slot.is_padding ? "! " : " ");
  return text;
}

std::string slots_text(const StateSlots& given, std::int64_t sequences, std::optional<std::int64_t> states) {
  return text_of(recurrence::slots_of(given, sequences, states));
}

}  // namespace

TEST_CASE("without slots each sequence reads its own state, if there is one, and writes it") {
  CHECK(slots_text({}, 3, std::nullopt) == "-1>0 -1>1 -1>2 ");
  CHECK(slots_text({}, 2, 2) == "0>0 1>1 ");
  StateSlots has;
  has.has_initial_state = Integers{1, 0};
  CHECK(slots_text(has, 2, 2) == "0>0 -1>1 ");
}

TEST_CASE("slots are read and written; the padding slot is neither") {
  StateSlots given;
  given.read = Integers{3, -1, 0, 2};
  CHECK(slots_text(given, 4, 4) == "3>3 -1>-1! 0>0 2>2 ");
  given.write = Integers{3, 1, -1, 0};
  CHECK(slots_text(given, 4, 4) == "3>3 -1>1 0>-1 2>0 ");
  given.has_initial_state = Integers{0, 1, 0, 7};
  CHECK(slots_text(given, 4, 4) == "-1>3 -1>1 -1>-1 2>0 ");
  StateSlots null;
  null.read = Integers{0, 2, 0};
  null.pad_slot = 0;
  CHECK(slots_text(null, 3, 3) == "-1>-1! 2>2 -1>-1! ");
  StateSlots shared;  // read by several, which is no harm
  shared.read = Integers{1, 1};
  shared.write = Integers{0, 1};
  CHECK(slots_text(shared, 2, 2) == "1>0 1>1 ");
}

TEST_CASE("slots that do not fit are refused with the sequence and the slot") {
  const auto why = [](const Integers& read, const Integers& write = {}) {
    StateSlots given;
    given.read = make_source(Array::from<std::int64_t>({std::ssize(read)}, read), "r.npy");
    if (!write.empty()) given.write = write;
    return plain::failure([&] { slots_text(given, 2, 4); });
  };
  CHECK(why({0, 4}) == "r.npy: sequence 1 reads slot 4, and the initial state has 4");
  CHECK(why({-2, 1}) == "r.npy: sequence 0 reads slot -2, and the initial state has 4");
  CHECK(why({2, 2}) == "r.npy: sequences 0 and 1 both write slot 2");
  CHECK(why({2, 2}, {0, 9}) == "array: sequence 1 writes slot 9, and the initial state has 4");
  CHECK(why({2, 1, 0}) == "r.npy: state_indices has 3 elements, and there are 2 sequences");
  StateSlots given;
  given.write = Integers{0};
  const auto misuse = [&](std::optional<std::int64_t> states) {
    return plain::failure([&] { slots_text(given, 1, states); }, Error::Kind::usage);
  };
  CHECK(misuse(1) == "slots are written, and those that are read are missing");
  CHECK(misuse(std::nullopt) == "slots are those of an initial state, which is missing");
  CHECK(plain::failure([&] { slots_text({}, 3, 2); }) ==
        "initial_state has 2 states, and there are 3 sequences");
}

TEST_CASE("packed sequences cover the tokens, empty ones among them") {
  const Integers cu{0, 3, 3, 5};
  const auto all = recurrence::packed_sequences(*make_source(view_of(cu.data(), {4})), 5, "x");
  REQUIRE(all.size() == 3);
  CHECK(all[1].begin == 3);
  CHECK(all[1].length == 0);
  CHECK(all[2].length == 2);
  CHECK(plain::failure([&] {
          recurrence::packed_sequences(*make_source(view_of(cu.data(), {4}), "cu"), 6, "x");
        }) == "cu: cu_seqlens ends at 5 (index 3), and x has 6 tokens");
  CHECK(recurrence::sequences_of_batch(2, 7)[1].entry == 1);
}
