// Errors for options that a command does not have: an option of another program or command, or a misspelling.
#pragma once

#include <string>
#include <vector>

#include "commands.hpp"
#include "ejk/error.hpp"
#include "options.hpp"

namespace ejk::app {

/// The error for an option that `command`, whose options are `set`, does not have. `arguments` are all that
/// were given.
Error unknown_option(const Command& command, const OptionSet& set, const std::string& option,
                     const std::vector<std::string>& arguments);

}  // namespace ejk::app
