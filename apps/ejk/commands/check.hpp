// Shared by the actions of `ejk check`: their options, and the report of findings.
#pragma once

#include <string>
#include <string_view>

#include "ejk/check.hpp"
#include "job.hpp"

namespace ejk::app {

struct CheckFlags {
  bool all = false;
  bool strict = false;

  CheckOptions options(Job& job) const;
};

/// --all and --strict, and in the footer the rules of the kind; `more` are paragraphs before them.
void declare_check(OptionSet& set, std::string_view kind, CheckFlags& flags, const std::string& more = "");

/// Prints the findings. The check failed if there is an error; with --strict also if there is a warning.
Outcome deliver(const Findings& findings, const CheckFlags& flags, Job& job);

}  // namespace ejk::app
