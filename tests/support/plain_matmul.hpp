// Grouped products by plain loops in the widest type there is, random factors, and the tolerance of a result:
// |out − R| ≤ max(2⁻¹⁸, K·2⁻²⁴)·X + ε·|R|, as it stands with the golden files, 2⁻⁴⁷ and 2⁻⁵³ with a float64
// factor; where R itself is small, half of the result type's smallest number.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/grouped_matmul.hpp"
#include "matmul/problem.hpp"

namespace plain {

using ejk::Array;
using ejk::ArrayView;
using ejk::DType;
using ejk::Shape;
using Sizes = std::vector<std::int64_t>;

inline const std::vector<DType> kFloats{DType::float16, DType::bfloat16, DType::float32, DType::float64};

/// The elements in C order.
inline std::vector<double> doubles(const ArrayView& view) {
  const Array copy = Array::copy_of(view);
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(copy.size()));
  ejk::dispatch(copy.dtype(), [&]<class T>(std::type_identity<T>) {
    for (const T v : copy.elements<T>()) {
      if constexpr (std::is_same_v<T, ejk::float16> || std::is_same_v<T, ejk::bfloat16>)
        out.push_back(static_cast<float>(v));
      else
        out.push_back(static_cast<double>(v));
    }
  });
  return out;
}

inline Array array_of(DType dtype, Shape shape, const std::vector<double>& values) {
  Array out(dtype, std::move(shape));
  REQUIRE(out.size() == static_cast<std::int64_t>(values.size()));
  ejk::dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, ejk::float16> || std::is_same_v<T, ejk::bfloat16>)
        out.elements<T>()[i] = T(static_cast<float>(values[i]));
      else
        out.elements<T>()[i] = static_cast<T>(values[i]);
    }
  });
  return out;
}

inline Array filled(DType dtype, Shape shape, double value) {
  const auto n = static_cast<std::size_t>(ejk::element_count(shape));
  return array_of(dtype, std::move(shape), std::vector<double>(n, value));
}

inline Array random(DType dtype, Shape shape, std::mt19937_64& engine) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(ejk::element_count(shape)));
  for (double& v : values) v = normal(engine);
  return array_of(dtype, std::move(shape), values);
}

/// `groups` sizes that sum to at most m, some of them 0; to m itself when `all`.
inline Sizes random_sizes(std::int64_t groups, std::int64_t m, bool all, std::mt19937_64& engine) {
  Sizes sizes(static_cast<std::size_t>(groups));
  std::int64_t rest = m;
  for (std::int64_t& size : sizes) {
    if (engine() % 4 == 0) continue;
    size = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(2 * m / groups + 1));
    size = std::min(size, rest);
    rest -= size;
  }
  if (all && groups > 0) sizes[engine() % sizes.size()] += rest;
  return sizes;
}

inline std::shared_ptr<const ejk::ArraySource> source(const Sizes& sizes, const char* name = "sizes.npy") {
  return ejk::make_source(Array::from<std::int64_t>({std::ssize(sizes)}, sizes), name);
}

template <class Options>
std::optional<ejk::ArrayType> existing_type(const Options& options) {
  return options.existing_out ? std::optional(type_of(*options.existing_out)) : std::nullopt;
}

/// The plan of what these options ask for, and the checked arguments that it is made from.
template <class Options>
ejk::GroupedMatmulPlan plan_of(const ArrayView& lhs, const ArrayView& rhs, const ejk::ArraySource& sizes,
                               const Options& options) {
  return {type_of(lhs), type_of(rhs), sizes, options, existing_type(options)};
}
template <class Options>
ejk::matmul::Problem problem_of(const ArrayView& lhs, const ArrayView& rhs, const ejk::ArraySource& sizes,
                                const Options& options) {
  return ejk::matmul::checked(type_of(lhs), type_of(rhs), sizes, options, existing_type(options));
}

/// What a result should be, element by element in C order.
struct Expected {
  Shape shape;
  std::vector<double> value;
  std::vector<double> magnitude;    // X
  std::vector<std::int64_t> depth;  // K; −1: exactly this value
  bool wide = false;                // a factor is float64
};

inline Expected grouped(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes,
                        const ejk::GroupedMatmulOptions& options = {}) {
  const auto a = doubles(lhs), b = doubles(rhs);
  const std::int64_t m = lhs.shape[0], k = lhs.shape[1], n = rhs.shape[options.transpose_rhs ? 1 : 2];
  const auto size = static_cast<std::size_t>(m * n);
  Expected e{
      {m, n}, std::vector<double>(size), std::vector<double>(size), std::vector<std::int64_t>(size, -1)};
  e.wide = lhs.dtype == DType::float64 || rhs.dtype == DType::float64;
  if (options.existing_out) e.value = doubles(*options.existing_out);
  std::int64_t row = 0;
  for (std::int64_t g = 0; g < std::ssize(sizes); ++g)
    for (std::int64_t i = 0; i < sizes[static_cast<std::size_t>(g)]; ++i, ++row) {
      const std::int64_t r = g - options.group_offset;
      if (r < 0 || r >= rhs.shape[0]) continue;
      for (std::int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<std::size_t>(row * n + j);
        const bool add = options.existing_out && options.existing == ejk::Existing::add;
        long double sum = add ? e.value[at] : 0;
        e.magnitude[at] = add ? std::abs(e.value[at]) : 0;
        for (std::int64_t p = 0; p < k; ++p) {
          const double x = a[static_cast<std::size_t>(row * k + p)];
          const double y =
              b[static_cast<std::size_t>(options.transpose_rhs ? (r * n + j) * k + p : (r * k + p) * n + j)];
          sum += static_cast<long double>(x) * y;
          e.magnitude[at] += std::abs(x * y);
        }
        e.value[at] = static_cast<double>(sum);
        e.depth[at] = k == 0 ? -1 : k;
      }
    }
  return e;
}

