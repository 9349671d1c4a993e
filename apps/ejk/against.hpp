// --against: another program's results for the same inputs, found by the names of the arrays.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ejk/against.hpp"
#include "ejk/mask_info.hpp"
#include "job.hpp"
#include "options.hpp"
#include "sources.hpp"

namespace ejk::app {

struct AgainstOptions {
  std::string actual;
  Explain explain = Explain::no;
  Detail detail = Detail::all;
  std::vector<std::string> tiles;

  bool given() const { return !actual.empty(); }
};

/// Declares --against, --explain, --tiles and --brief. `what` describes the reference.
void declare_against(OptionSet& set, AgainstOptions& into, const std::string& what);

/// One entry for each result, without a source where it is not given. Throws Error{usage} for --explain alone
/// and for an array that may be one of several results; Error{input} for no result and for another shape.
std::vector<BufferedInput> open_actual(const AgainstOptions& options,
                                       const std::vector<PlannedArray>& results, Job& job, Report& report);

/// Adds the comparison, and a warning if it is out of tolerance. `hint`: what to try if no fault explains it.
void add_against(Report& report, const AgainstOptions& options, const Against& against,
                 const std::string& hint, Job& job);

}  // namespace ejk::app
