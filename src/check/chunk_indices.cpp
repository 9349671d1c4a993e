// Rows [sequence, chunk in it], compared with those of the sequences. Rows that differ are those of a known fault, or
// each is checked by itself.
// tests: tests/check/test_chunk_indices.cpp, tests/check/test_rules.cpp
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "check/integers.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

using ChunkOffsets = std::vector<std::int64_t>;
using ChunkRow = std::array<std::int64_t, 2>;
using ChunkRows = std::vector<ChunkRow>;

enum class Numbering { all_sequences, without_empty };

ChunkRows rows_of_sequences(const ChunkOffsets& cu, std::int64_t chunk_size, Numbering numbering) {
  ChunkRows rows;
  std::int64_t number = 0;
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    const std::int64_t length = cu[s + 1] - cu[s];
    for (std::int64_t chunk = 0; chunk < core::ceil_div(length, chunk_size); ++chunk)
      rows.push_back({number, chunk});
    number += length > 0 || numbering == Numbering::all_sequences;
  }
  return rows;
}

// Chunks that begin at multiples of their size in the packed row: cut where sequences begin, with their numbers in the
// row or in the sequence, or uncut, of one sequence or of that of their first token.
enum class PackedRow { cut, cut_by_sequence, one_sequence, uncut };

ChunkRows rows_of_packed_row(const ChunkOffsets& cu, std::int64_t chunk_size, PackedRow form) {
  ChunkRows rows;
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    const auto sequence = static_cast<std::int64_t>(s);
    std::int64_t at = cu[s];
    for (std::int64_t n = 0; at < cu[s + 1]; ++n) {
      const std::int64_t chunk = at / chunk_size, first = at % chunk_size;
      const bool is_cut = form == PackedRow::cut || form == PackedRow::cut_by_sequence;
      if (is_cut || first == 0)
        rows.push_back(
            {form == PackedRow::one_sequence ? 0 : sequence, form == PackedRow::cut_by_sequence ? n : chunk});
      at += std::min(chunk_size - first, cu[s + 1] - at);
    }
  }
  return rows;
}

class ChunkRules {
 public:
  ChunkRules(ChunkOffsets cu, const ChunkIndicesClaims& claims, Findings& found)
      : cu_(std::move(cu)),
        claims_(claims),
        numbering_(claims.convention == Convention::ejkernel ? Numbering::without_empty
                                                             : Numbering::all_sequences),
        expected_(rows_of_sequences(cu_, claims.chunk_size, numbering_)),
        sequences_(numbering_ == Numbering::all_sequences ? std::ssize(cu_) - 1
                   : expected_.empty()                    ? 0
                                                          : expected_.back()[0] + 1),
        found_(found) {}

  std::int64_t chunks() const { return std::ssize(expected_); }

  void check_rows(const ChunkRows& rows) {
    if (rows == expected_ || is_known_fault(rows)) return;
    ChunkOffsets row_of(expected_.size(), -1);
    bool is_whole = rows.size() == expected_.size();
    for (std::size_t r = 0; r < rows.size(); ++r) is_whole = check_row(rows[r], r, row_of) && is_whole;
    for (std::size_t e = 0; e < expected_.size(); ++e) {
      const ChunkRow& row = expected_[e];
      if (row_of[e] < 0)
        check::add(found_, "missing", static_cast<std::int64_t>(e), "chunk_indices", {}, {},
                   [&] { return fmt::format("no row is [{}, {}]", row[0], row[1]); });
      else if (is_whole && row_of[e] != static_cast<std::int64_t>(e))
        add("order", row_of[e], 1, row[1],
            [&] { return fmt::format("[{}, {}] belongs in row {}", row[0], row[1], e); });
    }
  }

  void check_offsets(const ChunkOffsets& offsets) {
    if (offsets.size() != cu_.size())
      check::add(found_, "offsets", std::ssize(offsets), "chunk_offsets", {}, {},
                 fmt::format("{} offsets, and there are {} with their end", offsets.size(), cu_.size()));
    std::int64_t before = 0;
    for (std::size_t s = 0; s < std::min(offsets.size(), cu_.size()); ++s) {
      if (s > 0) before += core::ceil_div(cu_[s] - cu_[s - 1], claims_.chunk_size);
      const auto at = static_cast<std::int64_t>(s);
      if (offsets[s] != before)
        check::add(found_, "offsets", at, "chunk_offsets", {at}, offsets[s],
                   [&] { return fmt::format("chunks before sequence {}: {}", s, before); });
    }
  }

 private:
  template <class Message>
  void add(std::string_view rule, std::int64_t row, std::int64_t column, std::int64_t value,
           Message&& message) {
    check::add(found_, rule, row, "chunk_indices", {row, column}, value, message);
  }

