// Tolerances of the golden attention cases.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/arrays.hpp"

namespace plain {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double most_of(const std::vector<double>& values) {
  double most = 0;
  for (const double v : values)
    if (std::isfinite(v)) most = std::max(most, std::abs(v));
  return most;
}

/// How much finer float64 arithmetic is.
inline double finer(DType arithmetic) { return arithmetic == DType::float64 ? 0x1p-29 : 1; }

/// Half a spacing of a 16-bit result; of others nothing that the tolerances do not hold already.
inline double rounding_of(DType dtype) {
  return dtype == DType::float16 ? 0x1p-11 : dtype == DType::bfloat16 ? 0x1p-8 : 0;
}

/// Empty, or where `got` is not within absolute + relative · |expected|.
inline std::string far_from(const std::vector<double>& got, const std::vector<double>& expected,
                            double absolute, double relative) {
  if (got.size() != expected.size()) return fmt::format("{} elements, not {}", got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool right = std::isfinite(expected[i])
                           ? std::abs(got[i] - expected[i]) <= absolute + relative * std::abs(expected[i])
                           : got[i] == expected[i];
    if (!right) return fmt::format("element {} is {}, not {}", i, got[i], expected[i]);
  }
  return "";
}

inline std::string out_far_from(const Array& got, const std::vector<double>& expected,
                                const std::vector<double>& v, DType arithmetic) {
  const double fine = finer(arithmetic);
  const double least = got.dtype() == DType::float16 ? 0x1p-25 : 0;
  return far_from(doubles(got.view()), expected, 2e-6 * fine * most_of(v) + least,
                  2e-5 * fine + rounding_of(got.dtype()));
}

inline std::string lse_far_from(const Array& got, const std::vector<double>& expected, DType arithmetic) {
  return far_from(doubles(got.view()), expected, 1e-5 * finer(arithmetic), 1e-5 * finer(arithmetic));
}

/// `floor` is where terms cancel: 2^-22 · scale · Dv · max|dout| · max|v| · max|k| for dq.
inline std::string gradient_far_from(const Array& got, const std::vector<double>& expected, double floor,
                                     DType arithmetic) {
  const double least = got.dtype() == DType::float16 ? 0x1p-25 : 0;
  return far_from(doubles(got.view()), expected,
                  (1e-4 * most_of(expected) + floor) * finer(arithmetic) + least, rounding_of(got.dtype()));
}

/// The floors of dq, dk, dv.
struct Floors {
  double dq, dk, dv, dbias;
};
inline Floors floors(double scale, std::int64_t value_size, const std::vector<double>& q,
                     const std::vector<double>& k, const std::vector<double>& v,
                     const std::vector<double>& dout) {
  const double u = 0x1p-22, g = most_of(dout);
  const double ds = u * std::abs(scale) * static_cast<double>(value_size) * g * most_of(v);
  return {ds * most_of(k), ds * most_of(q), u * g, u * static_cast<double>(value_size) * g * most_of(v)};
}

}  // namespace plain
