// Packed sequences whose blocks begin with each sequence: the packed positions, and those in which every
// sequence is padded to whole blocks, so that its blocks are blocks of one grid.
// tests: tests/layouts/test_packed_sequences.cpp
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"

namespace ejk::blocks {

/// Where each sequence begins, and the end, in both.
struct PackedAxis {
  std::vector<std::int64_t> packed, padded;
  std::int64_t block = 1;

  std::int64_t count() const { return std::ssize(packed) - 1; }
  std::int64_t length(std::int64_t s) const { return at(packed, s + 1) - at(packed, s); }
  /// Blocks of a sequence, and of those before.
  std::int64_t blocks(std::int64_t s) const { return (at(padded, s + 1) - at(padded, s)) / block; }
  std::int64_t first_block(std::int64_t s) const { return at(padded, s) / block; }
  std::int64_t all_blocks() const { return padded.back() / block; }
  std::int64_t sequence_of(std::int64_t packed_position) const;
  std::int64_t padded_position(std::int64_t packed_position) const;

 private:
  static std::int64_t at(const std::vector<std::int64_t>& v, std::int64_t n) {
    return v[static_cast<std::size_t>(n)];
  }
};

struct PackedSequences {
  PackedAxis q, kv;
};

/// cu_seqlens of as many sequences of queries as of keys. Throws Error{input} about cu_seqlens_q or cu_seqlens_k.
struct SequenceOffsets {
  std::vector<std::int64_t> q, kv;
};
SequenceOffsets read_sequences(const ArraySource& cu_q, const ArraySource& cu_kv);

/// From cu_seqlens of both. Throws Error{input}: other numbers of sequences; padded, more than 2^48 positions.
PackedSequences packed_sequences(std::vector<std::int64_t> cu_q, std::vector<std::int64_t> cu_kv,
                                 BlockShape block);

/// A mask of packed positions as one of padded ones, and back. Pairs of two sequences, and with padding, are
/// False.
Mask padded_mask(Mask packed, std::shared_ptr<const PackedSequences> sequences);
Mask packed_mask(Mask padded, std::shared_ptr<const PackedSequences> sequences);

}  // namespace ejk::blocks
