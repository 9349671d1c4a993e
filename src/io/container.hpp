// The kinds of places that arrays are read from and written to: one row each.
// tests: tests/io/test_references.cpp, test_write.cpp
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/io.hpp"

namespace ejk::io {

/// What is to be written where: the target taken apart, each array under the name it will have in there.
struct WriteJob {
  std::string path;
  std::vector<NamedArray> arrays;  // for HDF5 full paths ("/g/x"); sources may be empty when only checking
  std::string attributes_at;       // HDF5 object that gets the attributes
  WriteOptions options;

  /// The least that it takes on a disk: its elements, unless they are compressed.
  std::int64_t bytes() const;

  /// Writes the elements of an array to their place; empty: its source is read.
  std::function<void(const ElementRegion& place)> fill_of(std::size_t array) const {
    if (!options.fill) return {};
    return [&fill = options.fill, array](const ElementRegion& place) { fill(array, place); };
  }
};

/// A container that is open for reading. All functions may be called by any number of threads.
class OpenContainer {
 public:
  virtual ~OpenContainer() = default;
  /// By a name out of names(); by "" the only one there is.
  virtual std::shared_ptr<const ArraySource> array(const std::string& member) const = 0;
  /// Of everything in it, or in a group.
  virtual std::vector<std::string> names(const std::string& group) const = 0;
  virtual std::vector<ArrayLink> links(const std::string& group) const {
    return (void)group, std::vector<ArrayLink>();
  }
  /// Of the container, or of an object in it.
  virtual std::map<std::string, std::string> attributes(const std::string& object) const {
    return (void)object, std::map<std::string, std::string>();
  }
};

struct Container {
  ArrayReference::Container kind;
  std::string_view label;
  std::span<const std::string_view>
      suffixes;  // how a path of this kind ends; none: it is recognised otherwise
  bool holds_several;

  /// Opens what the path names.
  std::shared_ptr<const OpenContainer> (*open)(const std::string& path, const OpenOptions&);
  void (*write)(const WriteJob&);
  /// Throws what `write` would, as far as it can be known before; touches nothing.
  void (*check)(const WriteJob&);
};

std::span<const Container> containers();
const Container& container(ArrayReference::Container kind);

/// The first few names of arrays, as references have them, for a hint.
std::string listed(std::vector<std::string> names);

/// Where a reference's array goes when it is a target: parse_output, for one that is taken apart already.
ArrayReference as_output(ArrayReference reference);

}  // namespace ejk::io
