// Pairs of a sequence and a chunk of it: each chunk of the sequences once, by its number among all chunks.
// tests: tests/check/test_chunk_indices.cpp, tests/check/test_rules.cpp
#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "check/integers.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

// The sequences that pairs number, and the chunks before each of them.
struct Chunks {
  std::vector<std::int64_t> sequences, first{0};

  std::int64_t count(std::size_t number) const { return first[number + 1] - first[number]; }
};

Chunks chunks_of(const std::vector<std::int64_t>& cu, std::int64_t chunk_size, Convention convention) {
  Chunks chunks;
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    const std::int64_t length = cu[s + 1] - cu[s];
    if (length == 0 && convention == Convention::ejkernel) continue;
    chunks.sequences.push_back(static_cast<std::int64_t>(s));
    chunks.first.push_back(chunks.first.back() + core::ceil_div(length, chunk_size));
  }
  return chunks;
}

class ChunkWalk {
 public:
  ChunkWalk(Chunks chunks, Findings& found)
      : chunks_(std::move(chunks)),
        entries_(static_cast<std::size_t>(chunks_.first.back()), -1),
        found_(found) {}

  void see(std::int64_t entry, std::int64_t sequence, std::int64_t chunk) {
    const auto add = [&](std::string_view rule, std::int64_t column, std::int64_t value, auto&& message) {
      check::add(found_, rule, 2 * entry + column, "chunk_indices", {entry, column}, value, message);
    };
    if (sequence < 0 || sequence >= std::ssize(chunks_.sequences)) {
      add("sequence", 0, sequence,
          [&] { return check::there_are(std::ssize(chunks_.sequences), "sequence"); });
      return;
    }
    const auto number = static_cast<std::size_t>(sequence);
    if (chunk < 0 || chunk >= chunks_.count(number)) {
      add("beyond", 1, chunk,
          [&] { return fmt::format("sequence {} has chunks: {}", sequence, chunks_.count(number)); });
      return;
    }
    const std::int64_t at = chunks_.first[number] + chunk;
    std::int64_t& seen = entries_[static_cast<std::size_t>(at)];
    if (seen >= 0)
      add("twice", 1, chunk,
          [&] { return fmt::format("chunk {} of sequence {} is also at {}", chunk, sequence, seen); });
    else
      seen = entry;
    if (at < before_)
      add("order", 1, chunk,
          [&] { return fmt::format("chunk {} of sequence {}, behind a later one", chunk, sequence); });
    before_ = at;
  }

  void end() {
    for (std::size_t number = 0; number < chunks_.sequences.size(); ++number)
      for (std::int64_t chunk = 0; chunk < chunks_.count(number); ++chunk)
        if (const std::int64_t at = chunks_.first[number] + chunk; entries_[static_cast<std::size_t>(at)] < 0)
          check::add(found_, "missing", at, "chunk_indices", {}, {},
                     [&] { return fmt::format("no entry is [{}, {}]", number, chunk); });
  }

 private:
  Chunks chunks_;
  std::vector<std::int64_t> entries_;  // of each chunk, the first that has it; -1: none
  std::int64_t before_ = 0;
  Findings& found_;
};

}  // namespace

Findings check_chunk_indices(const IntegerArray& chunk_indices, const IntegerArray& cu_seqlens,
                             std::int64_t chunk_size, Convention convention, const CheckOptions& options) {
  check::require_integers(*chunk_indices, "chunk_indices", 2, 2, "(chunks, 2)");
  check::require_claim("chunk_size", chunk_size, 1);
  if (chunk_indices->shape()[1] != 2)
    throw std::move(core::invalid("chunk_indices are pairs (chunks, 2), not of shape {}",
                                  to_string(chunk_indices->shape()))
                        .at(chunk_indices->name()));
  Findings found(rules_of("chunk-indices"), options.most_findings);
  const std::vector<std::int64_t> cu = core::read_offsets(*cu_seqlens);
  Chunks chunks = chunks_of(cu, chunk_size, convention);
  found.facts()
      .add("sequences", "sequences", std::ssize(cu) - 1, Unit::count)
      .add("chunks", "chunks", chunks.first.back(), Unit::count);
  ChunkWalk walk(std::move(chunks), found);
  static_assert(check::kPiece % 2 == 0, "a pair is in one piece");
  check::scan(*chunk_indices, options, [&](std::span<const std::int64_t> values, std::int64_t first) {
    for (std::size_t k = 0; k + 1 < values.size(); k += 2)
      walk.see((first + static_cast<std::int64_t>(k)) / 2, values[k], values[k + 1]);
  });
  walk.end();
  return found;
}

}  // namespace ejk
