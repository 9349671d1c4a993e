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
#include "tolerances.hpp"

namespace ejk::app {

struct AgainstOptions {
  std::string actual;
  Explain explain = Explain::no;
  bool brief = false;
  std::vector<std::string> tiles;
  BesideWords other;  // in the place of the bounds

  bool given() const { return !actual.empty(); }
};

/// Declares --against, --explain, --tiles and --brief.
void declare_against(OptionSet& set, AgainstOptions& into);
/// --no-worse-than and --factor beside it.
void declare_no_worse_than(OptionSet& set, AgainstOptions& into);

struct ActualArrays {
  std::vector<BufferedInput> results;  // one for each, without a source where it is not given
  std::vector<std::string> others;     // names of arrays that are no results
  std::vector<BufferedInput> beside;   // of --no-worse-than, of those with a source; else empty
};

/// A result of the command that this run does not compute, and the option that computes it.
struct AbsentResult {
  std::string name, hint;
};

/// Throws Error{usage} for an array that may be one of several results; Error{input}
/// for no result, for another shape, and for one of `absent`, which would not be compared.
ActualArrays open_actual(const AgainstOptions& options, const std::vector<PlannedArray>& results,
                         const std::vector<AbsentResult>& absent, Job& job, Report& report);

/// The arrays of --no-worse-than, one for each of `results`; none without it. Throws Error{input} where one is missing.
std::vector<BufferedInput> open_beside(const BesideWords& words, const std::vector<PlannedArray>& results,
                                       Job& job);
/// What they are, with nothing for those of `results` without a source.
OtherResults read_beside(const BesideWords& words, std::vector<BufferedInput>& beside,
                         const std::vector<BufferedInput>& results = {});

/// f(); errors about "other" are those of --no-worse-than.
template <class F>
auto naming_other(const BesideWords& words, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    if (error.subject() == "other") error.at(printable(words.reference));
    throw;
  }
}

/// Adds the comparison, and a warning if it is out of tolerance. `others`: arrays that were not compared.
/// `hint`: what to try if no fault explains it.
void add_against(Report& report, const AgainstOptions& options, Against against,
                 const std::vector<std::string>& others, const std::string& hint, Job& job);

}  // namespace ejk::app
