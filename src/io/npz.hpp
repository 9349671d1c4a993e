// .npz files: zip archives (io/zip.hpp) of .npy members. Nothing is mapped, so that checksums detect damage.
//
// tests: tests/io/test_npz.cpp
#pragma once

#include "io/container.hpp"

namespace ejk::io {

std::shared_ptr<const OpenContainer> open_npz(const std::string& path, const OpenOptions& options);

/// A new archive of all arrays of the job.
void write_npz(const WriteJob& job);
void check_npz(const WriteJob& job);

}  // namespace ejk::io
