// Opening a reference: its container's row opens the file, the file gives the array, a slice is laid over it.
// And files as they are.
// tests: tests/io/test_npy.cpp, test_npz.cpp, test_hdf5.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/text.hpp"
#include "ejk/io.hpp"
#include "io/container.hpp"
#include "io/npy.hpp"
#include "io/slice.hpp"

namespace ejk {

std::shared_ptr<const ArraySource> open_array(const ArrayReference& reference, const OpenOptions& options) {
  ArrayReference file = reference;
  file.slice.clear();
  return ArrayFile(std::move(file), options).array(reference);
}

std::shared_ptr<const ArraySource> open_array(std::string_view reference, const OpenOptions& options) {
  return open_array(parse_input(reference), options);
}

bool ReadMemory::take(std::int64_t bytes) {
  std::int64_t spare = spare_;
  while (spare >= bytes)
    if (spare_.compare_exchange_weak(spare, spare - bytes)) return true;
  return false;
}

void ReadMemory::want(std::int64_t bytes) {
  std::int64_t wanted = wanted_;
  while (wanted < bytes && !wanted_.compare_exchange_weak(wanted, bytes)) {
  }
}

std::optional<std::string> read_file(const std::string& path, std::int64_t most) {
  const std::string name = core::printable(path);
  const io::File file = path == "-" ? io::File() : io::open_for_reading(path, name);
  const int fd = file.is_open() ? file.fd() : io::take_stdin();
  std::string text;
  for (std::size_t held = 0;;) {
    constexpr std::size_t kFirst = std::size_t{1} << 16;
    text.resize(std::max(kFirst, 2 * held));  // twice as much room whenever it is full
    held += io::read_some(fd, text.data() + held, text.size() - held, name);
    if (static_cast<std::int64_t>(held) > most) return std::nullopt;
    if (held == text.size()) continue;
    text.resize(held);
    return text;
  }
}

std::vector<std::string> array_names(const std::string& path, const OpenOptions& options) {
  return ArrayFile(path, options).names();
}

std::vector<ArrayLink> array_links(const std::string& path, const OpenOptions& options) {
  ArrayReference reference = parse_input(path);
  if (reference.container != ArrayReference::Container::hdf5) return {};
  return ArrayFile(std::move(reference), options).links();
}

ArrayFile::ArrayFile(std::string_view reference, const OpenOptions& options)
    : ArrayFile(parse_input(reference), options) {}

ArrayFile::ArrayFile(ArrayReference reference, const OpenOptions& options)
    : reference_(std::move(reference)) {
  if (!reference_.slice.empty())
    throw Error(Error::Kind::usage, core::printable(reference_.text) + ": a file is opened without a slice");
  container_ = io::container(reference_.container).open(reference_.path, options);
}

std::vector<std::string> ArrayFile::names(const std::string& group) const {
  return container_->names(group.empty() ? reference_.member : group);
}

std::vector<ArrayLink> ArrayFile::links(const std::string& group) const {
  return container_->links(group.empty() ? reference_.member : group);
}

std::map<std::string, std::string> ArrayFile::attributes(const std::string& object) const {
  return container_->attributes(object.empty() ? reference_.member : object);
}

ArrayGroup ArrayFile::group(const std::vector<std::string>& wanted, const std::string& group) const {
  const bool is_hdf5 = reference_.container == ArrayReference::Container::hdf5;
  std::string path = group.empty() ? reference_.member : group;
  const bool is_stream = reference_.container == ArrayReference::Container::stream;
  const std::string name =
      is_stream ? "-" : core::printable(reference_.path + (path.empty() ? "" : ":" + path));
  if (!io::container(reference_.container).holds_several || (!is_hdf5 && !path.empty()))
    throw Error(Error::Kind::input, name + ": is one array, and several are wanted")
        .hint("an HDF5 file or a group in one, an .npz or a folder holds several");
  std::vector<std::string> names = container_->names(path);
  for (const ArrayLink& link : container_->links(path)) names.push_back(link.name);  // other names of arrays
  while (path.ends_with('/')) path.pop_back();
  const std::string before = !is_hdf5                                ? ""
                             : path.starts_with('/') || path.empty() ? path + "/"
                                                                     : "/" + path + "/";
  ArrayGroup found{name, {}, container_->attributes(path)};
  for (const std::string& array : wanted)
    if (std::find(names.begin(), names.end(), before + array) != names.end())
      found.arrays.emplace(array, container_->array(before + array));
  if (found.arrays.empty() && !wanted.empty()) throw none_of(wanted, name);
  return found;
}

// Where the arrays may be instead.
Error ArrayFile::none_of(const std::vector<std::string>& wanted, const std::string& name) const {
  Error error(Error::Kind::input, fmt::format("{}: holds none of {}", name, fmt::join(wanted, ", ")));
  if (reference_.container != ArrayReference::Container::hdf5) return error;
  for (const std::string& path : container_->names("/"))
    for (const std::string& array : wanted)
      if (path.ends_with("/" + array) && path.size() > array.size() + 1)
        return error.hint(fmt::format("did you mean {}:{}?", core::printable(reference_.path),
                                      core::printable(path.substr(0, path.size() - array.size() - 1))));
  return error;
}

std::shared_ptr<const ArraySource> ArrayFile::array(const std::string& name) const {
  return container_->array(name.empty() ? reference_.member : name);
}

std::shared_ptr<const ArraySource> ArrayFile::array(const ArrayReference& reference) const {
  auto source = array(reference.member);
  if (reference.slice.empty()) return source;
  return io::make_sliced_source(std::move(source), reference.slice, core::printable(reference.text));
}

}  // namespace ejk
