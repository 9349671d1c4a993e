// Segment ids and their masks: tokens attend to each other if their ids are equal.
//
// Documented convention: ids count from 1, 0 and less is padding; masks are (batch, q, kv). ejkernel: ids
// count from 0, -1 and less is padding; masks are (batch, 1, q, kv).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/convention.hpp"
#include "ejk/mask.hpp"

namespace ejk {

/// The meaning of segment id 0 where no convention is given: padding, unless negative ids are the padding, or
/// every row begins with 0 and has it nowhere else, as ids that count from 0 do.
struct ZeroId {
  enum class Meaning {
    none,  // no id is 0
    padding,
    document,
  };
  Meaning meaning = Meaning::none;
  /// Of a document the reason, "every row begins with it and has it nowhere else"; of padding the reason for
  /// doubt, or "".
  std::string why = {};
};

/// Of arrays of ids (..., tokens) that count alike, as those of queries and keys. Of bools False is padding;
/// arrays of floats have no ids. Memory: 2 MiB. Errors: an id that exceeds 63 bits.
ZeroId zero_id_of(const std::vector<std::shared_ptr<const ArraySource>>& ids);

/// Ids that count from 0 as ids that count from 1: int64, in memory; negative ones are the same.
std::shared_ptr<const ArraySource> ids_from_1(const ArraySource& ids);

struct SegmentMask {
  /// (batch, q, kv) or, by ejkernel's convention, (batch, 1, q, kv). Computed on read, in constant memory.
  std::shared_ptr<const ArraySource> attention_mask;
  std::optional<Array> q_mask;   // (batch, q): False for padding
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
  bool per_head = false;  // takes (batch, heads, q, kv); otherwise an error, by ejkernel's convention head 0
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

/// Ids of a mask (q, kv), (batch, q, kv) or (batch, heads, q, kv), bool or integer as for array_mask with a
/// polarity, each 2-D slice on its own: equal rows get equal query ids and equal columns equal key ids, by
/// first appearance; a row or column without a True is padding, -1.
///
/// Time: one pass over the mask, and distinct rows × columns / 64. Memory: the ids, and an eighth of distinct
/// rows × columns.
SegmentIds mask_to_segment_ids(const std::shared_ptr<const ArraySource>& source,
                               const SegmentIdsOptions& options = {});

/// Memory, without distinct rows and columns.
std::int64_t segment_ids_bytes(const ArrayType& mask);

}  // namespace ejk
