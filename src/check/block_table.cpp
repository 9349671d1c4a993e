// Block tables, row by row up to the pages that the length of a sequence needs. The last sequence of each
// page is stored, to distinguish a page that a sequence has twice from one that several share: in an array if
// there are not many more pages than entries, else in a map.
// tests: tests/check/test_block_table.cpp
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "check/integers.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kUnowned = -1;

class Owners {
 public:
  /// `entries`: of the table, in use.
  explicit Owners(std::int64_t entries)
      : chunks_(static_cast<std::size_t>(core::ceil_div(kPagesPerEntry * entries, kChunk))) {}

  std::int64_t& operator[](std::int64_t page) {
    const std::int64_t chunk = page / kChunk;
    if (chunk >= std::ssize(chunks_)) return others_.try_emplace(page, kUnowned).first->second;
    std::vector<std::int64_t>& pages = chunks_[static_cast<std::size_t>(chunk)];
    if (pages.empty()) pages.assign(kChunk, kUnowned);
    return pages[static_cast<std::size_t>(page % kChunk)];
  }

 private:
  static constexpr std::int64_t kPagesPerEntry = 4;  // an entry of the map takes as much memory as 8 pages
  static constexpr std::int64_t kChunk = 4096;       // pages
  std::vector<std::vector<std::int64_t>> chunks_;    // allocated on first use
  std::unordered_map<std::int64_t, std::int64_t> others_;
};

}  // namespace

Findings check_block_table(const IntegerArray& block_table, const IntegerArray& seq_lens,
                           const BlockTableClaims& claims, const CheckOptions& options) {
  const ArraySource& table = *block_table;
  check::require_integers(table, "block_table", 2, 2, "(batch, pages)");
  check::require_integers(*seq_lens, "seq_lens", 1, 1, "(batch,)");
  check::require_claim("page_size", claims.page_size, 1);
  check::require_claim("pages", claims.pages.value_or(0), 0);
  const std::int64_t batch = table.shape()[0], columns = table.shape()[1];
  if (seq_lens->shape()[0] != batch)
    throw std::move(
        core::invalid("{} lengths for the {} rows of the block table", seq_lens->shape()[0], batch)
            .at(seq_lens->name()));

  Findings found(rules_of("block-table"), options.most_findings);
  const std::vector<std::int64_t> lengths = check::read_all_of(*seq_lens);
  const auto pages_of = [&](std::int64_t length) {
    return length <= 0 ? 0 : core::ceil_div(length, claims.page_size);
  };
  std::int64_t entries_in_use = 0;
  for (const std::int64_t length : lengths) entries_in_use += std::min(pages_of(length), columns);
  Owners owners(entries_in_use);
  std::int64_t used = 0, different = 0;
  check::Buffer buffer;
  for (std::int64_t s = 0; s < batch; ++s) {
    const std::int64_t length = lengths[static_cast<std::size_t>(s)];
    const auto of_length = [&](std::string_view rule, auto&& message) {
      check::add(found, rule, s, "seq_lens", {s}, length, message);
    };
    if (length < 0) of_length("length", "less than 0");
    const std::int64_t needed = pages_of(length);
    if (needed > columns)
      of_length("beyond", [&] { return fmt::format("needs {} pages; a row holds {}", needed, columns); });
    const std::int64_t end = std::min(needed, columns);
    std::int64_t left_behind = 0;  // null pages before the first other one
    bool has_others = false;
    for (std::int64_t begin = 0; begin < end; begin += check::kPiece) {
      const std::int64_t stop = std::min(end, begin + check::kPiece);
      const auto entries = check::read_range(table, s * columns + begin, s * columns + stop, buffer);
      for (std::size_t k = 0; k < entries.size(); ++k) {
        const std::int64_t p = begin + static_cast<std::int64_t>(k), page = entries[k];
        const auto add = [&](std::string_view rule, auto&& message) {
          check::add(found, rule, s * columns + p, "block_table", {s, p}, page, message);
        };
        if (claims.null_page && page == *claims.null_page) {
          const bool first = p == left_behind;
          if (first && p + 1 < needed)
            ++left_behind;
          else
            add("null", [&] {
              return first ? fmt::format("all {} pages of sequence {} are null", needed, s)
                           : fmt::format("page {} of {} of sequence {}, behind page {}", p, needed, s,
                                         left_behind);
            });
          continue;
        }
        has_others = true;
        if (page == -1) {
          add("missing", [&] { return fmt::format("page {} of {} of sequence {}", p, needed, s); });
          continue;
        }
        if (page < 0 || (claims.pages && page >= *claims.pages)) {
          add("range",
              [&] { return page < 0 ? std::string("below -1") : check::there_are(*claims.pages, "page"); });
          continue;
        }
        ++used;
        const std::int64_t owner = std::exchange(owners[page], s);
        if (owner == s)
          add("twice", [&] { return fmt::format("again for sequence {}", s); });
        else if (owner == kUnowned)
          ++different;
        else
          add("shared", [&] { return fmt::format("also of sequence {}", owner); });
      }
    }
    if (left_behind > 0 && has_others)
      check::add(found, "window", s * columns, "block_table", {s, 0}, *claims.null_page, [&] {
        return fmt::format("the first {} of {} pages of sequence {}", left_behind, needed, s);
      });
    if (options.progress) options.progress(s + 1, batch);
  }
  found.facts()
      .add("sequences", "sequences", batch, Unit::count)
      .add("pages_needed", "entries in use", used, Unit::count)
      .add("pages_used", "different pages", different, Unit::count);
  return found;
}

}  // namespace ejk
