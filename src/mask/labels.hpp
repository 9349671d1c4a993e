// Segment ids as the 32-bit labels that the bit kernels compare. Cost: one pass over the ids, and a sort if
// one does not fit 32 bits.
// tests: tests/mask/test_mask.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "core/require.hpp"

namespace ejk::mask {

/// Labels of query and key ids: 0 for ids ≤ 0, else in the order of the ids and equal where they are. Ids
/// that do not fit 32 bits are replaced by their rank. Throws Error{input} for more than 2^31 different ids.
inline void to_labels(const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& kv,
                      std::vector<std::int32_t>& q_labels, std::vector<std::int32_t>& kv_labels) {
  const auto large = [](std::int64_t id) { return id > INT32_MAX; };
  std::vector<std::int64_t> ranks;
  if (std::any_of(q.begin(), q.end(), large) || std::any_of(kv.begin(), kv.end(), large)) {
    std::copy_if(q.begin(), q.end(), std::back_inserter(ranks), [](std::int64_t id) { return id > 0; });
    std::copy_if(kv.begin(), kv.end(), std::back_inserter(ranks), [](std::int64_t id) { return id > 0; });
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    if (ranks.size() >= INT32_MAX) throw core::invalid("more than 2^31 different segment ids");
  }
  const auto convert = [&](const std::vector<std::int64_t>& from, std::vector<std::int32_t>& to) {
    to.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i)
      to[i] = from[i] <= 0 ? 0
              : ranks.empty()
                  ? static_cast<std::int32_t>(from[i])
                  : static_cast<std::int32_t>(std::lower_bound(ranks.begin(), ranks.end(), from[i]) -
                                              ranks.begin() + 1);
  };
  convert(q, q_labels);
  convert(kv, kv_labels);
}

}  // namespace ejk::mask
