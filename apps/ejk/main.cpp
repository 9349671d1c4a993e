// The program `ejk`. Where to start reading: command_line.cpp leads from the arguments to the exit status,
// commands/ has a file for each command or a few related ones, job.hpp is a run of one.
#include <string>
#include <vector>

#include "command_line.hpp"

int main(int argc, char** argv) {
  return ejk::app::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
