// Both arrays of a comparison as doubles, by box, line or element, and the tolerance of a prediction.
// tests: tests/compare/test_explain.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "arrays/convert.hpp"
#include "ejk/array.hpp"
#include "kernels/kernels.hpp"

namespace ejk::verify {

inline std::int64_t flat_index(const Shape& shape, const Shape& at) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + at[d];
  return flat;
}

/// Advances `at` to the next line of the last axis in a box; false after the last one.
inline bool next_line(Shape& at, const Shape& start, const Shape& count) {
  for (std::size_t d = at.size() - 1; d-- > 0;) {
    if (++at[d] < start[d] + count[d]) return true;
    at[d] = start[d];
  }
  return false;
}

/// Absolute tolerances of the lines of the last axis, in their order.
struct LineTolerances {
  Shape shape;  // of the array
  std::vector<double> atol;
};

/// |a - e| <= atol + rtol · |e| and both finite, or equal, or both NaN.
struct Agreement {
  double rtol = 0, atol = 0;  // with `lines`: of nearly all lines
  bool nan = true;
  const LineTolerances* lines = nullptr;

  Agreement at_flat(std::int64_t flat) const {
    if (lines == nullptr) return *this;
    return {rtol, lines->atol[static_cast<std::size_t>(flat / lines->shape.back())], nan};
  }
  Agreement at(const Shape& at) const {
    return lines == nullptr ? *this : at_flat(flat_index(lines->shape, at));
  }

  bool operator()(double a, double e) const {
    const double allowed = std::min(atol + rtol * std::abs(e), std::numeric_limits<double>::max());
    return std::abs(a - e) <= allowed || a == e || (nan && a != a && e != e);
  }
  /// flags[i] = 1 where elements do not agree, else 0; returns how many do not.
  std::int64_t mark_differences(const double* a, const double* e, std::int64_t n, std::uint8_t* flags) const {
    return kernels::active().mark_differences(a, e, n, rtol, atol, nan, flags);
  }
};

class Side {
 public:
  explicit Side(const ArraySource& source) : source_(source), view_(source.mapped()) {
    if (view_ && !view_->is_c_contiguous()) view_.reset();
    strides_ = c_strides(source.shape(), source.dtype());
  }

  const ArraySource& source() const { return source_; }
  const Shape& shape() const { return source_.shape(); }
  /// In memory or mapped: elements are cheap to read in any order.
  bool is_in_memory() const { return view_.has_value(); }

  /// The elements of a box that is contiguous in C order: in place, or copied to `raw`.
  const std::byte* bytes(const Shape& start, const Shape& count, std::vector<std::byte>& raw) const {
    if (view_) return view_->data + offset(start);
    raw.resize(static_cast<std::size_t>(element_count(count) * size_of(source_.dtype())));
    source_.read(start, count, raw.data());
    return raw.data();
  }

  void read(const Shape& start, const Shape& count, std::vector<std::byte>& raw, double* out) const {
    const std::int64_t n = element_count(count);
    raw.resize(static_cast<std::size_t>(n * size_of(source_.dtype())));
    source_.read(start, count, raw.data());
    arrays::convert_elements(source_.dtype(), raw.data(), DType::float64, reinterpret_cast<std::byte*>(out),
                             n);
  }

  /// n elements of the last axis, the first at `at`.
  void line(const Shape& at, std::int64_t n, std::vector<std::byte>& raw, double* out) const {
    if (view_) {
      arrays::convert_elements(source_.dtype(), view_->data + offset(at), DType::float64,
                               reinterpret_cast<std::byte*>(out), n);
      return;
    }
    Shape count(at.size(), 1);
    count.back() = n;
    read(at, count, raw, out);
  }

  /// n elements of the buffer, from `flat` on with stride `step`, of a side that is in memory.
  void strided(std::int64_t flat, std::int64_t step, std::int64_t n, std::vector<std::byte>& raw,
               double* out) const {
    const auto size = static_cast<std::size_t>(size_of(source_.dtype()));
    const std::byte* from = view_->data + flat * static_cast<std::int64_t>(size);
    if (step != 1) {
      raw.resize(static_cast<std::size_t>(n) * size);
      for (std::int64_t i = 0; i < n; ++i)
        std::memcpy(raw.data() + static_cast<std::size_t>(i) * size,
                    from + i * step * static_cast<std::int64_t>(size), size);
      from = raw.data();
    }
    arrays::convert_elements(source_.dtype(), from, DType::float64, reinterpret_cast<std::byte*>(out), n);
  }

  double element(const Shape& at) const {
    double out = 0;
    thread_local std::vector<std::byte> raw;
    line(at, 1, raw, &out);
    return out;
  }

 private:
  std::int64_t offset(const Shape& at) const {
    std::int64_t bytes = 0;
    for (std::size_t d = 0; d < at.size(); ++d) bytes += at[d] * strides_[d];
    return bytes;
  }

  const ArraySource& source_;
  std::optional<ArrayView> view_;  // in C order
  Shape strides_;
};

}  // namespace ejk::verify
