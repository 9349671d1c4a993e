// The HDF5 library at work; it runs in a process of its own (io/worker.hpp).
// tests: tests/io/test_hdf5.cpp
#pragma once

#include "io/worker.hpp"

namespace ejk::io {

/// What can be asked of it. In each request the call comes first.
enum class Hdf5Call : std::int64_t {
  // path, name for messages, allow external (0, 1) → how many, then each dataset's path
  names,
  // the same → how many, then each link's path, kind and target
  links,
  // the same, then the dataset's path or "" → its path, dtype, byte order, shape, offset in the file or -1,
  // how it is stored
  open,
  // start, count of a box of the open dataset → nothing; its elements, as in the file, are in the buffer
  read,
  // path, name, how many, then each object's path; overwrite (0, 1) → nothing: they could be written
  check,
  // path, name, whether it is new (0, 1), overwrite (0, 1) → nothing
  begin,
  // an array's path, dtype, shape, compression level or 0 → nothing
  create,
  // start, count; the elements are in the buffer → nothing
  write,
  // an array's path → nothing; whether or not there was one, there is none now
  remove,
  // path of the object that gets attributes, how many, then each name and value → nothing; all is on its way
  finish,
};

/// Serves these calls, one file for each server.
Worker::Serve make_hdf5_server();

}  // namespace ejk::io
