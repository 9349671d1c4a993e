// Search for explanations by values alone: factors, exchanges, shifts, transpositions, unwritten boxes and
// rounding. Used by `compare --explain`, and by `--against --explain` for what no fault model explains.
// Hypotheses (compare/hypothesis.hpp) are fitted to a sample, tested on all elements in chunks with
// differences, and tested again in the part in which they hold; the search continues with the rest.
// tests: tests/compare/test_explain.cpp, tests/compare/test_value_search.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compare/difference_pass.hpp"
#include "compare/hypothesis.hpp"

namespace ejk::verify {

struct ValueExplanation {
  std::string kind, text;     // as in Explanation
  std::int64_t elements = 0;  // explained; each counts for the first explanation that covers it
};

struct ValueExplanations {
  std::vector<ValueExplanation> explanations;
  std::int64_t left = 0;  // unexplained elements
  std::string not_tried;  // hypotheses not tried, and why; empty: all were
};

class ValueSearch {
 public:
  struct Subject {
    const Side& actual;
    const Side& expected;
    const ElementComparer& comparer;
    Agreement agree;
    const Naming& naming;
    TileGrid grid = {};                       // of the first pass; without rows: no tiles
    const std::uint8_t* differing = nullptr;  // as in PassPlan
  };

  ValueSearch(const Subject& subject, core::Progress::Report progress);

  const PassResult& rest() const { return rest_; }
  std::int64_t all() const { return all_; }
  ValueExplanations run();
  /// 1 for each element that no explanation of run() covers, else 0; in C order.
  void mark_left(std::uint8_t* left) const;

 private:
  bool explain_more(std::string& not_tried);
  bool test(const HypothesisPtr& hypothesis);
  std::vector<HypothesisPtr> accepted() const;

  Subject subject_;
  core::Progress::Report progress_;
  PassResult rest_;
  std::int64_t all_ = 0;  // differences
  std::vector<std::pair<HypothesisPtr, std::int64_t>> accepted_;
  int passes_ = 0;
};

}  // namespace ejk::verify
