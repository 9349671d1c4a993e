// The distinct partial blocks of masks, as bits, each with the id of its first appearance.
//
// A block is looked up by a hash of its bits and taken for one already there only if all bits are equal, so a
// collision of hashes costs time and never merges two patterns.
#pragma once

#include <cstdint>
#include <memory>
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

  /// `max_bytes`: what the bits may take; 0: no limit. `hash` is replaced only by a test that forces
  /// collisions.
  explicit PatternTable(BlockShape block, std::int64_t max_bytes = 0, Hash function = hash_words);

  BlockShape block() const { return block_; }
  std::int64_t row_words() const { return row_words_; }
  std::int64_t pattern_words() const { return pattern_words_; }
  std::int64_t size() const { return size_; }

  std::uint64_t hash(const Word* bits) const { return hash_(bits, pattern_words_); }

  /// The id of the pattern with hash `key`; a new one gets the next. Throws Error{budget} above max_bytes.
  std::int32_t find_or_add(std::uint64_t key, const Word* pattern);

  const Word* bits(std::int64_t id) const {
    return chunks_[static_cast<std::size_t>(id / per_chunk_)].get() + id % per_chunk_ * pattern_words_;
  }

 private:
  BlockShape block_;
  std::int64_t row_words_;
  std::int64_t pattern_words_;
  std::int64_t per_chunk_;
  std::int64_t max_bytes_;
  Hash hash_;
  std::int64_t size_ = 0;
  std::vector<std::unique_ptr<Word[]>> chunks_;
  std::unordered_multimap<std::uint64_t, std::int32_t> index_;
};

/// The patterns as a bool array (P, q, kv), or (P, kv, q) when transposed for dkv; expanded while it is read.
std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  Direction direction);

/// Writes a block of bits as bools: rows × columns, or columns × rows for dkv.
void expand_block(const Word* bits, std::int64_t row_words, BlockShape block, Direction direction,
                  std::uint8_t* out);

}  // namespace ejk::mask
