// Segment ids as the 32-bit labels that the bit kernels compare.
#pragma once

#include <cstdint>
#include <vector>

namespace ejk::mask {

/// Labels of query and key ids: equal where the ids are, ascending where they do, 0 for ids ≤ 0. Only
/// equality, order and sign of ids matter, so those that do not fit 32 bits are replaced by their rank.
/// Throws Error{input} for more than 2^31 different ids.
void to_labels(const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& kv,
               std::vector<std::int32_t>& q_labels, std::vector<std::int32_t>& kv_labels);

}  // namespace ejk::mask
