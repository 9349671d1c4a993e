// Models in several files of safetensors or torch.save: by an index, or all such files of a folder. Names are
// those of the index, which is read whole; a file is opened when one of its tensors is.
// Definition of the index: https://huggingface.co/docs/transformers/big_models
// tests: tests/io/test_model.cpp
#pragma once

#include <string>
#include <string_view>

#include "io/container.hpp"

namespace ejk::io {

inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json",
                                  kTorchIndexSuffix = ".bin.index.json";

/// A folder that has an index or model_files_in_folder, and no .npy files. Throws Error{input} where it
/// cannot be read.
bool is_model_folder(const std::string& path);

/// An index, or such a folder.
std::shared_ptr<const OpenContainer> open_model(const std::string& path, const OpenOptions& options);

}  // namespace ejk::io
