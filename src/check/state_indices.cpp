// Slots of states in a pool, a sequence each: slots that are written are different; of a block table they are the page
// that the last computed token is in.
// tests: tests/check/test_state_indices.cpp, tests/check/test_rules.cpp
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "check/integers.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

// Empty where it is not given.
std::vector<std::int64_t> read_of_sequences(const IntegerArray& array, const char* what,
                                            std::int64_t sequences) {
  if (!array) return {};
  if (array->dtype() != DType::boolean) check::require_integers(*array, what, 1, 1, "(sequences,)");
  if (array->shape() != Shape{sequences})
    throw std::move(core::invalid("{} are of shape {}, and the slots of {} sequences", what,
                                  to_string(array->shape()), sequences)
                        .at(array->name()));
  return check::read_all_of(*array);
}

class StateWalk {
 public:
  StateWalk(const StateIndicesClaims& claims, std::int64_t sequences, Findings& found)
      : claims_(claims),
        computed_(read_of_sequences(claims.computed, "computed tokens", sequences)),
        initial_(read_of_sequences(claims.has_initial_state, "has_initial_state", sequences)),
        found_(found) {
    const auto negative =
        std::find_if(computed_.begin(), computed_.end(), [](std::int64_t n) { return n < 0; });
    if (negative != computed_.end())
      throw std::move(
          core::invalid("sequence {} has {} computed tokens", negative - computed_.begin(), *negative)
              .at(claims.computed->name()));
    if (!claims.block_table) return;
    check::require_integers(*claims.block_table, "block_table", 2, 2, "(sequences, pages)");
    columns_ = claims.block_table->shape()[1];
    if (claims.block_table->shape()[0] != sequences)
      throw std::move(core::invalid("the block table has {} rows, and the slots are of {} sequences",
                                    claims.block_table->shape()[0], sequences)
                          .at(claims.block_table->name()));
    table_ = check::read_all_of(*claims.block_table);
  }

  void see(std::int64_t sequence, std::int64_t slot) {
    if (slot == claims_.pad_slot) {
      ++padding_;
      return;
    }
    const auto add = [&](std::string_view rule, auto&& message) {
      check::add(found_, rule, sequence, "state_indices", {sequence}, slot, message);
    };
    if (slot < 0)
      add("padding",
          [&] { return fmt::format("of sequence {}; padding is {}", sequence, claims_.pad_slot); });
    else if (slot >= claims_.slots)
      add("range", [&] { return check::there_are(claims_.slots, "slot"); });
    else if (const auto [known, is_new] = writers_.try_emplace(slot, sequence); !is_new && !claims_.read)
      add("duplicate", [&, writer = known->second] {
        return fmt::format("sequences {} and {} write it", writer, sequence);
      });
    if (claims_.block_table) see_page(sequence, slot, add);
    see_fresh(sequence);
  }

  std::int64_t padding() const { return padding_; }

 private:
  std::int64_t computed(std::int64_t sequence) const { return computed_[static_cast<std::size_t>(sequence)]; }

  template <class Add>
  void see_page(std::int64_t sequence, std::int64_t slot, const Add& add) {
    if (slot == 0) add("null", [&] { return fmt::format("the null page, of sequence {}", sequence); });
    const std::int64_t tokens = computed(sequence);
    if (tokens == 0) return;
    const std::int64_t column = (tokens - 1) / claims_.page_size;
    if (column >= columns_)
      add("column", [&] {
        return fmt::format("sequence {} has {} computed tokens, and the table {} pages of {}", sequence,
                           tokens, columns_, claims_.page_size);
      });
    else if (const std::int64_t page = table_[static_cast<std::size_t>(sequence * columns_ + column)];
             page != slot)
      add("column", [&] {
        return fmt::format("sequence {} has {} computed tokens: its state is in page {} (column {})",
                           sequence, tokens, page, column);
      });
  }

  void see_fresh(std::int64_t sequence) {
    if (!claims_.has_initial_state) return;
    const std::int64_t initial = initial_[static_cast<std::size_t>(sequence)], tokens = computed(sequence);
    if ((initial != 0) == (tokens > 0)) return;
    check::add(found_, "fresh", sequence, "has_initial_state", {sequence}, initial, [&] {
      return tokens > 0 ? fmt::format("sequence {} begins from 0, with {} computed tokens", sequence, tokens)
                        : fmt::format("sequence {} is new, and reads the slot of another", sequence);
    });
  }

  const StateIndicesClaims& claims_;
  std::vector<std::int64_t> computed_, initial_, table_;
  std::int64_t columns_ = 0, padding_ = 0;
  std::unordered_map<std::int64_t, std::int64_t> writers_;  // of each slot, the first
  Findings& found_;
};

}  // namespace

Findings check_state_indices(const IntegerArray& state_indices, const StateIndicesClaims& claims,
                             const CheckOptions& options) {
  check::require_integers(*state_indices, "state_indices", 1, 1, "(sequences,)");
  check::require_claim("slots", claims.slots, 0);
  if (claims.block_table) check::require_claim("page_size", claims.page_size, 1);
  if ((claims.block_table || claims.has_initial_state) && !claims.computed)
    throw core::usage("how many tokens are computed is not given");
  Findings found(rules_of("state-indices"), options.most_findings);
  const std::int64_t sequences = state_indices->shape()[0];
  StateWalk walk(claims, sequences, found);
  check::scan(*state_indices, options, [&](std::span<const std::int64_t> slots, std::int64_t first) {
    for (std::size_t k = 0; k < slots.size(); ++k) walk.see(first + static_cast<std::int64_t>(k), slots[k]);
  });
  found.facts()
      .add("sequences", "sequences", sequences, Unit::count)
      .add("padding", "padding", walk.padding(), Unit::count)
      .add("slots", "slots", claims.slots, Unit::count);
  return found;
}

}  // namespace ejk
