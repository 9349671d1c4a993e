// The folder of a quantised model: files of tensors as the input has them, their index, the config, and other files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ejk/io.hpp"
#include "ejk/quantize.hpp"
#include "job.hpp"

namespace ejk::app {

/// Whether -o names a folder: it ends in '/', or a folder is there.
bool is_folder_target(const std::string& target);

class ModelFolder {
 public:
  /// `x`: a model's folder or index, whose files are copied, or another reference. Throws Error{output} where
  /// `target` cannot be a new folder.
  ModelFolder(const std::string& x, std::string target, Job& job);

  /// A tensor of the file that has the input's tensor `input`.
  void add(const std::string& input, NamedArray array);

  /// The config, which names the scheme and the layers that are not quantised; then the files beside. Warnings: files
  /// that are not copied. Returns the bytes in memory.
  std::int64_t add_others(const QuantizeSettings& how, TensorNames names,
                          const std::vector<std::string>& ignored, std::vector<std::string>& warnings);

  void write(Sync sync) const;

 private:
  void add_text(const std::string& name, std::string text);

  std::string x_folder_, target_;  // "": x is no model
  Job& job_;
  std::map<std::string, std::string> file_of_;  // of each tensor
  std::vector<ModelFile> files_;
  std::vector<FileContent> others_;
};

}  // namespace ejk::app
