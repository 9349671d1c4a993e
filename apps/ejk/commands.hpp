// Commands are values: each file in commands/ defines one or a few, and commands.cpp lists them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::app {

class Job;
class OptionSet;

/// The result of a command that ran. `failed` (a check failed, arrays differ) is an exit status of its own.
enum class Outcome { passed, failed };

using Run = std::function<Outcome(Job&)>;

/// An array that a command writes.
struct WrittenArray {
  std::string_view name;
  std::string_view form;  // shape and type: "(tokens,) int32"
  std::string_view text;  // the meaning of its elements
};

/// A command, or one of the actions of a command that has several ("generate masks").
struct Command {
  std::string_view name;
  std::string_view group = {};  // its heading in `ejk help`; empty for an action
  std::string_view summary;     // one line
  std::string_view example;
  /// The arrays that it writes, by their names in a file of several.
  std::vector<WrittenArray> outputs = {};
  /// A few lines of Python that use them.
  std::string_view use = {};
  /// The keys of its JSON report (schema.hpp); those of an action are its command's.
  std::string keys = {};
  /// Where they depend on --layout: the names of those of a layout, one of its values.
  std::vector<std::string> (*arrays_of)(std::string_view layout) = nullptr;
  Run (*declare)(OptionSet& set) = nullptr;
  /// The actions, named "command action"; declare is null then.
  std::vector<const Command*> actions = {};
  /// The ranks of an MPI job share the work; else rank 0 runs the command.
  bool is_divided = false;

  /// "generate" of "generate masks": the name in reports and files.
  std::string word() const { return std::string(name.substr(0, name.find(' '))); }
  /// "masks" of "generate masks".
  std::string_view action() const { return name.substr(name.find(' ') + 1); }
  std::vector<WrittenArray> all_outputs() const;
  std::vector<std::string> output_names() const;
};

std::span<const Command* const> commands();

/// nullptr if there is none of this name.
const Command* find_command(std::string_view name);
const Command* find_action(const Command& command, std::string_view action);

}  // namespace ejk::app
