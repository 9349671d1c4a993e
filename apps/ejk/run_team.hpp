// The team of a run of the program, whose members end together.
#pragma once

#include <cstdint>
#include <string>

#include "ejk/team.hpp"

namespace ejk::app {

/// How a member ends.
struct Outcome {
  int status = 0;
  std::string said;      // on stderr, by one member alone
  bool stopped = false;  // another member has failed; this one has nothing to say
};

class RunTeam : public Team {
 public:
  /// The last call of every member, however it ends. Rank 0 says what the lowest rank that failed has to say, and
  /// gives the status of that, else its own; the others give 0.
  virtual int conclude(const Outcome& mine) = 0;

 protected:
  using Team::Team;
};

}  // namespace ejk::app
