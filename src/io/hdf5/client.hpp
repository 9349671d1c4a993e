// HDF5 files as a container: requests go to the library in a child process (server.hpp), one per open file;
// this process itself maps contiguous datasets. README.md gives the reasons.
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
