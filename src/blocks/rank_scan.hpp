// A pass over masks that ranks make: who looks at which rows of blocks, and how what the ranks found
// becomes the Scan that one process would have made.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "blocks/scan.hpp"
#include "ejk/communicator.hpp"
#include "mask/digest.hpp"

namespace ejk::blocks {

/// What looking at the rows of blocks of a mask takes, each: found from some of them where there are many.
struct RowCosts {
  RowCosts(const Mask& mask, BlockShape block);

  std::vector<double> open;   // elements of blocks that have to be looked at
  std::vector<double> bytes;  // the work, as bytes that are looked at
  double stored_bytes;        // that are read for an open element
};

/// The queries of masks of one shape, divided among ranks: a rank has a run of them, cut between rows of blocks.
/// About as costly for each, as far as the masks tell of their blocks without a look at elements.
class QueryPartition {
 public:
  /// By the costs of the rows of blocks, `q_block` queries high, of each mask, one mask after the other: what
  /// ranks find is in the order of their ranks.
  QueryPartition(std::int64_t q_length, std::int64_t q_block, std::int64_t ranks,
                 const std::vector<RowCosts>& costs);

  /// The queries of a mask that a rank has, by its index.
  IndexRange queries(std::int64_t rank, std::int64_t mask) const;
  /// The rows of blocks that begin in them.
  IndexRange rows(std::int64_t rank, std::int64_t mask, BlockShape block) const;

 private:
  std::int64_t q_length_, q_block_, rows_;
  std::vector<std::int64_t> bounds_;
};

/// The different partial blocks that ranks have found, numbered as one process would have.
struct RankPatterns {
  std::int64_t count = 0;                      // of all ranks
  IndexRange own;                              // the ids of those that this rank holds
  std::vector<std::int32_t> own_here;          // and their ids in its table, in the same order
  std::vector<std::vector<std::int32_t>> ids;  // rank 0: for each rank the id of each in its table
};

/// Numbers the patterns of all ranks: ids by rank, and within a rank by its own. A pattern that several
/// have found stays with the first of them.
///
/// Memory, on rank 0: some 100 bytes for each pattern of each rank, counted against the limit of its table.
RankPatterns number_patterns(const PatternTable& table, Communicator& comm);

/// On rank 0 the scan of a mask, from what each rank found in its rows of blocks; nothing on the others.
/// `mine` is empty where a rank has none. `patterns` is null where none are kept.
std::optional<Scan> joined(const Mask& mask, BlockShape block, std::optional<BandScan> mine,
                           const RankPatterns* patterns, Communicator& comm);

/// On all ranks the scan of a mask, without patterns.
Scan joined_by_all(const Mask& mask, BlockShape block, std::optional<BandScan> mine, Communicator& comm);

}  // namespace ejk::blocks
