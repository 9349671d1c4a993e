// ejk replay: a command line and its inputs in one safetensors file, which may come from a stranger.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "commands.hpp"
#include "ejk/io.hpp"

namespace ejk::app {

/// The inputs of a replayed command, and what its caller added.
struct ReplayFile {
  std::string path;
  std::set<std::string> tensors;  // "q", and of a file of several arrays "actual:out"
  std::string added;              // the words of the caller, which may name other files
  std::vector<std::string> warnings = {};

  /// Whether a word names tensors NAME:... of the file.
  bool is_group(const std::string& name) const {
    const auto at = tensors.lower_bound(name + ":");
    return at != tensors.end() && at->starts_with(name + ":");
  }
  /// The reference that a word is; its text, which messages show, is the word. Throws Error{input} for arrays of other
  /// files, unless the caller named them.
  ArrayReference reference(const std::string& word) const;
  /// The same for a path that is no reference.
  void require_added(const std::string& other) const;
};

struct ReplayedCommand {
  const Command* command;              // or its action
  std::vector<std::string> arguments;  // without @
  std::shared_ptr<const ReplayFile> file;
};

/// The command line of a file, with the options of the caller. Throws Error{input} for a file that is none, and for
/// words that write files or refer to others.
ReplayedCommand replayed_command(const std::vector<std::string>& arguments);

}  // namespace ejk::app
