// Explanation of a difference, for two arrays (ejk/explain.hpp) and for a result beside its computation
// (ejk/against.hpp).
#pragma once

#include <string>
#include <vector>

#include "ejk/report.hpp"

namespace ejk {

struct Explanation {
  /// A stable word: "factor", "exchanged", "unwritten", "scale".
  std::string kind;
  /// A clause without a full stop: "head 3 holds what belongs to head 7".
  std::string text;
  double share_explained = 0;
};

/// Table "explanations": kind, share_explained, text; in the given order.
Table table_of(const std::vector<Explanation>& explanations);

}  // namespace ejk
