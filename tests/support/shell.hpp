// Command lines of tests.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace ejk::test {

struct Printed {
  int status = -1;  // the exit status; -1 after a signal
  std::string text;
};

/// What a command of the shell prints to standard output.
inline Printed shell(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Printed printed;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) printed.text += static_cast<char>(c);
  const int status = pclose(pipe);
  printed.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return printed;
}

/// The exit status of the program with these words, whose output nobody reads.
inline int status_of_program(const std::string& words) {
  return shell("'" EJK_PROGRAM "' " + words + " >/dev/null 2>&1").status;
}

}  // namespace ejk::test
