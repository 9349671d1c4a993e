// The HDF5 library on one file, in a child process (io/worker.hpp).
// tests: tests/io/test_hdf5.cpp
#pragma once

#include <memory>

#include "io/hdf5/driver.hpp"
#include "io/hdf5/protocol.hpp"
#include "io/worker.hpp"

namespace ejk::io {

/// Starts the process for the file that `disk` names and has open. What it may take of memory and, for each
/// request, of processor time grows with the bytes that the file has on its disk. It decodes chunks on so
/// many threads.
std::unique_ptr<Worker> start_hdf5(Hdf5Disk disk, std::int64_t stored_bytes, int threads);

}  // namespace ejk::io
