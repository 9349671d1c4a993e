// Context parallelism: distributions of queries among ranks, and the load of each rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "blocks/scan.hpp"
#include "ejk/sparsity.hpp"

namespace ejk::blocks {

/// Ascending bounds from 0 to q_length of blocks of `q_block` and of the ranks' ranges.
std::vector<std::int64_t> run_bounds(std::int64_t q_length, std::int64_t q_block, std::int64_t ranks);

/// The loads under each distribution. `computed`: pairs computed for each range of queries; `one_mask`: of
/// all heads.
std::vector<ContextParallel> rank_loads(const QueryRuns& runs, const std::vector<std::int64_t>& computed,
                                        std::int64_t kv_length, BlockShape block, std::int64_t ranks,
                                        bool one_mask);

/// Memory of both, with the keys of the ranges, in bytes. Nothing if it exceeds any memory.
std::optional<std::int64_t> rank_bytes(std::int64_t q_length, std::int64_t kv_length, std::int64_t q_block,
                                       std::int64_t ranks);

}  // namespace ejk::blocks
