// Segment ids and their masks: tokens attend to each other if their ids are equal.
//
// In the documented convention ids count from 1 and an id of 0 or less is padding; masks are (batch, q, kv).
// ejkernel counts from 0, takes -1 and less for padding, and gives masks an axis of heads: (batch, 1, q, kv).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/convention.hpp"
#include "ejk/mask.hpp"

namespace ejk {

struct SegmentMask {
  /// (batch, q, kv) or, by ejkernel's convention, (batch, 1, q, kv). Computed on read, in constant memory.
  std::shared_ptr<const ArraySource> attention_mask;
  std::optional<Array> q_mask;   // (batch, q): which tokens are no padding
  std::optional<Array> kv_mask;  // (batch, kv)
};

struct SegmentMaskOptions {
  DType dtype = DType::boolean;  // of all three masks; True is 1 in the others
  bool separate = false;         // q_mask and kv_mask too
  Convention convention = Convention::document;
};

/// attention[b, i, j] = (q[b, i] = kv[b, j]) and neither is padding. q_ids is (batch, q), kv_ids (batch, kv),
/// integers of any type. Errors (Error{input}): other ranks, unequal batches, other dtypes.
SegmentMask segment_ids_to_mask(const ArraySource& q_ids, const ArraySource& kv_ids,
                                const SegmentMaskOptions& options = {});
SegmentMask segment_ids_to_mask(const ArraySource& ids, const SegmentMaskOptions& options = {});

/// Memory, without the elements that are read.
std::int64_t segment_mask_bytes(const ArrayType& q_ids, const ArrayType& kv_ids);

struct SegmentIdsOptions {
  /// A 4-D mask (batch, heads, q, kv) is taken head by head. Without it a 4-D mask is an error (by ejkernel's
  /// convention: head 0 alone counts).
  bool per_head = false;
  Polarity polarity = Polarity::keep;
  Convention convention = Convention::document;
  /// Limit for distinct rows and columns in bytes; 0: none. Above it Error{budget}.
  std::int64_t max_pattern_bytes = 0;
};

struct SegmentIds {
  Array q_segment_ids;                  // (…, q) int32
  Array kv_segment_ids;                 // (…, kv) int32
  std::int64_t segments = 0;            // the most ids, of queries or keys, in any slice
  std::int64_t elements = 0;            // of the masks
  std::int64_t differing_elements = 0;  // where the mask of the ids differs from the source
};

/// Ids of a mask (q, kv), (batch, q, kv) or (batch, heads, q, kv), each 2-D slice on its own: equal rows get
/// equal query ids and equal columns equal key ids, numbered by first appearance; a row or column without a
/// True is padding, -1, and uses no number. The mask may be bool or integer, as for array_mask with a
/// polarity.
///
/// Rows are compared by the hash of their bits, columns by that of their bits in the distinct rows, and equal
/// hashes by all bits. Time: one pass over the mask, and distinct rows × columns / 64 after it. Memory: the
/// ids, and an eighth of distinct rows × columns.
SegmentIds mask_to_segment_ids(const std::shared_ptr<const ArraySource>& source,
                               const SegmentIdsOptions& options = {});

/// Memory, without distinct rows and columns.
std::int64_t segment_ids_bytes(const ArrayType& mask);

}  // namespace ejk
