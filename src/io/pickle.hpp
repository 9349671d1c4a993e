// The pickle of torch.save, interpreted: opcodes build values of a few kinds, and the only functions are
// those that tensors, their storages and dicts are rebuilt by. Nothing is imported or run. Time and memory
// are linear in the pickle; values refer to each other by index, so that no depth of them is a depth of
// calls.
// Source: CPython's Lib/pickletools.py; torch/_utils.py.
// tests: tests/io/test_torch_file.cpp
#pragma once

#include <memory>
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
  std::string path;  // "key.sub[0]"; empty: the tensor is all there is
  std::shared_ptr<const PickledTensor> tensor;
};

/// The tensors in dicts (under strings and integers), lists and tuples, in order. Throws Error{input} for
/// damaged pickles, and for functions and classes that tensors do not need, by name.
std::vector<NamedTensor> tensors_in_pickle(std::string_view pickle);

}  // namespace ejk::io
