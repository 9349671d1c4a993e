#pragma once
#include "io/container.hpp"
namespace ejk::io {
inline std::shared_ptr<const ArraySource> open_hdf5(const ArrayReference&, const OpenOptions&) {
  throw Error(Error::Kind::internal, "not yet");
}
inline std::vector<std::string> hdf5_names(const std::string&, const OpenOptions&) {
  throw Error(Error::Kind::internal, "not yet");
}
inline void write_hdf5(const WriteJob&) { throw Error(Error::Kind::internal, "not yet"); }
inline void check_hdf5(const WriteJob&) { throw Error(Error::Kind::internal, "not yet"); }
}  // namespace ejk::io
