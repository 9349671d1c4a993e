// A folder of .npy files as a container: NAME.npy for each array.
// tests: tests/io/test_write.cpp
#pragma once

#include <string>

#include "io/container.hpp"

namespace ejk::io {

/// The path of a folder without slashes at its end.
std::string folder_path(std::string path);

std::shared_ptr<const OpenContainer> open_directory(const std::string& path, const OpenOptions& options);

/// A new folder is written under a temporary name and renamed. In an existing one all files are written under
/// temporary names and then renamed.
void write_directory(const WriteJob& job);
void check_directory(const WriteJob& job);

}  // namespace ejk::io
