// HDF5 files. The library runs in a child process (io/hdf5_worker.hpp), so that a damaged file can do no
// harm; contiguous datasets are then mapped by this process itself, without the library.
// tests: tests/io/test_hdf5.cpp
#pragma once

#include "io/container.hpp"

namespace ejk::io {

std::shared_ptr<const ArraySource> open_hdf5(const ArrayReference& reference, const OpenOptions& options);
std::vector<std::string> hdf5_names(const ArrayReference& reference, const OpenOptions& options);
std::vector<ArrayLink> hdf5_links(const ArrayReference& reference, const OpenOptions& options);

/// Adds the arrays to a copy of the file, which then takes its place.
void write_hdf5(const WriteJob& job);
void check_hdf5(const WriteJob& job);

}  // namespace ejk::io
