// How the work of a run is divided over the ranks, as a dry run tells it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/report.hpp"

namespace ejk::app {

/// What the costs of shares count: multiplications and additions, or bytes of memory that are gone through.
enum class CostUnit { operations, bytes };

/// What each of so many ranks would do, by ranks.
using Division = std::function<std::vector<RankWork>(std::int64_t ranks)>;

/// The largest peak memory of a rank.
inline std::int64_t peak_of(const std::vector<RankWork>& work) {
  std::int64_t peak = 0;
  for (const RankWork& of_rank : work) peak = std::max(peak, of_rank.peak_bytes);
  return peak;
}

/// Who gets what, and how long it would take on 1 to 1,024 ranks: a model, from rates that are measured here on one
/// rank in half a second. All ranks call it; rank 0 has the report.
Report describe_division(Communicator& comm, const Division& division, CostUnit unit);

}  // namespace ejk::app
