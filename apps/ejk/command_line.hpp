// From the words of the command line to the exit status.
#pragma once

#include <string>
#include <vector>

#include "run_team.hpp"

namespace ejk::app {

/// Does what the words say (the program's name is not among them) and returns the exit status.
int run(const std::vector<std::string>& words);

/// The same by all members of a team, who are given the same words. Rank 0 alone speaks and gives the status;
/// commands that are not divided it does alone, while the others wait.
int run(const std::vector<std::string>& words, RunTeam& team);

}  // namespace ejk::app
