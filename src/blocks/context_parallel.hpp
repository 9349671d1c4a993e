// Queries shared among ranks, and what each rank has to do.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "blocks/scan.hpp"
#include "ejk/sparsity.hpp"

namespace ejk::blocks {

/// Where queries are cut: between blocks of `q_block`, and between the runs that ranks get. Ascending, from 0
/// to q_length.
std::vector<std::int64_t> run_bounds(std::int64_t q_length, std::int64_t q_block, std::int64_t ranks);

/// The loads under each distribution. `computed`: pairs computed of each run of queries.
std::vector<ContextParallel> rank_loads(const QueryRuns& runs, const std::vector<std::int64_t>& computed,
                                        std::int64_t kv_length, std::int64_t q_block, std::int64_t ranks);

/// Bytes that both take, with the keys that runs see. Nothing where that is more than any memory has.
std::optional<std::int64_t> rank_bytes(std::int64_t q_length, std::int64_t kv_length, std::int64_t q_block,
                                       std::int64_t ranks);

}  // namespace ejk::blocks
