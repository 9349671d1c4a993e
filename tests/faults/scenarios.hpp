// The commands whose system calls are made to fail.
#pragma once

#include <string>
#include <vector>

namespace ejk::faults {

struct Scenario {
  std::string name;
  /// Shell: makes in/ and out/, with `ejk` in the PATH and $DATA.
  std::string prepare;
  /// The words after `ejk`.
  std::vector<std::string> words;
  /// Its files are replaced one by one: when it fails, some may be new. Otherwise all or none.
  bool one_by_one = false;
  /// The file on standard input.
  std::string input = "/dev/null";
};

const std::vector<Scenario>& scenarios();

}  // namespace ejk::faults
