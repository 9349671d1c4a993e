// End of a row of scores: the sum that divides its values, with a sink, and its lse in the forms of results.
// tests: tests/attention/test_conventions.cpp
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ejk/attention.hpp"

namespace ejk::attn {

/// The largest score of a row, and Σ exp(s − most). A row without a score has out = 0.
template <class Real>
struct RowEnd {
  static constexpr Real kEmpty = -std::numeric_limits<Real>::infinity();  // its largest score, and its lse

  Real most = kEmpty, total = 0;

  bool is_empty() const { return most == kEmpty; }
  Real lse() const { return is_empty() ? kEmpty : most + std::log(total); }
  /// With one more score, −∞: none. NaN stays.
  RowEnd with(Real sink) const {
    if (sink == kEmpty || std::isnan(most)) return *this;
    if (most >= sink) return {most, total + std::exp(sink - most)};
    return {sink, total * std::exp(most - sink) + 1};
  }
};

/// The larger of two largest scores; NaN stays.
template <class Real>
Real larger_of(Real most, Real found) {
  return found > most || std::isnan(found) ? found : most;
}

inline constexpr double kNoSink = RowEnd<double>::kEmpty;

inline double with_sink(double lse, double sink) { return RowEnd<double>{lse, 1}.with(sink).lse(); }

/// Forms of lse in results. Passes have it to base e, with the sink, −∞ without a score.
struct LseForm {
  double unit = 1;  // 1 / ln of its base
  double empty = RowEnd<double>::kEmpty;
  bool has_sink = true;

  LseForm() = default;
  explicit LseForm(const AttentionConventions& c)
      : unit(c.lse_base == LseBase::e ? 1 : 1.44269504088896340736),
        empty(c.lse_empty == LseEmpty::minus_infinity ? RowEnd<double>::kEmpty
              : c.lse_empty == LseEmpty::infinity     ? -RowEnd<double>::kEmpty
              : c.lse_empty == LseEmpty::zero         ? 0
                                                      : kFinite),
        has_sink(c.lse_sink == LseSink::in) {}

  bool is_plain() const { return unit == 1 && empty == RowEnd<double>::kEmpty && has_sink; }
  /// From one that has the sink or not, as the form does.
  double given(double lse) const { return lse == RowEnd<double>::kEmpty ? empty : unit * lse; }
  /// As passes have it. (A row without a key has no weights, whatever its lse: 0 may be that of any row.)
  double natural(double given, double sink) const {
    const double lse = empty != 0 && given == empty ? RowEnd<double>::kEmpty : given / unit;
    return has_sink ? lse : with_sink(lse, sink);
  }

 private:
  static constexpr double kFinite =
      static_cast<float>(-0.7 * static_cast<double>(std::numeric_limits<float>::max()));
};

/// How the rows of all heads end.
struct RowEnds {
  std::vector<double> sinks;  // of each query head, as one more score; empty: none
  LseForm lse;                // of results
  bool mean = false;          // without a score, out is the mean of all values
  bool lse_of_keys = false;   // passes write lse without the sink: of results alone

  double sink(std::int64_t head) const {
    return sinks.empty() ? kNoSink : sinks[static_cast<std::size_t>(head)];
  }
};

}  // namespace ejk::attn
