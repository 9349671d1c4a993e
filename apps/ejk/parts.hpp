// Arrays of which each member of a team holds a part, as one.
#pragma once

#include "ejk/array.hpp"
#include "ejk/team.hpp"
#include "outputs.hpp"

namespace ejk::app {

/// All of an output that is there, on rank 0; an empty array on the others. All members call it. Beside the
/// array it takes a piece of kPieceBytes.
Array gather_parts(Team& team, const Output& output);

}  // namespace ejk::app
