// What `help`, -h, --help and --version print.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "commands.hpp"

namespace ejk::app {

/// All commands under their headings.
std::string program_help();

enum class HelpLength { screen, all };

/// One command: on a screen, or with an example first and every word there is.
std::string command_help(const Command& command, const CLI::App& app, HelpLength length);

/// "ejk 0.1.0", and with `verbose` how it was built and what it runs on.
std::string version_text(bool verbose);

}  // namespace ejk::app
