// A folder of .npy files as a container: NAME.npy for each array.
// tests: tests/io/test_write.cpp
#pragma once

#include "io/container.hpp"

namespace ejk::io {

/// A folder is no array: Error{input} with its files as a hint.
std::shared_ptr<const ArraySource> open_directory(const ArrayReference& reference,
                                                  const OpenOptions& options);

/// Names of the .npy files, without their suffix, sorted.
std::vector<std::string> directory_names(const ArrayReference& reference, const OpenOptions& options);

/// A folder that is missing is made aside, and renamed when all files are in it. Where there is one, all
/// files are written in it under temporary names, then one after another is renamed.
void write_directory(const WriteJob& job);
void check_directory(const WriteJob& job);

}  // namespace ejk::io
