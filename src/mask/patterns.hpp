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
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask_info.hpp"
#include "mask/bits.hpp"
#include "mask/digest.hpp"

namespace ejk::mask {

std::uint64_t hash_words(const Word* words, std::int64_t n);

class PatternTable {
 public:
  using Hash = std::uint64_t (*)(const Word*, std::int64_t);

  /// `max_bytes`: what the bits may take, in this table and all made by part() together; 0: no limit.
  /// `function` is replaced only by a test that forces collisions.
  explicit PatternTable(BlockShape block, std::int64_t max_bytes = 0, Hash function = hash_words);

  /// The same where patterns are only counted: of each 32 bytes are kept, a digest of its bits.
  static PatternTable of_digests(BlockShape block, std::int64_t max_bytes, const Digester::Seed& seed);

  /// An empty table for a thread, to be joined with this one, which must not change before: patterns that are
  /// here already are not kept again there.
  PatternTable part() const;

  /// An empty table of blocks of another size, whose bits count against the same limit.
  PatternTable beside(BlockShape block) const;

  BlockShape block() const { return block_; }
  std::int64_t row_words() const { return row_words_; }
  /// Of what is kept of a pattern: its bits, or a digest.
  std::int64_t pattern_words() const { return digester_ ? std::ssize(Digest()) : block_.q * row_words_; }
  bool keeps_bits() const { return !digester_; }
  /// Where digests are kept.
  const Digester& digester() const { return *digester_; }
  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }

  /// The slot of a pattern; a new one is copied and gets the next slot. A part gives ~slot for a pattern that
  /// stands in that slot of the table it is a part of. Throws Error{budget} above max_bytes.
  std::int32_t find_or_add(const Word* pattern);
  /// The same by its digest, where those are kept.
  std::int32_t find_or_add(const Digest& digest) { return find_or_add_words(digest.data()); }

  /// Takes over the patterns of a part; gives the slot here of each of its slots.
  std::vector<std::int32_t> join(PatternTable part);

  /// Counts bytes that are held beside the patterns against their limit. Throws Error{budget} above it.
  void count_bytes(std::int64_t bytes) const;

  /// Replaces slots by ids: those numbered by earlier calls keep theirs, new ones are numbered on in the
  /// order in which they stand in `blocks`, which is looked at only where `states` says partial.
  void number(std::span<const std::uint8_t> states, std::span<std::int32_t> blocks);

  /// Gives ids to all slots without one, in the order of slots: for patterns that are only counted.
  void number_all();

  /// What is kept of the pattern with an id.
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
    std::uint32_t tag = 0;  // of the hash what its place does not say
    std::int32_t slot = kNoSlot;
  };

  std::optional<std::int32_t> find(std::uint64_t hash, const Word* pattern) const;
  std::int32_t find_or_add_words(const Word* pattern);
  std::int32_t enter(std::uint64_t hash, const Word* kept);
  void place(std::uint64_t hash, std::int32_t slot);
  Word* next_pattern_slot();

  BlockShape block_;
  std::int64_t row_words_;
  std::int64_t max_bytes_;
  Hash hash_;
  std::shared_ptr<const Digester> digester_;  // null: the bits are kept
  std::shared_ptr<std::atomic<std::int64_t>> used_bytes_;
  const PatternTable* whole_ = nullptr;  // of which this is a part
  std::vector<Array> chunks_;            // the bits lie here
  Word* free_ = nullptr;                 // where the last chunk of our own is not filled yet
  std::int64_t free_words_ = 0;
  std::vector<Entry> entries_;         // by slot
  std::vector<Place> index_;           // by hash, and from there on the next free one
  std::vector<std::int32_t> slot_of_;  // by id
};

/// The axes of a partial block as it is read: (q, kv), or (kv, q) for dkv, which transposes it.
Shape pattern_shape(BlockShape block, Direction direction);

/// The patterns as a bool array (P, ...) of that shape; expanded while it is read.
std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  Direction direction);

/// The same for some of the patterns, by their ids.
std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  std::vector<std::int32_t> ids, Direction direction);

/// A part of a block as it is read: rows and columns of the result, which dkv transposes.
struct Box {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
};

/// Writes a part of a block of bits as bools in C order.
void expand_part(const Word* bits, std::int64_t row_words, const Box& part, Direction direction,
                 std::uint8_t* out);

}  // namespace ejk::mask
