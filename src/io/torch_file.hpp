// Files of torch.save: a zip archive of a pickle and the bytes of each storage. The pickle is interpreted,
// never run: tensors are found in dicts, lists and tuples, objects of other classes are stepped over and
// counted. Opening costs the pickle, about 20 bytes of memory for each of its bytes; storages are mapped.
// Source: torch/serialization.py, torch/_utils.py and CPython's Lib/pickletools.py.
// tests: tests/io/test_torch_file.cpp
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/container.hpp"

namespace ejk::io {

/// How files of torch.save before PyTorch 1.6 begin.
inline constexpr std::string_view kOldTorchMagic = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";
inline constexpr std::string_view kToTorch =
    "torch.save(torch.load(OLD), NEW) of PyTorch 1.6 or later writes a zip archive";

/// An archive whose first member is a pickle.
bool begins_as_torch(std::string_view begin, std::int64_t size);

std::shared_ptr<const ShardContainer> open_torch_shard(const std::string& path, const OpenOptions& options);
std::shared_ptr<const OpenContainer> open_torch(const std::string& path, const OpenOptions& options);

}  // namespace ejk::io
