// The table of file formats (containers of arrays). The format of an output is chosen by its suffix, that of
// an input by its first bytes, else by suffix; a directory is recognised by a trailing slash or stat().
// tests: tests/io/test_references.cpp, test_write.cpp
#include "io/container.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <array>
#include <optional>

#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "io/directory.hpp"
#include "io/hdf5/client.hpp"
#include "io/model.hpp"
#include "io/npy.hpp"
#include "io/npz.hpp"
#include "io/other_content.hpp"
#include "io/safetensors.hpp"
#include "io/torch_file.hpp"

namespace ejk::io {

namespace {

using Kind = ArrayReference::Container;

constexpr std::array<std::string_view, 1> kNpySuffixes{".npy"};
constexpr std::array<std::string_view, 1> kNpzSuffixes{".npz"};
constexpr std::array<std::string_view, 4> kHdf5Suffixes{".h5", ".hdf5", ".hdf", ".he5"};
constexpr std::array<std::string_view, 1> kSafetensorsSuffixes{".safetensors"};
constexpr std::array<std::string_view, 2> kModelSuffixes{kIndexSuffix, kTorchIndexSuffix};
constexpr std::array<std::string_view, 2> kTorchSuffixes{".pt", ".pth"};
constexpr std::array<std::string_view, 1> kNpyMagics{kNpyMagic};
constexpr std::array<std::string_view, 2> kZipMagics{"PK\3\4", "PK\5\6"};

using OpenArray = std::shared_ptr<const ArraySource> (*)(const std::string& path, const OpenOptions&);

// One array, which has no name and is opened on first use.
template <OpenArray open>
class OneArray final : public OpenContainer {
 public:
  OneArray(std::string path, const OpenOptions& options) : path_(std::move(path)), options_(options) {}
  std::shared_ptr<const ArraySource> array(const std::string&) const override {
    return open(path_, options_);
  }
  std::vector<std::string> names(const std::string&) const override { return {""}; }

 private:
  std::string path_;
  OpenOptions options_;
};

template <OpenArray open>
std::shared_ptr<const OpenContainer> open_one(const std::string& path, const OpenOptions& options) {
  return std::make_shared<OneArray<open>>(path, options);
}

// In the order of the enumeration. HDF5's signature may come after a block of other data: kind_of_content.
// clang-format off
constexpr std::array<Container, 8> kContainers{{
    {.kind = Kind::npy, .label = "an .npy file", .suffixes = kNpySuffixes, .magic = kNpyMagics,
     .open = open_one<open_npy>, .write = write_npy_file, .check = check_npy_file},
    {.kind = Kind::npz, .label = "an .npz file", .suffixes = kNpzSuffixes, .magic = kZipMagics,
     .names = Names::flat, .compresses = true, .open = open_npz, .write = write_npz, .check = check_npz},
    {.kind = Kind::hdf5, .label = "an HDF5 file", .suffixes = kHdf5Suffixes, .names = Names::tree,
     .small_floats = SmallFloats::with_mantissa, .has_links = true, .compresses = true, .open = open_hdf5, .write = write_hdf5, .check = check_hdf5},
    {.kind = Kind::stream, .label = "a stream",
     .open = open_one<open_stdin>, .write = write_stdout, .check = check_stdout},
    {.kind = Kind::directory, .label = "a folder", .names = Names::flat, .name_prefix = "", .name_suffix = ".npy",
     .open = open_directory, .write = write_directory, .check = check_directory},
    {.kind = Kind::safetensors, .label = "a safetensors file", .suffixes = kSafetensorsSuffixes, .names = Names::flat,
     .small_floats = SmallFloats::all,
     .begins = begins_as_safetensors, .open = open_safetensors, .write = write_safetensors, .check = check_safetensors},
    {.kind = Kind::model, .label = "a model of several files", .suffixes = kModelSuffixes, .names = Names::flat,
     .open = open_model},
    {.kind = Kind::torch, .label = "a file of torch.save", .suffixes = kTorchSuffixes, .names = Names::flat,
     .has_subscripts = true, .begins = begins_as_torch, .open = open_torch},
}};
// clang-format on

bool is_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

ArrayReference as_folder(ArrayReference reference) {
  reference.container = Kind::directory;
  if (!reference.path.ends_with('/')) reference.path += '/', reference.text += '/';
  return reference;
}

// A folder of .npy files, or of a model.
ArrayReference as_input_folder(ArrayReference reference) {
  reference = as_folder(std::move(reference));
  if (is_model_folder(reference.path)) reference.container = Kind::model;
  return reference;
}

// The container of a regular file by content. Throws Error{input} for unreadable files and unsupported
// formats. (Opening a pipe would lose its data.)
std::optional<Kind> kind_of_content(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const std::string name = printable(path);
  const File file = open_regular_file(path, name, "an input of several arrays");
  std::array<char, kFirstBytes> bytes{};
  const std::string_view begin(bytes.data(), read_some(file.fd(), bytes.data(), bytes.size(), name));
  for (const Container& c : kContainers)
    if (c.begins != nullptr && c.begins(begin, status.st_size)) return c.kind;
  for (const Container& c : kContainers)
    for (const std::string_view magic : c.magic)
      if (begin.starts_with(magic)) return c.kind;
  if (auto foreign = foreign_format(begin)) throw std::move(foreign->at(name));
  if (has_hdf5_signature(file.fd(), name)) return Kind::hdf5;
  return std::nullopt;
}

// PATH:NAME of a file whose suffix is no container's.
ArrayReference split_by_content(ArrayReference reference) {
  const std::string word =
      reference.member.empty() ? reference.path : reference.path + ':' + reference.member;
  for (std::size_t colon = word.find(':'); colon != std::string::npos; colon = word.find(':', colon + 1)) {
    const std::string path = word.substr(0, colon);
    const auto kind = is_folder(path) && is_model_folder(path) ? Kind::model : kind_of_content(path);
    if (!kind || !container(*kind).holds_several()) continue;
    reference.container = *kind;
    reference.path = path;
    if (kind == Kind::model && !path.ends_with('/')) reference.path += '/';
    reference.member = word.substr(colon + 1);
    break;
  }
  return reference;
}

// "x.tar.gz" → ".gz"; "" for a name without a dot inside.
std::string_view suffix_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos || dot == 0 || dot + 1 == name.size() ? "" : name.substr(dot);
}

}  // namespace

