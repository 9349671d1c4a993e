// Scan of masks by several ranks: the partition of block rows, and the reduction of scans to that of a
// process.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "blocks/scan.hpp"
#include "ejk/communicator.hpp"
#include "mask/digest.hpp"

namespace ejk::blocks {

/// Cost of each block row of a mask, sampled if there are many.
struct RowCosts {
  RowCosts(const Mask& mask, BlockShape block);

  std::vector<double> open;   // elements of blocks that have to be read
  std::vector<double> bytes;  // work, in bytes read
  double stored_bytes;        // of an element of the array
};

/// Partition of the block rows of masks of one shape, mask by mask, into contiguous ranges of equal cost.
class RowPartition {
 public:
  RowPartition(std::int64_t ranks, const std::vector<RowCosts>& costs);

  IndexRange rows(std::int64_t rank, std::int64_t mask) const;

 private:
  std::int64_t rows_;
  std::vector<std::int64_t> bounds_;
};

/// The distinct partial blocks of all ranks, numbered as by one process.
struct RankPatterns {
  std::int64_t count = 0;                      // of all ranks
  IndexRange own;                              // ids of those that are stored on this rank
  std::vector<std::int32_t> own_here;          // their ids in this rank's table, in the same order
  std::vector<std::vector<std::int32_t>> ids;  // rank 0: for each rank the id of each in its table
};

/// Numbers the patterns of all ranks by rank, and within a rank by its own ids. A pattern of several ranks is
/// stored on the first of them. Rank 0 counts some 100 bytes for each pattern of each rank in its table.
RankPatterns number_patterns(const PatternTable& table, Communicator& comm);

/// On rank 0 the scan of a mask from the ranks' scans of their block rows, if any. `patterns` may be null.
std::optional<Scan> joined(const Mask& mask, BlockShape block, std::optional<BandScan> own,
                           const RankPatterns* patterns, Communicator& comm);

Scan joined_by_all(const Mask& mask, BlockShape block, std::optional<BandScan> own, Communicator& comm);

}  // namespace ejk::blocks
