// The table of containers of arrays: a row states what a container can do, and has its functions.
// tests: tests/io/test_references.cpp, test_write.cpp
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/io.hpp"

namespace ejk::io {

/// Arrays to be written to one target, each under the name that it will have there.
struct WriteJob {
  std::string path;
  std::vector<NamedArray> arrays;  // for HDF5 full paths ("/g/x"); sources may be empty when only checking
  std::string attributes_at;       // HDF5 object that gets the attributes
  WriteOptions options;

  /// The least size on disk: that of the elements, or 0 where they are compressed.
  std::int64_t bytes() const;

  /// Writes the elements of an array to their region of the file; empty: its source is read.
  std::function<void(const ElementRegion& region)> fill_of(std::size_t array) const {
    if (!options.fill) return {};
    return [&fill = options.fill, array](const ElementRegion& region) { fill(array, region); };
  }
};

/// A container open for reading. Safe to use from several threads.
class OpenContainer {
 public:
  virtual ~OpenContainer() = default;
  /// By one of names(); "" is the only array of the container.
  virtual std::shared_ptr<const ArraySource> array(const std::string& member) const = 0;
  /// All arrays of the container, or of a group.
  virtual std::vector<std::string> names(const std::string& group) const = 0;
  virtual std::vector<ArrayLink> links(const std::string& group) const {
    return (void)group, std::vector<ArrayLink>();
  }
  /// Of ArrayFile, whose functions have the definitions.
  virtual std::optional<std::vector<StoredArray>> stored_arrays() const { return std::nullopt; }
  virtual std::vector<std::string> remarks() const { return {}; }
  /// A reference to an array of the container, whose name may end in what was parsed as a slice.
  virtual ArrayReference resolved(const ArrayReference& named) const { return named; }
  /// Of the container, or of an object in it.
  virtual std::map<std::string, std::string> attributes(const std::string& object) const {
    return (void)object, std::map<std::string, std::string>();
  }
};

/// A container that may be one of a model's files: its header lists its arrays.
class ShardContainer : public OpenContainer {
 public:
  /// Nothing where there is none of that name.
  virtual std::optional<StoredArray> stored_array(const std::string& name) const = 0;
  /// One of those, `shown` in messages.
  virtual std::shared_ptr<const ArraySource> open(const std::string& name,
                                                  const std::string& shown) const = 0;
};

/// How arrays are named in a container: one array without a name, or names of which each is an array, or
/// paths ("/g/x") through groups, which are named as well.
enum class Names { none, flat, tree };

/// The 8-bit floats that a container has types for: those with a mantissa, or all.
enum class SmallFloats { none, with_mantissa, all };

struct Container {
  ArrayReference::Container kind;
  std::string_view label;
  /// How a path of this kind ends, and what its files begin with. Neither: it is recognised otherwise.
  std::span<const std::string_view> suffixes = {}, magic = {};
  Names names = Names::none;
  SmallFloats small_floats = SmallFloats::none;
  bool has_links = false, compresses = false;
  /// Names may end in brackets: of several the last are a slice.
  bool has_subscripts = false;
  /// A reference to an array in it is PATH, prefix, name, suffix.
  std::string_view name_prefix = ":", name_suffix = {};
  /// Whether a file of this size that begins so is one, where that takes more than a magic.
  bool (*begins)(std::string_view begin, std::int64_t size) = nullptr;

  bool holds_several() const { return names != Names::none; }
  bool has_groups() const { return names == Names::tree; }
  bool is_written() const { return write != nullptr; }

  /// Opens what the path names.
  std::shared_ptr<const OpenContainer> (*open)(const std::string& path, const OpenOptions&);
  /// Null where files are only read.
  void (*write)(const WriteJob&) = nullptr;
  /// Throws what `write` would throw, as far as that is known before any work; modifies nothing.
  void (*check)(const WriteJob&) = nullptr;
};

std::span<const Container> containers();
const Container& container(ArrayReference::Container kind);

/// The first few names of arrays, as references have them, for a hint.
std::string listed(std::vector<std::string> names);

/// For a container of these arrays in which none has the name `wanted`, or in which none is named and there
/// are several.
Error no_such_array(const std::string& path, const std::string& wanted,
                    const std::vector<std::string>& names);

/// A path within a container without the slashes at its ends.
std::string_view without_slashes(std::string_view path);

/// parse_output of a reference that is parsed already.
ArrayReference as_output(ArrayReference reference);

}  // namespace ejk::io
