// Error bounds of attention results (formulas: ejk/attention_check.hpp), from the largest unmasked |q|, |k|,
// |v| of a batch entry and key head. Cost: one pass over the inputs.
// tests: tests/verdict/attention/test_check.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "compare/float_type.hpp"
#include "verdict/attention/rows.hpp"

namespace ejk::attn {

class Bounds {
 public:
  /// Of one batch entry and key head: error bounds beside relative_of_out() and the result's rounding.
  struct Part {
    double unit = 1;                                      // 2⁻²⁹ in float64 arithmetic
    double lse_unit = 1;                                  // of lse in results, 1 / ln of its base
    double q = 0, k = 0, v = 0;                           // the largest elements; of v with dropout's factor
    double kept = 1;                                      // that factor
    double longest_k = 0, longest_v = 0;                  // Euclidean, likewise
    double scores = 0;                                    // the largest there may be
    double ds_floor = 0, dv_floor = 0, dsinks_floor = 0;  // of gradients; a sink's from all entries
    double dq_most = 0, dk_most = 0, dv_most = 0, dsinks_most = 0;

    double inexact(double lse, double scale = 1) const {
      return unit * 0x1p-21 * (std::abs(scale) * scores + (std::isfinite(lse) ? std::abs(lse) : 0));
    }
    /// `largest`: a mean of values, where it may be more than the largest of them.
    /// `lse`: to base e, with the sink.
    double of_out(double lse, double scale = 1, double largest = 0) const {
      return (2e-6 * unit + inexact(lse, scale)) * std::max(v, largest);
    }
    double of_lse(double lse, double scale = 1) const {
      const double size = std::isfinite(lse) ? std::abs(lse) : 0;
      return lse_unit * (1e-5 * unit * std::max(1.0, size) + inexact(lse, scale));
    }
    double of_dq() const { return unit * (1e-4 * dq_most + ds_floor * k); }
    /// `weight`: Σ P of the key.
    double of_dk(double weight) const {
      return unit * (1e-4 * dk_most + ds_floor * std::max(1.0, weight) * q);
    }
    double of_dv(double weight) const {
      return unit * (1e-4 * dv_most + kept * dv_floor * std::max(1.0, weight));
    }
    double of_dsinks(double weight) const {
      return unit * (1e-4 * dsinks_most + dsinks_floor * std::max(1.0, weight));
    }
    double of(Result result, double of_row, double scale = 1, double largest = 0) const {
      return result == Result::out      ? of_out(of_row, scale, largest)
             : result == Result::lse    ? of_lse(of_row, scale)
             : result == Result::dq     ? of_dq()
             : result == Result::dk     ? of_dk(of_row)
             : result == Result::dsinks ? of_dsinks(of_row)
                                        : of_dv(of_row);
    }
  };

  /// Of one entry and head of a bias: the largest of those that share them.
  struct BiasPart {
    double unit = 1, floor = 0, most = 0;
    /// `weight`: Σ P of the sum.
    double of_dbias(double weight) const { return unit * (1e-4 * most + floor * std::max(1.0, weight)); }
  };

  /// `arithmetic`: of the results, float32 or float64.
  Bounds(const CheckedArguments& setup, const MaskPlan& plan, DType arithmetic);
  /// For gradients: `lse` is in the order of setup.shape.lse.
  void set(const ArrayView& dout, const std::vector<double>& lse);

  /// For gradients: the largest element of one of them, a view in the layout.
  void set_most(double Part::*most, RowsOf of, const ArrayView& gradient);

  void set_most_of_bias(const ArrayView& dbias);
  void set_most_of_sinks(const ArrayView& dsinks);
  BiasPart& of_bias(std::int64_t entry, std::int64_t head) {
    return bias_parts_[static_cast<std::size_t>(entry * setup_.bias_shape[1] + head)];
  }
  const BiasPart& of_bias(std::int64_t entry, std::int64_t head) const {
    return bias_parts_[static_cast<std::size_t>(entry * setup_.bias_shape[1] + head)];
  }

  const Part& of(const Rows& rows, const Place& place) const { return parts_[rows.part_of(place)]; }
  Part& of(const Rows& rows, const Place& place) { return parts_[rows.part_of(place)]; }
  double relative_of_out() const { return 2e-5 * unit_; }

  /// What two scores of a query may differ by, but for a bias; nothing without any.
  std::optional<double> score_range() const {
    if (setup_.longest_keys() == 0 || setup_.longest_queries() == 0) return std::nullopt;
    double most = 0;
    for (const Part& part : parts_) most = std::max(most, 2 * part.scores);
    return setup_.softcap > 0 ? std::min(most, 2 * setup_.softcap) : most;
  }

  /// Rounding error of a result's type: half of the spacing above 1, relative, and half of the smallest
  /// number, where subnormals may be lost. With another type first, of both.
  struct Rounding {
    double relative = 0, least = 0;
  };
  static Rounding rounding(DType dtype, std::optional<DType> first = std::nullopt) {
    const double least = dtype == DType::float16 ? 0x1p-25 : dtype == DType::float64 ? 0x1p-1074 : 0x1p-127;
    const Rounding before = first && *first != dtype ? rounding(*first) : Rounding{};
    return {before.relative + verify::float_type(dtype).epsilon() / 2, before.least + least};
  }

 private:
  const CheckedArguments& setup_;
  const MaskPlan& plan_;
  double unit_;
  std::vector<Part> parts_;
  std::vector<BiasPart> bias_parts_;
};

}  // namespace ejk::attn
