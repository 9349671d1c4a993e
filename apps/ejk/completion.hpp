// Completion in shells: `ejk __complete ARGUMENT...` prints the candidates, and scripts of a few lines call it.
#pragma once

#include <string>
#include <vector>

namespace ejk::app {

/// The candidates for the last of `arguments`, which are those typed after the program's name: a line each, the
/// candidate, a tab and its description. None where a file name is expected, or any text.
std::string completion_candidates(const std::vector<std::string>& arguments);

/// The values of --completion.
const std::vector<std::string>& shells();

/// The script for one of shells().
std::string completion_script(const std::string& shell);

}  // namespace ejk::app
