// A folder of .npy files as a target: NAME.npy for each array.
// tests: tests/io/test_write.cpp
#pragma once

#include "io/container.hpp"

namespace ejk::io {

/// A folder is no array: Error{input} with its files as a hint.
std::shared_ptr<const ArraySource> open_directory(const ArrayReference& reference,
                                                  const OpenOptions& options);

/// Names of the .npy files, without their suffix, sorted.
std::vector<std::string> directory_names(const ArrayReference& reference, const OpenOptions& options);

/// All files are written under temporary names, then all are renamed. The folder is made when missing, and
/// goes again when anything fails.
void write_directory(const WriteJob& job);
void check_directory(const WriteJob& job);

}  // namespace ejk::io
