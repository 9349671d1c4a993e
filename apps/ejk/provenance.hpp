// The provenance of results: the inputs, for the report, and the settings, for attributes of written files.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ejk::app {

class Provenance {
 public:
  /// An input as given, and its role: ("mask", "m.npy"), ("mask_expression", "causal").
  void input(std::string role, std::string value) { inputs_.emplace_back(std::move(role), std::move(value)); }

  /// A setting that determines the results; never a time, a host, a path or a number of threads. Options are
  /// recorded where they are declared (options.hpp).
  void record(const std::string& name, std::string value) { settings_[name] = std::move(value); }

  void command_line(std::string text) { command_line_ = std::move(text); }
  const std::string& command_line() const { return command_line_; }

  const std::vector<std::pair<std::string, std::string>>& inputs() const { return inputs_; }
  const std::map<std::string, std::string>& settings() const { return settings_; }

 private:
  std::vector<std::pair<std::string, std::string>> inputs_;
  std::map<std::string, std::string> settings_;
  std::string command_line_;
};

}  // namespace ejk::app
