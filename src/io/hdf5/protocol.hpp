// Requests to the process that runs the HDF5 library.
// tests: tests/io/test_hdf5.cpp
#pragma once

#include <cstdint>

namespace ejk::io {

/// In each request the call comes first, then the fields before the arrow. A request ends in an answer
/// or an Error.
enum class Hdf5Call : std::int64_t {
  // path, first → how many there are; of those from `first` on each dataset's path, as many as fit
  names,
  // the same → how many; each link's path, kind and target
  links,
  // the path of an object → how many; each attribute's name and text
  attributes,
  // the dataset's path or "" → a number for it, its path, dtype, byte order, shape, offset in the file or -1,
  // how it is stored, the bytes of the one element that all are or "", the bytes of a row of chunks that are
  // decoded or 0
  open,
  // the number → nothing
  close,
  // the number, the bytes of its row of chunks if that may be held or 0, start, count of a box → nothing;
  // its elements, as in the file, are in the buffer
  read,
  // overwrite (0, 1), how many, then each object's path → nothing: they could be written
  check,
  // whether the file is new (0, 1), overwrite (0, 1) → nothing
  begin,
  // an array's path, dtype, shape, compression level or 0, the one element that all are or "" → nothing
  create,
  // start, count; the elements are in the buffer → nothing
  write,
  // nothing → where in the file the array that was created last has its elements; who asks writes all of them
  // there
  place,
  // an array's path → nothing; whether or not there was one, there is none now
  remove,
  // path of the object that gets attributes; of those that go how many, then each name, if the first is
  // there; of those that come how many, then each name and value → nothing; all is on its way
  finish,
};

}  // namespace ejk::io
