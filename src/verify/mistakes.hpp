// What makes rows that are beyond their bound agree: mistakes are tried one after the other on sampled rows.
//
// A mistake is a function that gives what a row would be. It is right where the row as it was given agrees with
// that, within the bound of that: by chance a row of many elements never does, so noise gets no explanation.
// What agrees on the sample has to agree on a larger one before it is said. A mistake may hold everywhere, or
// in some heads, entries or groups alone; then others are looked for in the rest.
// tests: tests/verify/test_mistakes.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verify/against.hpp"

namespace ejk::verify {

struct Mistake {
  std::string kind, text;
  /// What these columns of a row would be, and what they may then differ by; false: of this row it says
  /// nothing. Called by several threads.
  std::function<bool(std::int64_t row, std::span<const std::int64_t> columns, double* values,
                     double* allowed)>
      values;
  /// The text says by itself where it holds.
  bool says_where = false;
};

struct Found {
  Explanation explanation;             // share: of the array's elements beyond the bound
  std::string where;                   // " in head 3", where it does not hold everywhere
  std::optional<std::size_t> mistake;  // none: elements that were never written
};

/// What partners() found, in words: "groups 3 and 7 hold the weights of each other"; empty where it is nothing.
std::string text_of_partners(const std::vector<std::int64_t>& from, const std::string& one,
                             const std::string& many, const std::string& what);
/// Whether the parts have exchanged what they hold among themselves.
bool is_exchange(const std::vector<std::int64_t>& from);

class MistakeSearch {
 public:
  /// `row_nanoseconds`: what a mistake takes for a row, about. All outlive this.
  MistakeSearch(const ResultRows& result, const RowCounts& counts, double row_nanoseconds);

  /// Rows that this makes agree are left out from now on; gives their share of the elements beyond the bound.
  double leave_out(const Mistake& mistake);
  /// The mistakes that hold, until nothing is left to be explained; of those that hold equally well the
  /// first.
  std::vector<Found> run(const std::vector<Mistake>& mistakes);
  /// The share of the elements beyond the bound that nothing accounts for yet.
  double left() const;
  /// What is left is enough to fit a number to it: several elements of several rows. Any of one element has a factor.
  bool is_enough_to_fit() const;
  /// One constant factor: that of the element in the middle. Nothing where there is none.
  std::optional<Mistake> factor() const;
  /// For each index of an axis of parts: the candidate whose mistake makes the first rows of that part agree,
  /// −1 where none does.
  std::vector<std::int64_t> partners(std::size_t axis, std::int64_t candidates,
                                     const std::function<Mistake(std::int64_t candidate)>& mistake) const;

 private:
  struct Sampled {
    std::int64_t row = 0;
    std::vector<std::int64_t> place, columns;
    std::vector<double> given, expected;
    std::vector<bool> beyond;  // of the columns
    double weight = 0;         // elements that it stands for
    bool left = true;
  };
  using Sample = std::vector<Sampled>;
  struct Scope {
    std::size_t axis = 0;
    std::vector<bool> parts;  // empty: everywhere
    bool holds(const Sampled& s) const {
      return parts.empty() || (s.place[axis] >= 0 && parts[static_cast<std::size_t>(s.place[axis])]);
    }
  };
  enum class Rows { beyond, within };
  enum class Answer { silent, no, yes };
  enum class Zeros { count, skip };

  Sample choose(Rows rows, std::int64_t wanted, std::int64_t seed) const;
  Answer answer(const Mistake& mistake, const Sampled& sampled, Zeros zeros) const;
  std::vector<char> agreement(const Mistake& mistake, const Sample& sample, const Scope& scope,
                              std::size_t first) const;
  struct Contradicted {
    double same_parts = 0, other_parts = 0;
  };
  Contradicted contradicted(const Mistake& mistake, const Scope& scope) const;
  bool holds(const Mistake& mistake, const Scope& scope);
  std::optional<Found> unwritten();
  std::optional<Scope> scope_of(const std::vector<char>& agree, double& explained) const;
  std::vector<std::vector<bool>> flags_of(const std::vector<std::uint32_t>& counts) const;
  std::string where(const std::vector<std::vector<bool>>& flags, bool positions) const;
  double weight_of(const Sample& sample, const std::vector<char>& agree, const Scope& scope) const;

  const ResultRows& result_;
  const RowCounts& counts_;
  double row_nanoseconds_;
  Sample first_, second_;
  Sample within_;                       // rows within their bound: a mistake leaves them as they are
  std::vector<std::vector<bool>> bad_;  // by axis: indices with rows beyond their bound
  Zeros zeros_ = Zeros::count;
  double written_ = 1;  // share of the elements beyond their bound that are not taken for unwritten
};

}  // namespace ejk::verify
