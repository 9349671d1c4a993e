// What `ejk help TOPIC` says, and what the arrays are that commands write.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::app {

/// "arrays", "masks", "layouts", "json", "mpi", "options".
const std::vector<std::string>& topics();

/// One of them, in lines of at most 80 columns.
std::string topic_help(std::string_view topic);

struct WrittenArray {
  std::string_view name;
  std::string_view form;  // "(tokens,) int32"
  std::string_view text;  // what its elements mean
};

/// The arrays of one command, and a few lines of Python that use them.
struct WrittenArrays {
  std::string_view command;
  std::vector<WrittenArray> arrays;
  std::string_view use;
};

std::span<const WrittenArrays> written_arrays();

/// Those of a command; nullptr where it writes none.
const WrittenArrays* written_by(std::string_view command);

/// The exit statuses of all commands.
extern const char* const kExitStatus;

}  // namespace ejk::app
