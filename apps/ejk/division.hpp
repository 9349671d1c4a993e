// The distribution of a run's work over ranks, as a dry run reports it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/report.hpp"

namespace ejk::app {

/// The unit of RankWork::cost: multiplications and additions, or bytes of memory traffic.
enum class CostUnit { operations, bytes };

/// The work of each rank, for a number of ranks.
using Division = std::function<std::vector<RankWork>(std::int64_t ranks)>;

inline std::int64_t peak_of(const std::vector<RankWork>& work) {
  std::int64_t peak = 0;
  for (const RankWork& rank : work) peak = std::max(peak, rank.peak_bytes);
  return peak;
}

/// The work of each rank, and a model of the time on 1 to 1,024 ranks from rates measured on rank 0 in half a
/// second. Collective; rank 0 has the whole report.
Report describe_division(Communicator& comm, const Division& division, CostUnit unit);

}  // namespace ejk::app
