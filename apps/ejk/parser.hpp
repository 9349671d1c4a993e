// A command's own parser: what it declares and what all commands share.
#pragma once

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "options.hpp"

namespace ejk::app {

struct Parser {
  CLI::App app;
  SharedOptions shared;
  OptionSet set{app, shared};
  Run run;

  explicit Parser(const Command& command) {
    app.set_help_flag();  // asked for before anything else is looked at
    app.option_defaults()->group("Options");
    app.allow_extras();
    run = command.declare(set);
    declare_shared(set, command);
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
};

}  // namespace ejk::app
