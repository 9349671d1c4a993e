// Command lines parsed by the options that a test declares.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "options.hpp"

namespace ejk::app {

struct Words {
  OptionSet set;
  SharedOptions& shared = set.shared();

  void parse(std::vector<std::string> words) {
    if (const Parsed parsed = set.parse(std::move(words)); parsed.error) throw Error(*parsed.error);
  }
};

}  // namespace ejk::app