  bool is_known_fault(const ChunkRows& rows) {
    const auto is = [&](const ChunkRows& fault, const char* rule, std::int64_t column, auto&& message) {
      if (rows != fault) return false;
      const auto row = static_cast<std::size_t>(
          std::mismatch(rows.begin(), rows.end(), expected_.begin(), expected_.end()).first - rows.begin());
      if (row < rows.size())
        add(rule, static_cast<std::int64_t>(row), column, rows[row][static_cast<std::size_t>(column)],
            message);
      else
        check::add(found_, rule, 0, "chunk_indices", {}, {}, message);
      return true;
    };
    const bool counts_all = numbering_ == Numbering::all_sequences;
    const auto other = counts_all ? Numbering::without_empty : Numbering::all_sequences;
    if (is(rows_of_sequences(cu_, claims_.chunk_size, other), "numbering", 0,
           fmt::format("empty sequences are {}counted", counts_all ? "not " : "")))
      return true;
    constexpr PackedRow kForms[] = {PackedRow::cut, PackedRow::cut_by_sequence, PackedRow::one_sequence,
                                    PackedRow::uncut};
    return std::any_of(std::begin(kForms), std::end(kForms), [&](PackedRow form) {
      return is(rows_of_packed_row(cu_, claims_.chunk_size, form), "per-row", 1, "a chunk of the packed row");
    });
  }

  // False for a row that is none of the chunks, or one that an earlier row is.
  bool check_row(const ChunkRow& values, std::size_t index, ChunkOffsets& row_of) {
    const auto [sequence, chunk] = values;
    const auto row = static_cast<std::int64_t>(index);
    if (sequence == -1 || chunk == -1) {
      add("tail", row, sequence == -1 ? 0 : 1, -1, "rows with a -1 are padding, and other rows follow");
      return false;
    }
    const auto [first, end] =
        std::equal_range(expected_.begin(), expected_.end(), values,
                         [](const ChunkRow& a, const ChunkRow& b) { return a[0] < b[0]; });
    if (sequence < 0 || sequence >= sequences_) {
      add("range", row, 0, sequence, [&] { return check::there_are(sequences_, "sequence"); });
      return false;
    }
    if (const std::int64_t count = end - first; chunk < 0 || chunk >= count) {
      add("range", row, 1, chunk,
          [&] { return fmt::format("sequence {} has chunks: {}", values[0], count); });
      return false;
    }
    std::int64_t& seen = row_of[static_cast<std::size_t>(first - expected_.begin() + chunk)];
    if (seen >= 0) {
      add("duplicate", row, 1, chunk, [&] {
        return fmt::format("chunk {} of sequence {} is in row {} as well", values[1], values[0], seen);
      });
      return false;
    }
    seen = row;
    return true;
  }

  ChunkOffsets cu_;
  const ChunkIndicesClaims& claims_;
  Numbering numbering_;
  ChunkRows expected_;
  std::int64_t sequences_;
  Findings& found_;
};

ChunkRows read_chunk_rows(const ArraySource& source, const CheckOptions& options) {
  ChunkRows rows;
  rows.reserve(static_cast<std::size_t>(source.shape()[0]));
  static_assert(check::kPiece % 2 == 0, "a row is in one piece");
  check::scan(source, options, [&](std::span<const std::int64_t> values, std::int64_t) {
    for (std::size_t k = 0; k + 1 < values.size(); k += 2) rows.push_back({values[k], values[k + 1]});
  });
  return rows;
}

}  // namespace

Findings check_chunk_indices(const IntegerArray& chunk_indices, const ChunkIndicesClaims& claims,
                             const CheckOptions& options) {
  check::require_integers(*chunk_indices, "chunk_indices", 0, SIZE_MAX, "(chunks, 2)");
  check::require_claim("chunk_size", claims.chunk_size, 1);
  Findings found(rules_of("chunk-indices"), options.most_findings);
  ChunkRules rules(core::read_offsets(*claims.cu_seqlens), claims, found);
  const Shape& shape = chunk_indices->shape();
  found.facts()
      .add("sequences", "sequences", claims.cu_seqlens->shape()[0] - 1, Unit::count)
      .add("chunks", "chunks", rules.chunks(), Unit::count);
  if (shape.size() != 2 || shape[1] != 2) {
    check::add(found, "shape", 0, "chunk_indices", {}, {},
               fmt::format("shape {}, not (chunks, 2)", to_string(shape)));
  } else {
    ChunkRows rows = read_chunk_rows(*chunk_indices, options);
    const auto is_padding = [](const ChunkRow& row) { return row[0] == -1 || row[1] == -1; };
    const std::int64_t all = std::ssize(rows);
    while (!rows.empty() && is_padding(rows.back())) rows.pop_back();
    if (all > std::ssize(rows)) found.facts().add("padding", "padding", all - std::ssize(rows), Unit::rows);
    rules.check_rows(rows);
  }
  if (claims.chunk_offsets) rules.check_offsets(core::read_integers(*claims.chunk_offsets, "chunk_offsets"));
  return found;
}

}  // namespace ejk
