// Between padded batches (batch, seq, ...) and packed tokens (tokens, ...), and sequences into rows of equal
// capacity.
//
// Which elements of a padded batch are tokens is said by a mask (batch, seq), with tokens anywhere in their
// row, by indices: the places batch · seq of the packed tokens in the flattened batch, or by cu_seqlens (batch + 1,):
// row i begins with the tokens of sequence i. Sequences with padding behind each along one axis of tokens, as
// TransformerEngine's THD layout has them, are said by two cu_seqlens, without the padding and with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/integer_array.hpp"

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

/// The tokens of x (batch, seq, ...) that the mask (batch, seq) marks, row after row: bool, or integers of 0 and one
/// other value. Errors: other ranks, a mask of another shape, a float mask, other integers, which are ids. Memory: 16
/// bytes for each run of tokens.
Packed pack(const std::shared_ptr<const ArraySource>& x, const ArraySource& mask);

/// The padded array (batch, seq, ...) whose tokens are `packed` (tokens, ...), with `fill` everywhere else;
/// read from `packed` when it is read. `where` is a mask (batch, seq) with as many tokens, indices (tokens,) in
/// any order, or cu_seqlens (batch + 1,); the latter two need batch and seq. Numbers that can be both, batch + 1
/// tokens in batch rows without an empty one, are indices if they are int64, and else refused. Errors name the
/// index: an index that is beyond batch · seq or comes twice, a sequence longer than seq, unequal numbers of
/// tokens, a fill that the dtype cannot hold.
std::shared_ptr<const ArraySource> unpack(const std::shared_ptr<const ArraySource>& packed,
                                          const ArraySource& where, std::optional<std::int64_t> batch = {},
                                          std::optional<std::int64_t> seq = {},
                                          Number fill = std::int64_t{0});

/// The tokens of x (tokens, ...) whose sequences begin at padded[i] and are cu_seqlens[i + 1] − cu_seqlens[i]
/// long; both (n + 1,). The indices are places in x. Errors: other numbers of sequences, one that is longer
/// than its place, places beyond x.
Packed pack_sequences(const std::shared_ptr<const ArraySource>& x, const IntegerArray& cu_seqlens,
                      const IntegerArray& padded);

/// (tokens, ...) with the packed tokens in those places and `fill` everywhere else; as many as `padded` ends
/// at unless they are given. Errors as before, and packed tokens that are not those of cu_seqlens.
std::shared_ptr<const ArraySource> unpack_sequences(const std::shared_ptr<const ArraySource>& packed,
                                                    const IntegerArray& cu_seqlens,
                                                    const IntegerArray& padded,
                                                    std::optional<std::int64_t> tokens = {},
                                                    Number fill = std::int64_t{0});

/// Memory that either takes: `where` is the mask, the indices or cu_seqlens. Masks are mostly padded at an
/// end, which is one run of tokens a row; one of every other token takes up to half a mask of int32 more.
std::int64_t pack_bytes(const ArrayType& where);

enum class LongSequence {
  error,     // longer than a row: refused, by its index
  truncate,  // cut to a row
  split,     // cut into pieces, each placed on its own
};

struct BinPacking {
  std::int64_t rows = 0;
  std::int64_t capacity = 0;
  /// One entry a piece, in order of sequences: piece p is the `length` tokens from `start` on of sequence
  /// `sequence`, and lies in row `row` from `offset` on. Without splitting, piece p is sequence p.
  std::vector<std::int64_t> sequence, start, length, row, offset;
  std::int64_t tokens = 0;            // placed
  std::int64_t truncated_tokens = 0;  // cut off
  std::int64_t long_sequences = 0;    // truncated or split

  /// No packing needs fewer rows than ceil(tokens / capacity).
  std::int64_t lower_bound() const;
  /// Tokens of all that rows hold; 1 without rows.
  double efficiency() const;
};

/// Assigns sequences of these lengths (1-D, any integer type) to rows of `capacity` tokens by best-fit
/// decreasing: the longest first, each into the fullest row with room for it, a new row when there is none.
/// At most 11/9 of the rows of the best packing, and one; O(n log n); the same for equal input. Errors: a
/// negative length, capacity < 1, and a length above it unless it may be cut; Error{budget} for more pieces
/// than max_pieces (0: no limit).
BinPacking bin_pack(const IntegerArray& lens, std::int64_t capacity, LongSequence how = LongSequence::error,
                    std::int64_t max_pieces = 0);

/// Memory that it takes for so many pieces.
std::int64_t bin_pack_bytes(std::int64_t pieces);

}  // namespace ejk
