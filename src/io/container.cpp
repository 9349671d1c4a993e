// The table of containers: for each its suffixes and the functions that open, write and check it. A new
// format is one row. What a path means is decided by its suffix, and for a folder by its final slash or by
// looking.
// tests: tests/io/test_references.cpp, test_write.cpp
#include "io/container.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <array>

#include "core/text.hpp"
#include "io/directory.hpp"
#include "io/hdf5/client.hpp"
#include "io/npy.hpp"
#include "io/npz.hpp"

namespace ejk::io {

namespace {

using Kind = ArrayReference::Container;

constexpr std::array<std::string_view, 1> kNpySuffixes{".npy"};
constexpr std::array<std::string_view, 1> kNpzSuffixes{".npz"};
constexpr std::array<std::string_view, 4> kHdf5Suffixes{".h5", ".hdf5", ".hdf", ".he5"};

ArrayReference reference_to(Kind kind, std::string path) {
  ArrayReference reference;
  reference.container = kind;
  reference.path = std::move(path);
  reference.text = reference.path;
  return reference;
}

using OpenArray = std::shared_ptr<const ArraySource> (*)(const ArrayReference&, const OpenOptions&);

// One array, which has no name, and is opened when it is asked for.
template <Kind kKind, OpenArray open>
class OneArray final : public OpenContainer {
 public:
  OneArray(std::string path, const OpenOptions& options) : path_(std::move(path)), options_(options) {}
  std::shared_ptr<const ArraySource> array(const std::string&) const override {
    return open(reference_to(kKind, path_), options_);
  }
  std::vector<std::string> names(const std::string&) const override { return {""}; }

 private:
  std::string path_;
  OpenOptions options_;
};

// The .npy files of a folder. The folder itself, which "" names, is none.
class OpenFolder final : public OpenContainer {
 public:
  OpenFolder(std::string path, const OpenOptions& options)
      : reference_(reference_to(Kind::directory, std::move(path))), options_(options) {}
  std::shared_ptr<const ArraySource> array(const std::string& member) const override {
    if (member.empty()) return open_directory(reference_, options_);
    return open_npy(reference_to(Kind::npy, reference_.path + member + ".npy"), options_);
  }
  std::vector<std::string> names(const std::string&) const override {
    return directory_names(reference_, options_);
  }

 private:
  ArrayReference reference_;
  OpenOptions options_;
};

template <class Opened>
std::shared_ptr<const OpenContainer> open_as(const std::string& path, const OpenOptions& options) {
  return std::make_shared<Opened>(path, options);
}

// In the order of the enumeration.
constexpr std::array<Container, 5> kContainers{{
    {Kind::npy, "an .npy file", kNpySuffixes, false, open_as<OneArray<Kind::npy, open_npy>>, write_npy_file,
     check_npy_file},
    {Kind::npz, "an .npz file", kNpzSuffixes, true, open_npz, write_npz, check_npz},
    {Kind::hdf5, "an HDF5 file", kHdf5Suffixes, true, open_hdf5, write_hdf5, check_hdf5},
    {Kind::stream,
     "a stream",
     {},
     false,
     open_as<OneArray<Kind::stream, open_stdin>>,
     write_stdout,
     check_stdout},
    {Kind::directory, "a folder", {}, true, open_as<OpenFolder>, write_directory, check_directory},
}};

}  // namespace

std::span<const Container> containers() { return kContainers; }

const Container& container(Kind kind) { return kContainers[static_cast<std::size_t>(kind)]; }

namespace {

bool is_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

ArrayReference as_folder(ArrayReference reference) {
  reference.container = Kind::directory;
  reference.path += '/';
  reference.text += '/';
  return reference;
}

// "x.tar.gz" → ".gz"; nothing where no dot stands within the name.
std::string_view suffix_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos || dot == 0 || dot + 1 == name.size() ? "" : name.substr(dot);
}

}  // namespace

ArrayReference as_output(ArrayReference reference) {
  if (reference.container != Kind::npy) return reference;  // known by its suffix, its slash or its dash
  const std::string_view suffix = suffix_of(reference.path);
  if (suffix == kNpySuffixes[0]) return reference;
  if (is_folder(reference.path)) return as_folder(std::move(reference));
  if (suffix.empty()) return reference;
  std::vector<std::string_view> known;
  for (const Container& c : kContainers) known.insert(known.end(), c.suffixes.begin(), c.suffixes.end());
  throw Error(Error::Kind::usage,
              fmt::format("{}: no file of arrays ends in '{}'; {} do", core::printable(reference.path),
                          core::printable(suffix, 40), fmt::join(known, ", ")))
      .hint("a folder's name ends in /");
}

}  // namespace ejk::io

namespace ejk {

ArrayReference parse_input(std::string_view text) {
  ArrayReference reference = parse_reference(text);
  const bool whole_file = reference.member.empty() && reference.slice.empty() &&
                          reference.container != ArrayReference::Container::stream &&
                          reference.container != ArrayReference::Container::directory;
  return whole_file && io::is_folder(reference.path) ? io::as_folder(std::move(reference)) : reference;
}

ArrayReference parse_output(std::string_view text) { return io::as_output(parse_reference(text)); }

}  // namespace ejk
