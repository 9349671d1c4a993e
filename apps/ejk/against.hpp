// --against: another program's results for the same inputs, found by the names of the arrays.
#pragma once

#include <memory>
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
  std::string mine;
  Explain explain = Explain::no;
  Detail detail = Detail::all;
  std::vector<std::string> tiles;

  bool given() const { return !mine.empty(); }
};

/// Declares --against, --explain and --brief. `what` is said of the reference.
void declare_against(OptionSet& set, AgainstOptions& into, const std::string& what);

/// The arrays that the reference names, one for each result, without a source where there is none. One array
/// of another name is the only result of its shape. Throws Error{usage} for --explain alone, and for one
/// array that may be several of the results; Error{input} where there is none of the results, or one of
/// another shape.
std::vector<BufferedInput> open_actual(const AgainstOptions& options,
                                       const std::vector<PlannedArray>& results, Job& job, Report& report);

/// Adds what was found, and a warning where it is not within the bound. With --brief it is all that the report says,
/// and is printed on stderr where stdout gets JSON. `hint`: what to do where no mistake accounts for it.
void add_against(Report& report, const AgainstOptions& options, const Against& against,
                 const std::string& hint, Job& job);

}  // namespace ejk::app
