// Opening references: container row, array, slice. Also reading whole files.
// tests: tests/io/test_npy.cpp, test_npz.cpp, test_hdf5.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
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
  const std::string name = printable(path);
  const io::File file = path == "-" ? io::File() : io::open_for_reading(path, name);
  const int fd = file.is_open() ? file.fd() : io::take_stdin();
  std::string text;
  for (std::size_t done = 0;;) {
    constexpr std::size_t kFirst = std::size_t{1} << 16;
    text.resize(std::max(kFirst, 2 * done));  // doubled whenever it is full
    done += io::read_some(fd, text.data() + done, text.size() - done, name);
    if (static_cast<std::int64_t>(done) > most) return std::nullopt;
    if (done == text.size()) continue;
    text.resize(done);
    return text;
  }
}

std::vector<std::string> array_names(const std::string& path, const OpenOptions& options) {
  return ArrayFile(path, options).names();
}

std::vector<ArrayLink> array_links(const std::string& path, const OpenOptions& options) {
  ArrayReference reference = parse_input(path);
  if (!io::container(reference.container).has_links) return {};
  return ArrayFile(std::move(reference), options).links();
}

ArrayFile::ArrayFile(std::string_view reference, const OpenOptions& options)
    : ArrayFile(parse_input(reference), options) {}

ArrayFile::ArrayFile(ArrayReference reference, const OpenOptions& options)
    : reference_(std::move(reference)) {
  if (!reference_.slice.empty())
    throw Error(Error::Kind::usage, printable(reference_.text) + ": a file is opened without a slice");
  container_ = io::container(reference_.container).open(reference_.path, options);
}

std::vector<std::string> ArrayFile::names(const std::string& group) const {
  return container_->names(group.empty() ? reference_.member : group);
}

std::vector<ArrayLink> ArrayFile::links(const std::string& group) const {
  return container_->links(group.empty() ? reference_.member : group);
}

std::optional<std::vector<StoredArray>> ArrayFile::stored_arrays() const {
  return container_->stored_arrays();
}

std::vector<std::string> ArrayFile::remarks() const { return container_->remarks(); }

ArrayReference ArrayFile::resolved(const ArrayReference& named) const {
  return io::container(named.container).has_subscripts ? container_->resolved(named) : named;
}

std::map<std::string, std::string> ArrayFile::attributes(const std::string& object) const {
  return container_->attributes(object.empty() ? reference_.member : object);
}

ArrayGroup ArrayFile::group(const std::vector<std::string>& wanted, const std::string& group) const {
  const io::Container& container = io::container(reference_.container);
  const std::string path = group.empty() ? reference_.member : group;
  const std::string name =
      reference_.is_stream() ? "-" : printable(reference_.path + (path.empty() ? "" : ":" + path));
  if (!container.holds_several() || (!container.has_groups() && !path.empty()))
    throw Error(Error::Kind::input, name + ": is one array, and several are wanted")
        .hint("an HDF5 file or a group in one, an .npz or a folder holds several");
  std::vector<std::string> names = container_->names(path);
  for (const ArrayLink& link : container_->links(path)) names.push_back(link.name);  // other names of arrays
  const std::string inside(io::without_slashes(path));
  const std::string before = !container.has_groups() ? "" : inside.empty() ? "/" : "/" + inside + "/";
  ArrayGroup found{name, {}, container_->attributes(inside)};
  for (const std::string& array : wanted)
    if (std::find(names.begin(), names.end(), before + array) != names.end())
      found.arrays.emplace(array, container_->array(before + array));
  if (found.arrays.empty() && !wanted.empty()) throw none_of(wanted, name);
  // A result of one array has its attributes itself.
  if (found.arrays.size() == 1 && container.has_groups())
    if (auto own = container_->attributes(before + found.arrays.begin()->first); !own.empty())
      found.attributes = std::move(own);
  return found;
}

// With a hint to a group that has some of them.
Error ArrayFile::none_of(const std::vector<std::string>& wanted, const std::string& name) const {
  constexpr std::size_t kNamed = 6;
  const auto named = std::span(wanted).first(std::min(kNamed, wanted.size()));
  Error error(Error::Kind::input, fmt::format("{}: holds none of {}{}", name, fmt::join(named, ", "),
                                              named.size() < wanted.size() ? ", ..." : ""));
  if (!io::container(reference_.container).has_groups()) return error;
  for (const std::string& path : container_->names("/"))
    for (const std::string& array : wanted)
      if (path.ends_with("/" + array) && path.size() > array.size() + 1)
        return error.hint(fmt::format("did you mean {}:{}?", printable(reference_.path),
                                      printable(path.substr(0, path.size() - array.size() - 1))));
  return error;
}

std::vector<FoundArray> ArrayFile::arrays(const ArrayReference& named) const {
  const ArrayReference target = resolved(named);
  const io::Container& container = io::container(target.container);
  FoundArray itself{target.array_name(), target, true};
  const bool is_file = container.holds_several() && target.member.empty();
  const bool has_groups = container.has_groups() || container.has_subscripts;
  if (!is_file && (!has_groups || !target.slice.empty())) return {itself};
  const std::vector<std::string> names = container_->names(target.member);
  if (names.empty() && !is_file && container.has_subscripts) return {itself};
  if (!target.slice.empty()) {  // of the only array of the file, which has a name of its own
    if (names.size() == 1) itself.name = io::without_slashes(names[0]);
    return {itself};
  }
  const std::string group(io::without_slashes(target.member));
  if (names.size() == 1 && !group.empty() && io::without_slashes(names[0]) == group) return {itself};
  std::vector<FoundArray> all;
  for (const std::string& name : names) {
    ArrayReference one = reference_to(target, name);
    std::string own_name = one.array_name();
    const std::string before = group + (container.has_subscripts ? "." : "/");
    if (!group.empty() && own_name.starts_with(before)) own_name.erase(0, before.size());
    all.push_back({std::move(own_name), std::move(one), false});
  }
  return all;
}

std::shared_ptr<const ArraySource> ArrayFile::array(const std::string& name) const {
  return container_->array(name.empty() ? reference_.member : name);
}

std::shared_ptr<const ArraySource> ArrayFile::array(const ArrayReference& reference) const {
  const ArrayReference target = resolved(reference);
  auto source = array(target.member);
  if (target.slice.empty()) return source;
  return io::make_sliced_source(std::move(source), target.slice, printable(target.text));
}

}  // namespace ejk
