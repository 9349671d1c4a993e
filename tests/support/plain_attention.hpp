// Attention by plain loops in double, from its definition, over dense (batch, heads, positions, elements)
// tables; and the tolerances that stand with the golden files.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ejk/attention.hpp"
#include "support/plain_matmul.hpp"

namespace plain {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Elements of a batch (B, heads, positions, elements), or of packed sequences.
struct Heads {
  Shape shape;
  std::vector<double> values;
  double& at(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
    return values[static_cast<std::size_t>(((b * shape[1] + h) * shape[2] + s) * shape[3] + d)];
  }
  double at(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) const {
    return const_cast<Heads*>(this)->at(b, h, s, d);
  }
};

inline Heads zeros(Shape shape) {
  const auto n = static_cast<std::size_t>(ejk::element_count(shape));
  return {std::move(shape), std::vector<double>(n)};
}

/// An array of a layout as Heads; packed tokens are one batch entry.
inline Heads heads_of(const ArrayView& array, ejk::AttentionLayout layout) {
  using Layout = ejk::AttentionLayout;
  const auto values = doubles(array);
  Shape s = array.shape;
  if (layout == Layout::thd) s.insert(s.begin(), 1);
  if (layout == Layout::bhsd) return {s, values};
  Heads out = zeros({s[0], s[2], s[1], s[3]});
  std::size_t at = 0;
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t i = 0; i < s[1]; ++i)
      for (std::int64_t h = 0; h < s[2]; ++h)
        for (std::int64_t d = 0; d < s[3]; ++d) out.at(b, h, i, d) = values[at++];
  return out;
}

struct AttentionCase {
  ejk::AttentionLayout layout = ejk::AttentionLayout::bshd;
  Heads q, k, v, dout;
  double scale = 1, softcap = 0;
  /// Whether query i sees key j, and the bias there: batch entry, query head, positions in the array.
  std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> allowed;
  std::function<double(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> bias;
};

struct AttentionResult {
  Heads out, lse, dq, dk, dv;  // lse: (B, H, Q, 1)
};

inline AttentionResult attend(const AttentionCase& c) {
  const Shape &q = c.q.shape, &k = c.k.shape;
  const std::int64_t group = k[1] == 0 ? 1 : q[1] / k[1], keys = k[2], size = q[3], values = c.v.shape[3];
  const bool gradient = !c.dout.shape.empty();
  AttentionResult r{zeros({q[0], q[1], q[2], values}), zeros({q[0], q[1], q[2], 1}), zeros(q), zeros(k),
                    zeros(c.v.shape)};
  std::vector<double> s(static_cast<std::size_t>(keys)), slope(s.size());
  for (std::int64_t b = 0; b < q[0]; ++b)
    for (std::int64_t h = 0; h < q[1]; ++h)
      for (std::int64_t i = 0; i < q[2]; ++i) {
        const std::int64_t g = h / group;
        double most = -kInfinity, sum = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          s[at] = -kInfinity;
          if (!c.allowed(b, h, i, j)) continue;
          double x = 0;
          for (std::int64_t d = 0; d < size; ++d) x += c.q.at(b, h, i, d) * c.k.at(b, g, j, d);
          x *= c.scale;
          slope[at] = 1;
          if (c.softcap > 0) {
            slope[at] = 1 - std::pow(std::tanh(x / c.softcap), 2);
            x = c.softcap * std::tanh(x / c.softcap);
          }
          if (c.bias) x += c.bias(b, h, i, j);
          s[at] = x;
          most = std::max(most, x);
        }
        r.lse.at(b, h, i, 0) = -kInfinity;
        if (most == -kInfinity) continue;
        for (const double x : s) sum += std::exp(x - most);
        r.lse.at(b, h, i, 0) = most + std::log(sum);
        double delta = 0;
        for (std::int64_t d = 0; d < values; ++d) {
          double& out = r.out.at(b, h, i, d);
          for (std::int64_t j = 0; j < keys; ++j)
            if (s[static_cast<std::size_t>(j)] != -kInfinity)
              out += std::exp(s[static_cast<std::size_t>(j)] - most) / sum * c.v.at(b, g, j, d);
          if (gradient) delta += out * c.dout.at(b, h, i, d);
        }
        if (!gradient) continue;
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (s[at] == -kInfinity) continue;
          const double p = std::exp(s[at] - most) / sum;
          double dp = 0;
          for (std::int64_t d = 0; d < values; ++d) {
            dp += c.dout.at(b, h, i, d) * c.v.at(b, g, j, d);
            r.dv.at(b, g, j, d) += p * c.dout.at(b, h, i, d);
          }
          const double ds = p * (dp - delta) * slope[at] * c.scale;
          for (std::int64_t d = 0; d < size; ++d) {
            r.dq.at(b, h, i, d) += ds * c.k.at(b, g, j, d);
            r.dk.at(b, g, j, d) += ds * c.q.at(b, h, i, d);
          }
        }
      }
  return r;
}

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
  return dtype == DType::float16 || dtype == DType::bfloat16 ? epsilon_of(dtype) / 2 : 0;
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
  double dq, dk, dv;
};
inline Floors floors(double scale, std::int64_t value_size, const std::vector<double>& q,
                     const std::vector<double>& k, const std::vector<double>& v,
                     const std::vector<double>& dout) {
  const double u = 0x1p-22, g = most_of(dout);
  const double ds = u * std::abs(scale) * static_cast<double>(value_size) * g * most_of(v);
  return {ds * most_of(k), ds * most_of(q), u * g};
}

}  // namespace plain
