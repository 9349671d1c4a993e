// Table of distinct bit patterns (partial blocks, rows of a mask), each with the id of its first appearance.
//
// Patterns are found by hash and compared in full. Each thread fills a table of its own; tables are then
// joined, and ids are assigned by position, so they do not depend on the number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"
#include "mask/bits.hpp"
#include "mask/digest.hpp"

namespace ejk::mask {

std::uint64_t hash_words(const Word* words, std::int64_t n);

class PatternTable {
 public:
  using Hash = std::uint64_t (*)(const Word*, std::int64_t);

  /// `max_bytes`: limit for the bits of this table and its parts; 0: none. `function`: a hook for tests.
  explicit PatternTable(BlockShape block, std::int64_t max_bytes = 0, Hash function = hash_words);

  /// A table that only counts patterns: it stores a digest of 32 bytes for each.
  static PatternTable of_digests(BlockShape block, std::int64_t max_bytes, const Digester::Seed& seed);

  /// An empty table for a thread, to be joined with this one, which must not change before.
  PatternTable part() const;

  /// An empty table for another block size under the same limit.
  PatternTable beside(BlockShape block) const;

  BlockShape block() const { return block_; }
  std::int64_t row_words() const { return row_words_; }
  /// Words stored for a pattern: its bits, or a digest.
  std::int64_t pattern_words() const { return digester_ ? std::ssize(Digest()) : block_.q * row_words_; }
  bool keeps_bits() const { return !digester_; }
  /// Of a table of digests.
  const Digester& digester() const { return *digester_; }
  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }

  /// The slot of a pattern; a new one is copied into the next slot. A part returns ~slot for a pattern in
  /// that slot of its table. Throws Error{budget} above max_bytes.
  std::int32_t find_or_add(const Word* pattern) {
    return digester_ ? find_or_add((*digester_)(pattern)) : find_or_add_words(pattern);
  }
  /// The same by its digest, in a table of digests.
  std::int32_t find_or_add(const Digest& digest) { return find_or_add_words(digest.data()); }

  /// Moves the patterns of a part into this table; returns the slot here for each of its slots.
  std::vector<std::int32_t> join(PatternTable part);

  /// Counts other memory against the limit. Throws Error{budget} above it, of too_many_patterns or
  /// too_many_slices.
  void count_bytes(std::int64_t bytes, Error::Code what = Error::Code::too_many_patterns) const;

  /// Replaces slots by ids where `states` is partial. New ids follow those of earlier calls, in the order of
  /// `blocks`.
  void number(std::span<const std::uint8_t> states, std::span<std::int32_t> blocks);

  /// Assigns ids to all slots without one, in slot order.
  void number_all();

  /// The stored words of the pattern with an id.
  const Word* bits(std::int64_t id) const {
    return entries_[static_cast<std::size_t>(slot_of_[static_cast<std::size_t>(id)])].bits;
  }

 private:
  static constexpr std::int32_t kNoId = -1, kNoSlot = -1;
  struct Entry {
    const Word* bits;
    std::uint64_t hash;
    std::int32_t id;
  };
  struct Place {
    std::uint32_t tag = 0;  // upper half of the hash
    std::int32_t slot = kNoSlot;
  };

  std::optional<std::int32_t> find(std::uint64_t hash, const Word* pattern) const;
  std::int32_t find_or_add_words(const Word* pattern);
  std::int32_t enter(std::uint64_t hash, const Word* kept);
  std::int32_t id_of(std::int32_t slot);
  void place(std::uint64_t hash, std::int32_t slot);
  Word* next_pattern_slot();

  BlockShape block_;
  std::int64_t row_words_;
  std::int64_t max_bytes_;
  Hash hash_;
  std::shared_ptr<const Digester> digester_;  // null: the bits are kept
  std::shared_ptr<std::atomic<std::int64_t>> used_bytes_;
  const PatternTable* whole_ = nullptr;  // the table of which this is a part
  std::vector<Array> chunks_;            // the bits
  Word* free_ = nullptr;                 // the unused part of the last own chunk
  std::int64_t free_words_ = 0;
  std::vector<Entry> entries_;         // by slot
  std::vector<Place> index_;           // by hash, linear probing
  std::vector<std::int32_t> slot_of_;  // by id
};

/// The shape of a partial block as an array: (q, kv), transposed (kv, q) for dkv.
Shape pattern_shape(BlockShape block, Direction direction);

/// The patterns as a bool array (P, ...) of that shape, expanded on read.
std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  Direction direction);

/// The same for the patterns with these ids.
std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  std::vector<std::int32_t> ids, Direction direction);

/// Rows and columns of a block as an array, after transposing for dkv.
struct Box {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
};

/// Writes a part of a block of bits as bools in C order.
void expand_part(const Word* bits, std::int64_t row_words, const Box& part, Direction direction,
                 std::uint8_t* out);

}  // namespace ejk::mask
