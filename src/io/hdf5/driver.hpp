// Where the HDF5 library reads and writes: a driver that keeps what the system answered to itself.
//
// The library writes small datasets, chunks and its own structures only when something is closed, and cannot
// cope with a write that fails there: it goes on as if nothing had happened, or crashes. So this driver tells
// it that all is well and remembers the first failure; whoever uses it asks for that after each step and
// throws the file away. Reads do fail; the reason is kept too, since the library may pass over it and take
// the file for damaged. No file is locked. What is written are the bytes of the library's default driver.
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
