// Between padded batches (batch, seq, ...) and packed tokens (tokens, ...), and sequences into rows of equal
// capacity.
//
// Tokens of a padded batch are given by a mask (batch, seq), by indices batch · seq into the flattened
// batch, or by cu_seqlens (batch + 1,), row i beginning with sequence i. Sequences each followed by padding
// (TransformerEngine's THD layout) are given by two cu_seqlens, without and with padding.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

struct Packed {
  /// (tokens, ...) of x's dtype. Read from x when it is read.
  std::shared_ptr<const ArraySource> packed;
  Array cu_seqlens;                            // (batch + 1,) int32
  std::shared_ptr<const ArraySource> indices;  // (tokens,) int64, ascending
  std::int64_t max_seqlen = 0;                 // tokens of the longest row
  std::int64_t left_padded = 0;                // rows whose first token is not at 0
  std::int64_t with_holes = 0;                 // rows with padding between tokens
};

/// The tokens of x (batch, seq, ...) that the mask (batch, seq) selects, in row order: bool, or integers of
/// 0 and one other value. Errors: ranks, shapes, a float mask, ids. Memory: 16 bytes for each range of
/// tokens.
Packed pack(const std::shared_ptr<const ArraySource>& x, const ArraySource& mask);

/// The padded array (batch, seq, ...) of `packed` (tokens, ...), `fill` elsewhere; computed on read.
/// `where`: a mask (batch, seq), indices (tokens,) in any order, or cu_seqlens (batch + 1,); the latter two
/// need batch and seq. If it could be both, int64 means indices, other dtypes are an error. Errors name the
/// index: out of range, duplicate, a sequence longer than seq, unequal numbers of tokens, a fill that the
/// dtype cannot hold.
std::shared_ptr<const ArraySource> unpack(const std::shared_ptr<const ArraySource>& packed,
                                          const ArraySource& where, std::optional<std::int64_t> batch = {},
                                          std::optional<std::int64_t> seq = {},
                                          Number fill = std::int64_t{0});

/// The tokens of x (tokens, ...): sequences begin at padded[i] and have cu_seqlens[i + 1] − cu_seqlens[i];
/// both (n + 1,). Indices are into x. Errors: unequal numbers of sequences, one longer than its slot or
/// outside x.
Packed pack_sequences(const std::shared_ptr<const ArraySource>& x, const IntegerArray& cu_seqlens,
                      const IntegerArray& padded);

/// The inverse: (tokens, ...) with `fill` elsewhere; `tokens` defaults to the end of `padded`. Errors as
/// before, and a number of packed tokens other than that of cu_seqlens.
std::shared_ptr<const ArraySource> unpack_sequences(const std::shared_ptr<const ArraySource>& packed,
                                                    const IntegerArray& cu_seqlens,
                                                    const IntegerArray& padded,
                                                    std::optional<std::int64_t> tokens = {},
                                                    Number fill = std::int64_t{0});

/// Memory of either; `where`: the mask, the indices or cu_seqlens. A mask of every other token takes up to
/// half its size as int32 more.
std::int64_t pack_bytes(const ArrayType& where);

enum class LongSequence {
  error,     // longer than a row: refused, by its index
  truncate,  // cut to a row
  split,     // cut into pieces, each placed on its own
};

struct BinPacking {
  std::int64_t rows = 0;
  std::int64_t capacity = 0;
  /// Piece p is the `length` tokens from `start` on of `sequence`, at `offset` of `row`; in order of
  /// sequences.
  std::vector<std::int64_t> sequence, start, length, row, offset;
  std::int64_t tokens = 0;            // placed
  std::int64_t truncated_tokens = 0;  // cut off
  std::int64_t long_sequences = 0;    // truncated or split

  /// ceil(tokens / capacity).
  std::int64_t lower_bound() const;
  /// tokens / (rows · capacity); 1 without rows.
  double efficiency() const;
};

/// Assigns lengths (1-D, any integer type) to rows of `capacity` tokens by best-fit decreasing: at most 11/9
/// of the optimal rows plus one; O(n log n); deterministic. Errors: a negative length, capacity < 1, a
/// length above it unless it may be cut; Error{budget} for more pieces than max_pieces (0: no limit).
BinPacking bin_pack(const IntegerArray& lens, std::int64_t capacity, LongSequence how = LongSequence::error,
                    std::int64_t max_pieces = 0);

std::int64_t bin_pack_bytes(std::int64_t pieces);

}  // namespace ejk
