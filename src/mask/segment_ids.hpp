// mask_to_segment_ids with a hash function as a test hook for collisions.
#pragma once

#include "ejk/segments.hpp"
#include "mask/patterns.hpp"

namespace ejk::mask {

SegmentIds segment_ids_of(const std::shared_ptr<const ArraySource>& source, const SegmentIdsOptions& options,
                          PatternTable::Hash hash);

}  // namespace ejk::mask
