// Why results differ: a hypothesis that was tried on the data, and how much of the difference it accounts for.
//
// Two subjects share it: the difference between two arrays by themselves (ejk/explain.hpp), and that of a result
// from the computation it is said to be the result of.
#pragma once

#include <string>
#include <vector>

#include "ejk/report.hpp"

namespace ejk {

struct Explanation {
  /// A stable word: "factor", "exchanged", "unwritten", "scale".
  std::string kind;
  /// A sentence without a full stop: "head 3 holds what belongs to head 7".
  std::string text;
  /// Of the elements that differ, the share that agrees once this is taken into account: 0 to 1.
  double share_explained = 0;
};

/// Table "explanations": kind, share_explained, text; one row each, in the order given. Empty where there are none.
Table table_of(const std::vector<Explanation>& explanations);

}  // namespace ejk
