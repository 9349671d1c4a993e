// The rows of results, those of queries or of keys, in one order; where their elements stand in an array; and what
// these may differ from their reference by (ejk/attention_check.hpp says why).
// tests: tests/attention/test_check.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"
#include "verify/float_type.hpp"

namespace ejk::attn {

struct Place {
  std::int64_t entry = 0, head = 0, row = 0;  // row: within the entry
  bool operator<(const Place& o) const {
    return std::tie(entry, head, row) < std::tie(o.entry, o.head, o.row);
  }
};

/// Rows by entry, head and position.
class Rows {
 public:
  enum class Of { queries, keys };

  Rows(const CheckedArguments& setup, Of of) : setup_(setup), of_(of) {
    for (std::int64_t e = 0; e < setup.shape.entries; ++e)
      first_.push_back(first_.back() + heads() * length(e));
  }
  std::int64_t count() const { return first_.back(); }
  std::int64_t heads() const { return of_ == Of::queries ? setup_.shape.heads : setup_.shape.kv_heads; }
  std::int64_t length(std::int64_t e) const {
    return of_ == Of::queries ? setup_.q_length(e) : setup_.kv_length(e);
  }
  const std::vector<std::int64_t>& offsets() const {
    return of_ == Of::queries ? setup_.q_offsets : setup_.kv_offsets;
  }

  Place at(std::int64_t n) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), n);
    const std::int64_t entry = after - first_.begin() - 1, in_entry = n - after[-1], rows = length(entry);
    return {entry, in_entry / rows, in_entry % rows};
  }
  std::int64_t row_of(const Place& place) const {
    return first_[static_cast<std::size_t>(place.entry)] + place.head * length(place.entry) + place.row;
  }
  /// Of a place, in the array: its position counts from the first token of all sequences.
  std::int64_t position(const Place& place) const {
    return place.row + (setup_.packed() ? offsets()[static_cast<std::size_t>(place.entry)] : 0);
  }

  /// The index of an element, or of lse's, in an array of the layout.
  Shape index_of(const Place& place, std::int64_t element) const {
    const std::int64_t p = position(place);
    if (setup_.packed()) return {p, place.head, element};
    if (setup_.layout == AttentionLayout::bshd) return {place.entry, p, place.head, element};
    return {place.entry, place.head, p, element};
  }
  Shape index_in_lse(const Place& place) const {
    const std::int64_t p = position(place);
    return setup_.packed() ? Shape{place.head, p} : Shape{place.entry, place.head, p};
  }

 private:
  const CheckedArguments& setup_;
  Of of_;
  std::vector<std::int64_t> first_{0};
};

/// One element of lse.
inline double load_lse(const ArrayView& lse, const Shape& index) {
  const std::byte* from = lse.data;
  for (std::size_t d = 0; d < index.size(); ++d) from += index[d] * lse.strides[d];
  double value = 0;
  load(lse.dtype, from, 0, 1, &value);
  return value;
}

/// Of the finite elements of an array of (B, heads, positions, elements): the largest, and the longest row.
struct Extent {
  double most = 0, longest = 0;
};
Extent extent_of(const ArrayView& array);

inline double most_finite(const std::vector<double>& values) {
  double all = 0;
  for (const double value : values)
    if (std::isfinite(value)) all = std::max(all, std::abs(value));
  return all;
}

/// What results may differ by, with a reference R: so much of |R| and so much more.
class Bounds {
 public:
  /// `arithmetic`: float32 or float64, in which they were made.
  Bounds(const CheckedArguments& setup, DType arithmetic);
  /// For gradients.
  void set(const ArrayView& dout, double lse_most);

  /// Half of the spacing above 1 of the result's type.
  static double half_spacing(DType dtype) { return verify::float_type(dtype).epsilon() / 2; }
  /// Half of the smallest result; bfloat16 and float32 may lose subnormal numbers.
  static double half_of_least(DType dtype) {
    return dtype == DType::float16 ? 0x1p-25 : dtype == DType::float64 ? 0x1p-1074 : 0x1p-127;
  }

  double relative_of_out() const { return 2e-5 * unit_; }
  double of_out(double lse, double scale = 1) const { return (2e-6 * unit_ + inexact(lse, scale)) * v_.most; }
  double of_lse(double lse, double scale = 1) const {
    return 1e-5 * unit_ * std::max(1.0, finite(lse)) + inexact(lse, scale);
  }
  /// With the largest elements of all rows, and the key's Σ P.
  double of_dq(double dq_most) const { return unit_ * (1e-4 * dq_most + ds_floor_ * k_.most); }
  double of_dk(double dk_most, double weight) const {
    return unit_ * (1e-4 * dk_most + ds_floor_ * std::max(1.0, weight) * q_.most);
  }
  double of_dv(double dv_most, double weight) const {
    return unit_ * (1e-4 * dv_most + dv_floor_ * std::max(1.0, weight));
  }

 private:
  static double finite(double lse) { return std::isfinite(lse) ? std::abs(lse) : 0; }
  double inexact(double lse, double scale) const {
    return unit_ * 0x1p-21 * (std::abs(scale) * scores_ + finite(lse));
  }

  double unit_;
  Extent q_, k_, v_;
  double scale_, value_size_;
  double scores_;  // the largest there may be
  double ds_floor_ = 0, dv_floor_ = 0;
};

}  // namespace ejk::attn
