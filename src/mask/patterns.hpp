// The distinct partial blocks of masks, as bits, each with the id of its first appearance.
//
// A block is looked up by a hash of its bits and taken for one already there only if all bits are equal, so a
// collision of hashes costs time and never merges two patterns. Every thread enters the blocks it finds into
// a table of its own; the tables are then joined, and ids are given by where blocks stand, so they are the
// same for any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask_info.hpp"
#include "mask/bits.hpp"

namespace ejk::mask {

std::uint64_t hash_words(const Word* words, std::int64_t n);

class PatternTable {
 public:
  using Hash = std::uint64_t (*)(const Word*, std::int64_t);

  /// `max_bytes`: what the bits may take, in this table and all made by part() together; 0: no limit.
  /// `function` is replaced only by a test that forces collisions.
  explicit PatternTable(BlockShape block, std::int64_t max_bytes = 0, Hash function = hash_words);

  /// An empty table for a thread, to be joined with this one.
  PatternTable part() const;

  BlockShape block() const { return block_; }
  std::int64_t row_words() const { return row_words_; }
  std::int64_t pattern_words() const { return block_.q * row_words_; }
  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }

  /// The slot of a pattern; a new one is copied and gets the next slot. Throws Error{budget} above max_bytes.
  std::int32_t find_or_add(const Word* pattern);

  /// Takes over the patterns of a part; gives the slot here of each of its slots.
  std::vector<std::int32_t> join(PatternTable part);

  /// Replaces slots by ids: those numbered by earlier calls keep theirs, new ones are numbered on in the
  /// order in which they stand in `blocks`, which is looked at only where `states` says partial.
  void number(std::span<const std::uint8_t> states, std::span<std::int32_t> blocks);

  /// The bits of the pattern with an id.
  const Word* bits(std::int64_t id) const {
    return entries_[static_cast<std::size_t>(slot_of_[static_cast<std::size_t>(id)])].bits;
  }

 private:
  static constexpr std::int32_t kNoId = -1;
  struct Entry {
    const Word* bits;
    std::uint64_t hash;
    std::int32_t id;
  };

  std::optional<std::int32_t> find(std::uint64_t hash, const Word* pattern) const;
  std::int32_t enter(std::uint64_t hash, const Word* kept);
  Word* room_for_pattern();

  BlockShape block_;
  std::int64_t row_words_;
  std::int64_t max_bytes_;
  Hash hash_;
  std::shared_ptr<std::atomic<std::int64_t>> used_bytes_;
  std::vector<Array> chunks_;                                   // the bits lie here
  std::int64_t chunk_used_ = 0;                                 // words of the last chunk
  std::vector<Entry> entries_;                                  // by slot
  std::unordered_multimap<std::uint64_t, std::int32_t> index_;  // hash to slot
  std::vector<std::int32_t> slot_of_;                           // by id
};

/// The patterns as a bool array (P, q, kv), or (P, kv, q) when transposed for dkv; expanded while it is read.
std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  Direction direction);

/// Writes a block of bits as bools: rows × columns, or columns × rows for dkv.
void expand_block(const Word* bits, std::int64_t row_words, BlockShape block, Direction direction,
                  std::uint8_t* out);

}  // namespace ejk::mask
