// Collective writing of arrays.
//
// Rank 0 runs the code of a single process. The other ranks serve its requests: for the elements of a box,
// or, if the container can lay out an array in advance, to write their own elements into the file.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
#include "outputs.hpp"

namespace ejk::app {

/// Collective. On rank 0 it calls `write` with sources of all elements, and options by which the other ranks
/// write theirs. An error of any rank is rethrown on rank 0.
void write_together(
    Communicator& comm, const std::vector<Output>& arrays,
    const std::function<void(std::int64_t done, std::int64_t all)>& progress, WriteOptions options,
    const std::function<void(const std::vector<NamedArray>& arrays, const WriteOptions& options)>& write);

/// All of an output, on rank 0; an empty array on the others. Collective. Takes a buffer of kPieceBytes.
Array gather_parts(Communicator& comm, const Output& output);

}  // namespace ejk::app
