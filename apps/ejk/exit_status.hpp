// Exit statuses, which scripts rely on.
#pragma once

#include "ejk/error.hpp"

namespace ejk::app {

inline constexpr int kExitDone = 0;
inline constexpr int kExitNo = 1;  // done, and the answer is "no"
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInput = 3;
inline constexpr int kExitOutput = 4;
inline constexpr int kExitBudget = 5;
inline constexpr int kExitBug = 70;

constexpr int exit_status(Error::Kind kind) {
  switch (kind) {
    case Error::Kind::usage:
      return kExitUsage;
    case Error::Kind::input:
      return kExitInput;
    case Error::Kind::output:
      return kExitOutput;
    case Error::Kind::budget:
      return kExitBudget;
    case Error::Kind::internal:
      break;
  }
  return kExitBug;
}

}  // namespace ejk::app
