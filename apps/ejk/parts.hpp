// Arrays of which each rank holds a part, as one.
#pragma once

#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "outputs.hpp"

namespace ejk::app {

/// All of an output that is there, on rank 0; an empty array on the others. All ranks call it. Beside the
/// array it takes a piece of kPieceBytes.
Array gather_parts(Communicator& comm, const Output& output);

}  // namespace ejk::app
