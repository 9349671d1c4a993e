// The measure of a test over a stream of elements: the largest of element-wise errors, or sums of a metric. Cost: a few
// operations an element; memory: that of the allowance.
// tests: tests/verdict/audit/test_judge.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "compare/float_type.hpp"
#include "core/require.hpp"
#include "ejk/audit.hpp"

namespace ejk::audits {

/// What some rules need of all results.
struct RuleScale {
  double low = 0;       // max |low − e|
  double rounding = 0;  // max |((e + 0.3) − 0.3) − e|
  bool has_softcap = false;
  double of_other = 0;  // max |other − e|, of another implementation
  double most = 0;      // max |e|

  void see_other(double other, double e) {
    if (!std::isfinite(e)) return;
    const double error = std::abs(other - e);
    of_other = std::max(of_other, std::isfinite(error) ? error : std::numeric_limits<double>::infinity());
    most = std::max(most, std::abs(e));
  }
  /// Throws Error{input} about "other" where that was not finite and should be.
  void require_other(const std::string& array) const {
    if (std::isinf(of_other))
      throw core::invalid("its {} is not finite where it should be", array).about("other");
  }
};

class Judge {
 public:
  /// `elements`: of the array, for the allowance.
  Judge(const PassRule& rule, DType dtype, std::int64_t elements);

  /// Elements from `position` on. Of the bound `allowed`, null for 1, and for the elements that differ the rounded ones
  /// expected; else null.
  void see(std::int64_t position, std::int64_t count, const double* actual, const double* expected,
           const double* allowed = nullptr, const double* rounded = nullptr);
  void join(const Judge& other);

  double largest(const RuleScale& scale) const;
  std::int64_t differing() const { return differing_; }
  /// Where the error is largest.
  std::int64_t position() const { return at_; }

 private:
  double measure(double a, double e, double allowed) const;
  void keep(double measure);

  PassRule rule_;
  verify::FloatType type_;
  std::size_t kept_;
  std::vector<double> top_;  // the largest measures, kept_ of them at least once cut
  std::int64_t differing_ = 0, at_ = -1;
  double worst_ = -1, difference_ = 0;
  double dd_ = 0, ee_ = 0, aa_ = 0;
  std::int64_t count_ = 0;
  bool is_broken_ = false;  // not finite on one side
};

}  // namespace ejk::audits
