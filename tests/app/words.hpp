// A parser for options that a test declares.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "options.hpp"

namespace ejk::app {

struct Words {
  CLI::App app;
  SharedOptions shared;
  OptionSet set{app, shared};

  void parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(std::move(words));
  }
};

}  // namespace ejk::app
