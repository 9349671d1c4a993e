// Gathers an array whose parts are distributed over ranks.
#pragma once

#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "outputs.hpp"

namespace ejk::app {

/// The whole output on rank 0, an empty array on the other ranks. Collective. Beside the array it needs kPieceBytes.
Array gather_parts(Communicator& comm, const Output& output);

}  // namespace ejk::app
