// Context parallelism: distributions of queries among ranks, and the load of each rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "blocks/scan.hpp"
#include "ejk/sparsity.hpp"

namespace ejk::blocks {

/// A partition of the queries into contiguous ranges, and the keys that each attends to in the scanned masks.
struct QueryRuns {
  /// Range r is [bounds[r], bounds[r + 1]); ascending, from 0 to q_length.
  QueryRuns(std::vector<std::int64_t> run_bounds, std::int64_t kv_length);

  std::int64_t count() const { return static_cast<std::int64_t>(pairs.size()); }
  Word* keys_of(std::int64_t run) { return keys.data() + run * row_words; }
  const Word* keys_of(std::int64_t run) const { return keys.data() + run * row_words; }

  std::vector<std::int64_t> bounds;
  std::int64_t row_words;
  std::vector<std::int64_t> pairs;  // True elements of each range, summed over scans
  std::vector<Word> keys;           // (ranges, row_words): keys attended to in any scan
};

/// Adds what the ranges have in a mask with these scanned states, `weight` times its True elements. Each range is
/// within one row of blocks. Elements of partial blocks are read.
void add_scanned(QueryRuns& runs, std::int64_t weight, const Mask& mask, BlockShape block,
                 const BlockStates& states);

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
