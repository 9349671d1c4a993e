// A hypothesis about why two arrays differ: for which elements it speaks, and whether one of them is as it says.
// tests: tests/verify/test_explain.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ejk/explain.hpp"
#include "verify/sides.hpp"

namespace ejk::verify {

/// An element that differs.
struct Sample {
  Shape at;
  double actual = 0, expected = 0;
};

/// Indices of each axis, whose product is a part of an array; an axis without ranges is whole.
struct Scope {
  std::vector<std::vector<IndexRange>> axes;

  explicit Scope(std::size_t rank) : axes(rank) {}
  bool contains(std::size_t axis, std::int64_t index) const;
  /// Whether it has an index of [begin, end).
  bool meets(std::size_t axis, std::int64_t begin, std::int64_t end) const;
  /// Whether the line of the last axis that begins at `at` has such elements; marks them.
  bool mark(const Shape& at, std::int64_t n, std::uint8_t* in_scope) const;
};

/// What one thread needs while it judges.
struct Scratch {
  std::vector<std::byte> raw;
  std::vector<double> values;
  std::vector<std::int64_t> places;
};

/// A line of both sides, and what is to be said of it.
struct ComparedLine {
  const Shape& at;  // its first element
  std::int64_t n;
  const double *actual, *expected;
  std::uint8_t* in_scope;  // 0 before
  std::uint8_t* holds;     // undefined outside of the scope
};

class Hypothesis {
 public:
  Hypothesis(std::string kind, std::size_t rank) : scope(rank), kind_(std::move(kind)) {}
  virtual ~Hypothesis() = default;
  Hypothesis(const Hypothesis&) = delete;
  Hypothesis& operator=(const Hypothesis&) = delete;

  /// False where nothing of the line is in scope.
  virtual bool evaluate(const ComparedLine& line, Scratch& scratch) const = 0;
  /// What it says of its scope as it is now, without naming that.
  virtual std::string text() const = 0;
  /// The axes of the scope that text() names.
  virtual std::vector<std::size_t> named_axes() const { return {}; }

  const std::string& kind() const { return kind_; }

  Scope scope;

 private:
  std::string kind_;
};

using HypothesisPtr = std::shared_ptr<Hypothesis>;

/// What axes, and parts of them, are called.
struct Naming {
  struct Run {  // groups of rows, sequences of tokens
    std::size_t axis = 0;
    std::string name;
    std::vector<std::int64_t> offsets;
  };

  Shape shape;
  std::vector<std::string> axes;
  std::vector<Run> runs;

  /// "head 3", "row 128 to 255", "group 3", "the last 5 of group 3".
  std::string part(std::size_t axis, const std::vector<IndexRange>& ranges) const;
  /// The same without the axis: "128 to 255".
  static std::string indices(const std::vector<IndexRange>& ranges);
  /// The parts of all axes that are not whole: "head 3, row 0 to 127"; empty: everything. Without those of `named`.
  std::string part(const Scope& scope, const std::vector<std::size_t>& named = {}) const;
};

/// What the finders know.
struct Evidence {
  const Side& actual;
  const Side& expected;
  Agreement agree;
  const Naming& naming;
  /// Of what is not explained yet, in C order.
  const std::vector<Sample>& samples;
};

/// Looks for the most promising hypothesis of a kind; null: none. The order is that of ejk/explain.hpp.
struct Finder {
  std::function<HypothesisPtr(const Evidence&)> find;
  /// It reads elements here and there: both sides must be at hand.
  bool needs_elements = false;
  /// Why it is not tried with such arrays, in words; empty: it is.
  std::string not_tried = {};
};
std::vector<Finder> finders(const Naming& naming);

/// Bytes that they take, at most.
std::int64_t finder_bytes(const Shape& shape);

/// The ranges that an increasing list of indices makes.
std::vector<IndexRange> ranges_of(const std::vector<std::int64_t>& indices);
/// How many indices they have.
std::int64_t indices_in(const std::vector<IndexRange>& ranges);

}  // namespace ejk::verify
