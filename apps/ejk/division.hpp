// The distribution of a run's work over ranks, as a dry run reports it.
#pragma once

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

/// The work of each rank, and a model of the time on 1 to 1,024 ranks from rates measured on rank 0 in half a second.
/// Collective; rank 0 has the whole report.
Report describe_division(Communicator& comm, const Division& division, CostUnit unit);

}  // namespace ejk::app
