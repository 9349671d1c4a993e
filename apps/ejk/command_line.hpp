// Runs the program: from the arguments of a command line to the exit status.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ejk/communicator.hpp"

namespace ejk::app {

struct RankExit {
  int status = 0;
  std::string message;   // for stderr; one rank prints it
  bool stopped = false;  // another rank has failed
};

/// Called by every rank at its end. Rank 0 prints the message of the lowest rank that failed and returns its
/// status, else its own; the others return 0.
using Conclude = std::function<int(const RankExit& own)>;

/// Runs a command line, given without the program's name. Returns the exit status.
int run(const std::vector<std::string>& arguments);

/// The same on all ranks of a communicator. Commands that are not divided run on rank 0, while the others
/// wait. Messages begin with `program`.
int run(const std::vector<std::string>& arguments, const std::string& program, Communicator& comm,
        const Conclude& conclude);

}  // namespace ejk::app
