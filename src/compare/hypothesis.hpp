// Hypotheses about the difference between two arrays: a model that predicts the elements in its scope.
// tests: tests/compare/test_explain.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compare/sides.hpp"
#include "ejk/program/explain.hpp"

namespace ejk::verify {

struct Sample {
  Shape at;
  double actual = 0, expected = 0;
};

/// A part of an array: a product of index ranges of each axis. An axis without ranges is whole.
struct Scope {
  std::vector<std::vector<IndexRange>> axes;

  explicit Scope(std::size_t rank) : axes(rank) {}
  bool contains(std::size_t axis, std::int64_t index) const;
  bool meets(std::size_t axis, std::int64_t begin, std::int64_t end) const;
  /// Marks the elements in scope of the line of the last axis at `at`; whether there are any.
  bool mark(const Shape& at, std::int64_t n, std::uint8_t* in_scope) const;
};

struct Scratch {
  std::vector<std::byte> raw;
  std::vector<double> values;
  std::vector<std::int64_t> sources;
};

/// A line of both arrays, and the flags of its elements.
struct ComparedLine {
  const Shape& at;  // its first element
  std::int64_t n;
  const double *actual, *expected;
  std::uint8_t* in_scope;  // 0 before
  std::uint8_t* holds;     // the prediction is right; undefined out of scope
};

struct Hypothesis {
  std::string kind;  // empty: that of its HypothesisKind
  Scope scope;
  /// Sets the flags of a line; false where nothing of it is in scope.
  std::function<bool(const Scope& scope, const ComparedLine& line, Scratch& scratch)> evaluate;
  /// The explanation, without the scope's name.
  std::function<std::string(const Scope& scope)> text;
  std::vector<std::size_t> named_axes = {};  // by text
};

using HypothesisPtr = std::shared_ptr<Hypothesis>;

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
  static std::string indices(const std::vector<IndexRange>& ranges);
  /// The axes that are not whole: "head 3, row 0 to 127"; empty: everything. Without those in `named`.
  std::string part(const Scope& scope, const std::vector<std::size_t>& named = {}) const;
};

struct Evidence {
  const Side& actual;
  const Side& expected;
  Agreement agree;
  const Naming& naming;
  /// Of unexplained differences, in C order.
  const std::vector<Sample>& samples;
};

/// A kind of hypothesis, fitted to samples; null where none fits.
struct HypothesisKind {
  const char* name;                        // as in Explanation, unless the hypothesis has a kind
  HypothesisPtr (*find)(const Evidence&);  // of the whole array
  HypothesisPtr (*find_along)(const Evidence&, std::size_t axis) = nullptr;
  bool reads_elements = false;  // beyond the samples: both arrays are in memory
  std::int64_t longest_axis = std::numeric_limits<std::int64_t>::max();
};
/// All kinds, in the order in which they are tried.
std::span<const HypothesisKind> hypothesis_kinds();

/// Of quantised arrays.
HypothesisPtr find_fnuz(const Evidence& evidence);
HypothesisPtr find_e8m0_as_int8(const Evidence& evidence);
HypothesisPtr find_nibbles(const Evidence& evidence);
HypothesisPtr find_interleaved(const Evidence& evidence, std::size_t axis);
HypothesisPtr find_misused_scales(const Evidence& evidence);
HypothesisPtr find_subnormal_scales(const Evidence& evidence);
HypothesisPtr find_cut_off(const Evidence& evidence);
HypothesisPtr find_scale_step(const Evidence& evidence);
HypothesisPtr find_block_scales(const Evidence& evidence);

// --- parts of them

/// A hypothesis in scope everywhere.
HypothesisPtr hypothesis_of(const Evidence& evidence, decltype(Hypothesis::evaluate) evaluate,
                            std::string text);

/// Elements are `factor` times the expected ones.
HypothesisPtr times_factor(const Evidence& evidence, double factor, std::string text);

/// Sets `holds` of a line: the actual elements agree with the predicted ones, and these are nearer than the
/// expected ones.
void mark_predicted(const ComparedLine& line, const Agreement& agree, const double* predicted);

/// The tolerance of a prediction of `factor` times the expected elements: not less than theirs, as blocks with
/// a tiny scale are rounded to subnormal numbers.
Agreement scaled_by(const Agreement& agree, double factor);

/// Index i of an axis holds the elements of index from(i), which nearly all samples confirm; null if not.
HypothesisPtr moved_by(const Evidence& evidence, std::size_t axis,
                       std::function<std::int64_t(std::int64_t)> from, std::string text);

/// "query i", "index i of axis 0".
std::string any_index(const std::string& axis);

/// A factor between elements and the expected ones, and its standard deviation.
struct FittedFactor {
  double value = 0, deviation = 0;
};

/// By least squares, weighted by the tolerances; none of too few elements.
std::optional<FittedFactor> fit_factor(std::span<const double> actual, std::span<const double> expected,
                                       std::span<const double> allowed);

std::int64_t fitting_bytes(const Shape& shape);

std::vector<IndexRange> ranges_of(const std::vector<std::int64_t>& indices);
std::int64_t indices_in(const std::vector<IndexRange>& ranges);

}  // namespace ejk::verify
