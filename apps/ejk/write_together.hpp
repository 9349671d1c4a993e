// One writing of arrays by all ranks.
//
// Rank 0 writes as a process alone does, with the same code, so that the files are the same. The other members
// wait for what it asks of them: the elements of a box that one of them holds, or, where the container can say
// in advance where an array's elements will stand, that each writes its own there, beside rank 0.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/io.hpp"
#include "outputs.hpp"

namespace ejk::app {

/// All members call it, with the same arrays. On rank 0 calls `write` with sources of all elements, and options
/// in which the others have their share. An error of any member comes out on rank 0.
void write_together(
    Communicator& comm, const std::vector<Output>& arrays,
    const std::function<void(std::int64_t done, std::int64_t all)>& progress, WriteOptions options,
    const std::function<void(const std::vector<NamedArray>& arrays, const WriteOptions& options)>& write);

}  // namespace ejk::app
