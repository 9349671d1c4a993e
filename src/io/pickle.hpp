// The pickle of torch.save, interpreted: opcodes build values of a few kinds, and the only functions are
// those that tensors, their storages and dicts are rebuilt by; what others return is an object without
// contents. Nothing is imported or run. Time and memory are linear in the pickle, at most about 20 bytes for
// each of its bytes; values refer to each other by index, so that no depth of them is a depth of calls.
// Source: CPython's Lib/pickletools.py; torch/_utils.py.
// tests: tests/io/test_torch_file.cpp
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::io {

/// An element type of torch.
struct TorchType {
  std::string_view name;     // torch.NAME
  std::string_view storage;  // torch.STORAGE, the class of its storages; none: they are untyped
  std::int64_t bytes = 0;
  std::optional<DType> dtype = std::nullopt;
  bool is_packed = false;  // several elements in each byte
};

/// A tensor as a view of a storage, which is identified by its key.
struct PickledTensor {
  const TorchType* type = nullptr;
  std::string storage;      // its key
  std::int64_t offset = 0;  // of the first element, in elements
  Shape shape, strides;     // strides in elements; as many as there are axes
};

struct NamedTensor {
  std::string path;          // "key.sub[0]"; empty: the tensor is all there is
  std::uint32_t tensor = 0;  // several paths may lead to one
};

/// Objects of one class that were stepped over.
struct PickledObjects {
  std::string name;  // "argparse.Namespace"
  std::int64_t count = 0;
  std::string first;  // the path of the first
};

struct PickleContents {
  std::deque<NamedTensor> named;  // in order
  std::vector<PickledTensor> tensors;
  std::vector<std::uint32_t> by_path;  // of `named`, sorted
  std::vector<PickledObjects> objects;
  std::int64_t tensors_in_objects = 0;

  /// Null where there is none of that path.
  const NamedTensor* find(std::string_view path) const;
};

/// The tensors in dicts (under strings and integers), lists and tuples. Objects of other classes and what
/// functions return is stepped over; nothing is imported or called. Throws Error{input} for damaged pickles
/// and for tensors of kinds that are not read, by name; Error{budget} above `max_memory` bytes, 0: no limit.
PickleContents tensors_in_pickle(std::string_view pickle, std::int64_t max_memory = 0);

}  // namespace ejk::io
