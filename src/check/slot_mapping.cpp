// Slots of a paged cache: that of each new token is compared with the one of its position. Pages and slots
// are stored by the sequence and the token that have them first.
// tests: tests/check/test_slot_mapping.cpp, tests/check/test_rules.cpp
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_map>
#include <vector>

#include "check/integers.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

// The new tokens: those of sequence s are begins[s] … begins[s + 1] - 1.
struct NewTokens {
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> lengths;    // of sequences, whose last tokens they are; or empty
  std::vector<std::int64_t> positions;  // else

  std::int64_t position(std::int64_t token, std::size_t sequence) const {
    return lengths.empty() ? positions[static_cast<std::size_t>(token)]
                           : lengths[sequence] - (begins[sequence + 1] - token);
  }
  // Tokens of a sequence as far as they are known.
  std::int64_t length(std::size_t sequence) const {
    std::int64_t all = 0;
    for (std::int64_t token = begins[sequence]; lengths.empty() && token < begins[sequence + 1]; ++token)
      all = std::max(all, positions[static_cast<std::size_t>(token)] + 1);
    return lengths.empty() ? all : lengths[sequence];
  }
};

NewTokens new_tokens(std::int64_t batch, const SlotMappingClaims& claims) {
  if (static_cast<bool>(claims.seq_lens) == static_cast<bool>(claims.positions))
    throw core::usage("either lengths of sequences or positions of tokens are needed");
  NewTokens tokens;
  if (claims.cu_seqlens) {
    tokens.begins = core::read_offsets(*claims.cu_seqlens);
  } else {
    tokens.begins.resize(static_cast<std::size_t>(batch) + 1);
    std::iota(tokens.begins.begin(), tokens.begins.end(), 0);
  }
  if (std::ssize(tokens.begins) != batch + 1)
    throw std::move(
        core::invalid("{} sequences for the {} rows of the block table", tokens.begins.size() - 1, batch)
            .at(claims.cu_seqlens->name()));
  if (claims.positions) {
    tokens.positions = core::read_integers(*claims.positions, "positions");
    if (std::ssize(tokens.positions) != tokens.begins.back())
      throw std::move(
          core::invalid("{} positions for {} new tokens", tokens.positions.size(), tokens.begins.back())
              .at(claims.positions->name())
              .hint(claims.cu_seqlens ? "" : "cu_seqlens say how many new tokens a sequence has"));
    return tokens;
  }
  tokens.lengths = core::read_integers(*claims.seq_lens, "seq_lens");
  const std::vector<std::int64_t>& lengths = tokens.lengths;
  if (std::ssize(lengths) != batch)
    throw std::move(core::invalid("{} lengths for the {} rows of the block table", lengths.size(), batch)
                        .at(claims.seq_lens->name()));
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const std::int64_t count = tokens.begins[s + 1] - tokens.begins[s];
    if (lengths[s] < count)
      throw std::move(
          core::invalid("seq_lens[{}] is {}, and the sequence has {} new tokens", s, lengths[s], count)
              .at(claims.seq_lens->name()));
  }
  return tokens;
}

class SlotWalk {
 public:
  SlotWalk(std::vector<std::int64_t> table, std::int64_t columns, std::int64_t page_size,
           const NewTokens& tokens, Findings& found)
      : table_(std::move(table)), columns_(columns), page_size_(page_size), found_(found) {
    for (std::size_t s = 0; s + 1 < tokens.begins.size(); ++s) {
      const std::int64_t used = std::min(columns_, core::ceil_div(tokens.length(s), page_size_));
      const auto sequence = static_cast<std::int64_t>(s);
      for (std::int64_t p = 0; p < used; ++p) owners_.try_emplace(entry(sequence, p), sequence);
    }
  }

