// From the words of the command line to the exit status.
#pragma once

#include <string>
#include <vector>

namespace ejk::app {

/// Does what the words say (the program's name is not among them) and returns the exit status.
int run(const std::vector<std::string>& words);

}  // namespace ejk::app
