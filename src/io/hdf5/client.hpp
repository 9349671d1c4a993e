// HDF5 files as a container: what is asked of them goes to the library in a process of its own (server.hpp),
// one for each open file; contiguous datasets are then mapped by this process itself. README.md says why.
// tests: tests/io/test_hdf5.cpp
#pragma once

#include "io/container.hpp"

namespace ejk::io {

/// Whether a file's content says that it is one. Throws Error{input} where it cannot be read.
bool has_hdf5_signature(int fd, std::string_view name);

std::shared_ptr<const OpenContainer> open_hdf5(const std::string& path, const OpenOptions& options);

/// Adds the arrays to a copy of the file, which then takes its place.
void write_hdf5(const WriteJob& job);
void check_hdf5(const WriteJob& job);

}  // namespace ejk::io
