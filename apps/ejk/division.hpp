// How the work of a run is divided over the members of a team, as a dry run tells it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ejk/report.hpp"
#include "ejk/team.hpp"

namespace ejk::app {

/// What the costs of shares count: multiplications and additions, or bytes of memory that are gone through.
enum class CostUnit { operations, bytes };

/// What each of so many members would do, by ranks.
using Division = std::function<std::vector<WorkShare>(std::int64_t members)>;

/// Who gets what, and how long it would take on 1 to 1,024 ranks: a model, from rates that are measured here on one
/// member in half a second. All members call it; rank 0 has the report.
Report describe_division(Team& team, const Division& division, CostUnit unit);

}  // namespace ejk::app
