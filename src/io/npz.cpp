// tests: tests/io/test_npz.cpp
#include "io/npz.hpp"
namespace ejk::io {
std::shared_ptr<const ArraySource> open_npz(const ArrayReference&, const OpenOptions&) {
  throw Error(Error::Kind::internal, "not yet");
}
std::vector<std::string> npz_names(const std::string&, const OpenOptions&) { return {}; }
void write_npz(const WriteJob&) {}
void check_npz(const WriteJob&) {}
}  // namespace ejk::io
