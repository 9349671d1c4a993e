// From the words of the command line to the exit status.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ejk/communicator.hpp"

namespace ejk::app {

/// How a rank ends.
struct RankExit {
  int status = 0;
  std::string said;      // on stderr, by one rank alone
  bool stopped = false;  // another rank has failed; this one has nothing to say
};

/// The last thing that every rank does, however it ends. Rank 0 says what the lowest rank that failed has to say,
/// and gives the status of that, else its own; the others give 0.
using Conclude = std::function<int(const RankExit& mine)>;

/// Does what the words say (the program's name is not among them) and returns the exit status.
int run(const std::vector<std::string>& words);

/// The same by all ranks, who are given the same words. Rank 0 alone prints and gives the status;
/// commands that are not divided it does alone, while the others wait. Messages begin with `program`.
int run(const std::vector<std::string>& words, const std::string& program, Communicator& comm,
        const Conclude& conclude);

}  // namespace ejk::app
