// A virtual file driver for the HDF5 library that reports write failures as success and records them.
//
// The library writes small data when objects are closed, and continues or crashes if that fails. The driver
// reports success and records the first failure; callers test for it after each step and discard the file.
// Read failures are recorded too, since the library may report a damaged file instead. No file is locked.
// The bytes are those of the default driver.
//
// tests: tests/io/test_hdf5.cpp
#pragma once

#include "io/hdf5/library.hpp"

namespace ejk::io {

/// What the driver knows of the files it opens. It must outlive them.
struct Hdf5Disk {
  std::string name;           // of the file that it has as an open descriptor
  int fd = -1;                // that one; it stays open
  bool allow_others = false;  // whether the library may open other files, by their names
  int read_error = 0;         // errno of the first read that failed
  int write_error = 0;        // and of the first write
};

/// A file access property list with the driver.
Hdf5Handle hdf5_access(Hdf5Disk& disk);

}  // namespace ejk::io