std::span<const Container> containers() { return kContainers; }

const Container& container(Kind kind) { return kContainers[static_cast<std::size_t>(kind)]; }

ArrayReference as_output(ArrayReference reference) {
  if (const Container& row = container(reference.container); !row.is_written())
    throw core::usage("{}: {} can only be read", printable(reference.path), row.label)
        .hint("write to out.safetensors, out.npz or out.h5");
  if (reference.container != Kind::npy) return reference;  // known by its suffix, its slash or its dash
  const std::string_view suffix = suffix_of(reference.path);
  if (suffix == kNpySuffixes[0]) return reference;
  if (is_folder(reference.path)) return as_folder(std::move(reference));
  if (suffix.empty()) return reference;
  std::vector<std::string_view> known;
  for (const Container& c : kContainers)
    if (c.is_written()) known.insert(known.end(), c.suffixes.begin(), c.suffixes.end());
  throw core::usage("{}: no file of arrays ends in '{}'; {} do", printable(reference.path),
                    printable(suffix, 40), fmt::join(known, ", "))
      .hint("a folder's name ends in /");
}

}  // namespace ejk::io

namespace ejk {

ArrayReference parse_input(std::string_view text) {
  ArrayReference reference = parse_reference(text);
  using Kind = ArrayReference::Container;
  if (reference.is_stream()) return reference;
  if (reference.container == Kind::directory) return io::as_input_folder(std::move(reference));
  struct stat status {};
  if (stat(reference.path.c_str(), &status) != 0) return io::split_by_content(std::move(reference));
  if (S_ISDIR(status.st_mode) && reference.member.empty() && reference.slice.empty())
    return io::as_input_folder(std::move(reference));
  const auto kind = io::kind_of_content(reference.path);
  if (kind == Kind::npz && reference.container == Kind::torch) return reference;  // another archive of torch
  if (kind && (reference.member.empty() || io::container(*kind).holds_several())) reference.container = *kind;
  return reference;
}

ArrayReference parse_output(std::string_view text) { return io::as_output(parse_reference(text)); }

}  // namespace ejk
