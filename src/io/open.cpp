// Opening a reference: its container's row opens the array, a slice is laid over it.
// tests: tests/io/test_npy.cpp, test_npz.cpp, test_hdf5.cpp
#include "core/text.hpp"
#include "ejk/io.hpp"
#include "io/container.hpp"
#include "io/slice.hpp"

namespace ejk {

std::shared_ptr<const ArraySource> open_array(const ArrayReference& reference, const OpenOptions& options) {
  auto source = io::container(reference.container).open(reference, options);
  if (reference.slice.empty()) return source;
  return io::make_sliced_source(std::move(source), reference.slice, core::printable(reference.text));
}

std::shared_ptr<const ArraySource> open_array(std::string_view reference, const OpenOptions& options) {
  return open_array(parse_reference(reference), options);
}

std::vector<std::string> array_names(const std::string& path, const OpenOptions& options) {
  const ArrayReference reference = parse_reference(path);
  return io::container(reference.container).names(reference, options);
}

std::vector<ArrayLink> array_links(const std::string& path, const OpenOptions& options) {
  const ArrayReference reference = parse_reference(path);
  return io::container(reference.container).links(reference, options);
}

}  // namespace ejk
