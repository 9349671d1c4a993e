// How an error ends the program: its exit status, its hint in terms of the command line, and its text.
#pragma once

#include <string>

#include "ejk/error.hpp"

namespace ejk::app {

// Exit statuses, on which scripts rely.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // done, and a check failed or arrays differ
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInput = 3;
inline constexpr int kExitOutput = 4;
inline constexpr int kExitBudget = 5;
inline constexpr int kExitBug = 70;

int exit_status(Error::Kind kind);

void add_hint(Error& error);

/// "ejk info: a.npy: ...", and its hint on a second line.
std::string error_text(const std::string& program, const Error& error, bool color);

}  // namespace ejk::app
