// Attention and its gradients by plain loops, also with rounded weights.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "support/random_attention.hpp"

namespace plain {

using ejk::AttentionLayout;
using ejk::element_count;
using ejk::Shape;

// Elements as (batch, heads, positions, elements), packed tokens as one batch entry.
struct Heads {
  Shape shape;
  std::vector<double> values;

  double& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    return values[static_cast<std::size_t>(((b * shape[1] + h) * shape[2] + i) * shape[3] + d)];
  }
};

inline Heads zeros(Shape shape) {
  const auto n = static_cast<std::size_t>(element_count(shape));
  return {std::move(shape), std::vector<double>(n)};
}

inline Heads heads_of(const Array& array, AttentionLayout layout) {
  const auto values = doubles(array.view());
  Shape s = array.shape();
  if (layout == AttentionLayout::thd) s.insert(s.begin(), 1);
  if (layout == AttentionLayout::bhsd) return {s, values};
  Heads out = zeros({s[0], s[2], s[1], s[3]});
  std::size_t at = 0;
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t i = 0; i < s[1]; ++i)
      for (std::int64_t h = 0; h < s[2]; ++h)
        for (std::int64_t d = 0; d < s[3]; ++d) out.at(b, h, i, d) = values[at++];
  return out;
}

struct Expected {
  Heads out, lse, dq, dk, dv;  // lse: (B, H, Q, 1)
  Heads ds = {};               // (B, H, Q, K): of the bias
  std::vector<double> dsinks = {};
};

/// What a kernel rounds: the weights, over the largest, and dS; out, of which delta is made; scores, after each step.
struct LoopRounding {
  std::function<double(double)> weight, out, score;
};

/// Attention and its gradient by loops over all pairs, from the definition.
inline Expected by_loops(const RandomAttention& c, const LoopRounding& rounding = {}) {
  const auto rounded = [](const std::function<double(double)>& f, double x) { return f ? f(x) : x; };
  const AttentionLayout layout = c.options.layout;
  Heads q = heads_of(c.q, layout), k = heads_of(c.k, layout), v = heads_of(c.v, layout),
        dout = heads_of(c.dout, layout);
  const std::int64_t group = k.shape[1] == 0 ? 1 : c.heads / k.shape[1], size = q.shape[3],
                     values = v.shape[3];
  Expected r{zeros(dout.shape), zeros({c.batch, c.heads, c.q_length, 1}),
             zeros(q.shape),    zeros(k.shape),
             zeros(v.shape),    zeros({c.batch, c.heads, c.q_length, c.kv_length})};
  std::vector<double> s(static_cast<std::size_t>(c.kv_length)), slope(s.size());
  r.dsinks.resize(c.sinks.size());
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.q_length; ++i) {
        const std::int64_t g = h / group;
        const double sink =
            c.sinks.empty() || c.is_padding(i) ? -kInfinity : c.sinks[static_cast<std::size_t>(h)];
        double most = -kInfinity, sum = 0;
        for (std::int64_t j = 0; j < c.kv_length; ++j) {
          const auto at = static_cast<std::size_t>(j);
          s[at] = -kInfinity;
          if (!c.allowed(b, h, i, j)) continue;
          double x = 0;
          for (std::int64_t d = 0; d < size; ++d) x += q.at(b, h, i, d) * k.at(b, g, j, d);
          const auto score = [&](double value) { return rounded(rounding.score, value); };
          x = score(score(x) * c.scale);
          slope[at] = 1;
          double added = 0;
          if (c.bias_at) added += c.bias_at(b, h, i, j);
          if (c.alibi_at) added += c.alibi_at(b, h, i, j);
          if (c.cap_is_last) x = score(x + added);
          if (c.softcap > 0) {
            slope[at] = 1 - std::pow(std::tanh(x / c.softcap), 2);
            x = score(c.softcap * score(std::tanh(score(x / c.softcap))));
          }
          if (!c.cap_is_last) x = score(x + added);
          s[at] = x;
          most = std::max(most, x);
        }
        r.lse.at(b, h, i, 0) = -kInfinity;
        const bool has_key = most != -kInfinity;
        most = std::max(most, sink);
        if (most == -kInfinity) {
          double keys = 0;
          for (std::int64_t j = 0; j < c.kv_length; ++j) keys += c.is_of_entry(i, j);
          for (std::int64_t j = 0; j < c.kv_length && c.has_means && !c.is_padding(i); ++j)
            for (std::int64_t d = 0; d < values && c.is_of_entry(i, j); ++d) {
              r.out.at(b, h, i, d) += rounded(rounding.weight, 1 / keys) * v.at(b, g, j, d);
              r.dv.at(b, g, j, d) += rounded(rounding.weight, 1 / keys) * dout.at(b, h, i, d);
            }
          continue;
        }
        for (const double x : s) sum += std::exp(x - most);
        const auto kept = [&](std::int64_t j) { return c.kept_at ? c.kept_at(b, h, i, j) : 1; };
        sum += std::exp(sink - most);
        r.lse.at(b, h, i, 0) = most + std::log(sum);
        double delta = 0;
        for (std::int64_t d = 0; d < values; ++d) {
          double& out = r.out.at(b, h, i, d);
          for (std::int64_t j = 0; j < c.kv_length; ++j)
            out += kept(j) * rounded(rounding.weight, std::exp(s[static_cast<std::size_t>(j)] - most)) / sum *
                   v.at(b, g, j, d);
          delta += rounded(rounding.out, out) * dout.at(b, h, i, d);
        }
        if (!c.sinks.empty()) r.dsinks[static_cast<std::size_t>(h)] -= std::exp(sink - most) / sum * delta;
        if (!has_key) continue;
        for (std::int64_t j = 0; j < c.kv_length; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (s[at] == -kInfinity) continue;
          const double p = std::exp(s[at] - most) / sum;
          double dp = 0;
          for (std::int64_t d = 0; d < values; ++d) {
            dp += kept(j) * dout.at(b, h, i, d) * v.at(b, g, j, d);
            r.dv.at(b, g, j, d) += kept(j) * rounded(rounding.weight, p) * dout.at(b, h, i, d);
          }
          r.ds.at(b, h, i, j) = p * (dp - delta) * (c.cap_is_last ? slope[at] : 1);
          const double ds = c.scale * rounded(rounding.weight, p * (dp - delta) * slope[at]);
          for (std::int64_t d = 0; d < size; ++d) {
            r.dq.at(b, h, i, d) += ds * k.at(b, g, j, d);
            r.dk.at(b, g, j, d) += ds * q.at(b, h, i, d);
          }
        }
      }
  return r;
}

/// The array of a layout.
inline Array array_of(DType dtype, const Shape& shape, Heads heads, AttentionLayout layout) {
  if (layout == AttentionLayout::bhsd) return array_of(dtype, shape, heads.values);
  std::vector<double> values;
  for (std::int64_t b = 0; b < heads.shape[0]; ++b)
    for (std::int64_t i = 0; i < heads.shape[2]; ++i)
      for (std::int64_t h = 0; h < heads.shape[1]; ++h)
        for (std::int64_t d = 0; d < heads.shape[3]; ++d) values.push_back(heads.at(b, h, i, d));
  return array_of(dtype, shape, values);
}

}  // namespace plain
