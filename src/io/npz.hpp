// .npz files: zip archives of .npy members, read and written through libzip.
//
// A member is decompressed forward while it is read; reading backwards restarts it (a stored one is sought).
// Its checksum is verified whenever it was read from begin to end. Nothing is mapped, so that damage is
// detected. Writing stores or deflates the members in one pass, with fixed timestamps.
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
