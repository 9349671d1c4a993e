// Golden cases: tests/golden/<function>.h5, one group a case (tests/golden/README.md is the format).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"

namespace golden {

struct Case {
  std::string name;
  nlohmann::json params;
  std::map<std::string, ejk::Array> in;
  std::map<std::string, ejk::Array> out;
  std::map<std::string, std::string> texts;  // results that are text
  bool is_error = false;
};

/// All cases of a family, read with the HDF5 library itself and not with the code under test.
std::vector<Case> load(const std::string& function);

/// The datasets at the top of an HDF5 file, read the same way.
std::map<std::string, ejk::Array> load_file(const std::string& path);

/// The file of a family.
std::string path_of(const std::string& function);

}  // namespace golden