  void see(std::int64_t token, std::int64_t slot, std::int64_t sequence, std::int64_t position) {
    const auto add = [&](std::string_view rule, auto&& message) {
      check::add(found_, rule, token, "slots", {token}, slot, message);
    };
    const std::int64_t column = position < 0 ? -1 : position / page_size_;
    const std::int64_t page = column < 0 || column >= columns_ ? -1 : entry(sequence, column);
    if (page < 0) {
      add("range", [&] {
        return fmt::format("position {} of sequence {} has no page in the table", position, sequence);
      });
      return;
    }
    if (slot < 0) {
      add("unwritten", [&] { return fmt::format("position {} of sequence {}", position, sequence); });
      return;
    }
    ++written_;
    if (const auto known = slots_.try_emplace(slot, token); !known.second)
      add("twice", [&] { return fmt::format("also of token {}", known.first->second); });
    const std::int64_t offset = position % page_size_;
    const auto right = core::checked_mul(page, page_size_);
    if (right && slot == *right + offset) return;
    const auto owner = owners_.find(slot / page_size_);
    const bool is_foreign =
        owner != owners_.end() && owner->second != sequence && !is_own(sequence, slot / page_size_);
    add(is_foreign ? "foreign" : "slot", [&] {
      return fmt::format(
          "position {} of sequence {} is at {} x {} + {}{}{}", position, sequence, page, page_size_, offset,
          right ? fmt::format(" = {}", *right + offset) : "",
          is_foreign ? fmt::format("; page {} is of sequence {}", slot / page_size_, owner->second) : "");
    });
  }

  std::int64_t written() const { return written_; }

 private:
  std::int64_t entry(std::int64_t sequence, std::int64_t column) const {
    return table_[static_cast<std::size_t>(sequence * columns_ + column)];
  }
  bool is_own(std::int64_t sequence, std::int64_t page) const {
    const std::span row = std::span(table_).subspan(static_cast<std::size_t>(sequence * columns_),
                                                    static_cast<std::size_t>(columns_));
    return std::find(row.begin(), row.end(), page) != row.end();
  }

  std::vector<std::int64_t> table_;
  std::int64_t columns_, page_size_, written_ = 0;
  std::unordered_map<std::int64_t, std::int64_t> owners_, slots_;  // the first sequence; the first token
  Findings& found_;
};

}  // namespace

Findings check_slot_mapping(const IntegerArray& slots, const IntegerArray& block_table,
                            const SlotMappingClaims& claims, const CheckOptions& options) {
  check::require_integers(*slots, "slots", 1, 1, "(tokens,)");
  check::require_integers(*block_table, "block_table", 2, 2, "(batch, pages)");
  check::require_claim("page_size", claims.page_size, 1);
  const std::int64_t batch = block_table->shape()[0], given = slots->shape()[0];
  const NewTokens tokens = new_tokens(batch, claims);
  const std::int64_t count = tokens.begins.back();

  Findings found(rules_of("slot-mapping"), options.most_findings);
  if (given < count)
    check::add(found, "length", 0, "slots", {}, given,
               [&] { return fmt::format("{} slots for {} new tokens", given, count); });
  SlotWalk walk(check::read_all_of(*block_table), block_table->shape()[1], claims.page_size, tokens, found);
  std::size_t sequence = 0;
  check::scan(*slots, options, [&](std::span<const std::int64_t> values, std::int64_t first) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::int64_t token = first + static_cast<std::int64_t>(k);
      while (token < count && tokens.begins[sequence + 1] <= token) ++sequence;
      if (token < count)
        walk.see(token, values[k], static_cast<std::int64_t>(sequence), tokens.position(token, sequence));
      else if (values[k] >= 0)
        check::add(found, "past-end", token, "slots", {token}, values[k],
                   [&] { return check::there_are(count, "new token"); });
    }
  });
  found.facts()
      .add("sequences", "sequences", batch, Unit::count)
      .add("tokens", "new tokens", count, Unit::count)
      .add("written", "slots written", walk.written(), Unit::count);
  return found;
}

}  // namespace ejk
