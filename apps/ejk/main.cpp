// The program `ejk`. Where to look: command_line.cpp is the way from the words to the exit status,
// commands.cpp the table of commands, commands/ one file for each, job.cpp what they share while they run.
#include <string>
#include <vector>

#include "command_line.hpp"

int main(int argc, char** argv) {
  return ejk::app::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
