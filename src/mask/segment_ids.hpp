// mask_to_segment_ids with the hash function open, so that a test can force collisions.
#pragma once

#include "ejk/segments.hpp"
#include "mask/patterns.hpp"

namespace ejk::mask {

SegmentIds segment_ids_of(std::shared_ptr<const ArraySource> mask, const SegmentIdsOptions& options,
                          PatternTable::Hash hash);

}  // namespace ejk::mask
