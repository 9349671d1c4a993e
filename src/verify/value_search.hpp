// What accounts for the differences of two arrays by their values alone: the one search for factors,
// exchanges, shifts, transpositions, boxes never written and rounding, of `compare --explain` and of what the
// models of a computation leave unexplained in `--against --explain`.
//
// Again and again the finders of verify/hypothesis.hpp look at a sample of what is left. What they propose is
// tested on all elements by a pass over the pieces that hold differences; what holds is set aside. A proposal
// that holds in a part of its scope is tested once more for that part. Cost: a pass, and one or two for each
// proposal.
// tests: tests/verify/test_explain.cpp, tests/verify/test_value_search.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "verify/against.hpp"
#include "verify/difference_pass.hpp"
#include "verify/hypothesis.hpp"

namespace ejk::verify {

struct ValueExplanation {
  std::string kind, text;     // as in ejk/explanation.hpp
  std::int64_t elements = 0;  // that it accounts for; each belongs to the first explanation that covers it
};

struct ValueExplanations {
  std::vector<ValueExplanation> explanations;
  std::int64_t left = 0;  // elements that none accounts for
  std::string not_tried;  // what was not tried, and why; empty: everything was
};

class ValueSearch {
 public:
  using Progress = std::function<void(std::int64_t done)>;
  /// All of it outlives the search.
  struct Subject {
    const Side& actual;
    const Side& expected;
    const ElementComparer& judge;
    Agreement agree;
    const Naming& naming;
    TileGrid grid = {};                       // of the first pass; without rows: no tiles
    const std::uint8_t* differing = nullptr;  // as in PassPlan
  };

  /// Makes the first pass.
  ValueSearch(const Subject& subject, Progress progress);

  /// What nothing accounts for yet: before run() all differences.
  const PassResult& rest() const { return rest_; }
  std::int64_t all() const { return all_; }
  ValueExplanations run();
  /// 1 for each element that no explanation of run() covers, else 0; in C order.
  void mark_left(std::uint8_t* left) const;

 private:
  bool test(const HypothesisPtr& hypothesis);
  std::vector<HypothesisPtr> accepted() const;

  Subject subject_;
  Progress progress_;
  PassResult rest_;
  std::int64_t all_ = 0;  // differences
  std::vector<std::pair<HypothesisPtr, std::int64_t>> accepted_;
  int passes_ = 0;
};

/// Explanations for elements of a result: those with a 1 in `left`, (rows, columns), which becomes 0 where an explanation
/// covers it. What is predicted agrees within the largest bound of its row, or where rows are mixed within
/// that of 95 % of them. Memory: 18 bytes an element. Nothing where rows are no array of their axes.
ValueExplanations explain_rows(const ResultRows& result, std::vector<std::uint8_t>& left);

/// Elements of a result of which that is done, at most, and the bytes that it takes.
inline constexpr std::int64_t kMostValues = std::int64_t{1} << 26;
inline std::int64_t bytes_of_values(std::int64_t elements) {
  return elements <= kMostValues ? 19 * elements : 0;
}

}  // namespace ejk::verify