inline Expected transposed(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes,
                           const ejk::TransposedGroupedMatmulOptions& options = {}) {
  const auto a = doubles(lhs), b = doubles(rhs);
  const std::int64_t k = lhs.shape[0], m = lhs.shape[1], n = rhs.shape[1];
  const std::int64_t groups = options.num_actual_groups.value_or(std::ssize(sizes) - options.group_offset);
  const auto size = static_cast<std::size_t>(groups * k * n);
  Expected e{{groups, k, n},
             std::vector<double>(size),
             std::vector<double>(size),
             std::vector<std::int64_t>(size, -1)};
  e.wide = lhs.dtype == DType::float64 || rhs.dtype == DType::float64;
  if (options.existing_out) e.value = doubles(*options.existing_out);
  std::int64_t begin = 0;
  for (std::int64_t g = 0; g < options.group_offset + groups; ++g) {
    const std::int64_t rows = sizes[static_cast<std::size_t>(g)], end = begin + rows;
    for (std::int64_t p = 0; g >= options.group_offset && rows > 0 && p < k; ++p)
      for (std::int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<std::size_t>(((g - options.group_offset) * k + p) * n + j);
        long double sum = e.value[at];
        e.magnitude[at] = std::abs(e.value[at]);
        for (std::int64_t i = begin; i < end; ++i) {
          const double x = a[static_cast<std::size_t>(p * m + i)], y = b[static_cast<std::size_t>(i * n + j)];
          sum += static_cast<long double>(x) * y;
          e.magnitude[at] += std::abs(x * y);
        }
        e.value[at] = static_cast<double>(sum);
        e.depth[at] = rows;
      }
    begin = end;
  }
  return e;
}

/// The result's spacing above 1, and half of its smallest number.
inline double epsilon_of(DType dtype) {
  return dtype == DType::float16    ? 0x1p-10
         : dtype == DType::bfloat16 ? 0x1p-7
         : dtype == DType::float32  ? 0x1p-23
                                    : 0x1p-52;
}
inline double least_of(DType dtype) {
  return dtype == DType::float16 ? 0x1p-25 : dtype == DType::float64 ? 0 : 0x1p-126;
}

inline double tolerance(double reference, double magnitude, std::int64_t depth, DType result,
                        bool wide = false) {
  const double unit = wide ? 0x1p-53 : 0x1p-24;
  return std::max<double>(64, static_cast<double>(depth)) * unit * magnitude +
         epsilon_of(result) * std::abs(reference) + least_of(result);
}

/// Whether a value is right where `reference` and so on are given; NaN and infinities by kind.
inline bool is_near(double value, double reference, double magnitude, std::int64_t depth, DType result,
                    bool wide = false) {
  if (std::isnan(reference)) return std::isnan(value);
  if (std::isinf(reference)) return value == reference;
  if (depth < 0) return value == reference;
  const double allowed = tolerance(reference, magnitude, depth, result, wide);
  if (std::isinf(value) && result == DType::float16)
    return std::abs(reference) + allowed >= 65520 && std::signbit(value) == std::signbit(reference);
  return std::abs(value - reference) <= allowed;
}

/// Empty when `out` is as expected, else where it is not.
inline std::string difference(const Array& out, const Expected& expected) {
  if (out.shape() != expected.shape)
    return fmt::format("shape {}, not {}", ejk::to_string(out.shape()), ejk::to_string(expected.shape));
  const auto values = doubles(out.view());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!is_near(values[i], expected.value[i], expected.magnitude[i], expected.depth[i], out.dtype(),
                 expected.wide))
      return fmt::format("element {} of {} in C order is {}, not {} (X = {}, K = {})", i,
                         ejk::to_string(out.shape()), values[i], expected.value[i], expected.magnitude[i],
                         expected.depth[i]);
  return "";
}

/// The same values with other strides: `how` 0 C order, 1 Fortran order, 2 every other element of every axis,
/// 3 all axes backwards.
class Laid {
 public:
  Laid(const Array& array, int how) {
    const Shape& shape = array.shape();
    Shape places = shape;
    if (how == 2)
      for (auto& length : places) length = 2 * length + 1;
    if (how == 1) std::reverse(places.begin(), places.end());
    memory_ = filled(array.dtype(), places, std::numeric_limits<double>::quiet_NaN());
    view_ = memory_.view();
    view_.shape = shape;
    if (how == 1) std::reverse(view_.strides.begin(), view_.strides.end());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (how == 2) view_.data += view_.strides[d], view_.strides[d] *= 2;
      if (how == 3 && shape[d] > 0)
        view_.data += (shape[d] - 1) * view_.strides[d], view_.strides[d] = -view_.strides[d];
    }
    const std::int64_t item = ejk::size_of(array.dtype());
    Shape at(shape.size());
    for (std::int64_t i = 0; i < array.size(); ++i) {
      std::int64_t rest = i, place = view_.data - memory_.data();
      for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d])
        place += rest % shape[d] * view_.strides[d];
      std::copy_n(array.data() + i * item, item, memory_.data() + place);
    }
  }
  const ArrayView& view() const { return view_; }

 private:
  Array memory_;
  ArrayView view_;
};

inline bool same_bytes(const Array& a, const Array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::equal(a.data(), a.data() + a.bytes(), b.data());
}

}  // namespace plain
