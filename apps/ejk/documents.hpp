// Shell completion and manual pages, made from the tables of commands and options like the help is.
#pragma once

#include <string>

#include "commands.hpp"

namespace ejk::app {

/// The words for --completion.
const std::vector<std::string>& shells();

/// A script that completes command names, option names and the words that some options take; everything else
/// is completed as file names. `shell` is one of shells().
std::string completion_script(const std::string& shell);

/// A word for a shell: in single quotes, one of those as '\''.
std::string single_quoted(std::string_view text);

/// ejk-COMMAND(1) in the language of man, and ejk(1).
std::string manual_page(const Command& command);
std::string manual_page();
/// ejk-mpi(1).
std::string manual_page_of_mpi();

}  // namespace ejk::app
