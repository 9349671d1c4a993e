// A layer of experts in plain loops, whose steps round as kernels do and may be changed.
#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "ejk/route.hpp"
#include "support/arrays.hpp"

namespace plain {

struct MoeLayer {
  DType dtype = DType::float32;
  std::int64_t tokens = 0, hidden = 0, inter = 0, experts = 0, k = 0;
  Array x, gate_up, down, ids, weights;
  std::vector<double> x_values, gate_up_values, down_values, weight_values;
  std::vector<std::int64_t> id_values;

  ejk::MoeOperands operands() const {
    const ejk::GateAndUp halves = ejk::split_gate_and_up(gate_up.view());
    return {x.view(), halves.gate, halves.up, down.view(), ids.view(), weights.view()};
  }
  std::size_t choice(std::int64_t t, std::int64_t j) const { return static_cast<std::size_t>(t * k + j); }
  double x_at(std::int64_t t, std::int64_t p) const {
    return x_values[static_cast<std::size_t>(t * hidden + p)];
  }
  double gate_at(std::int64_t e, std::int64_t p, std::int64_t i) const {
    return gate_up_values[static_cast<std::size_t>((e * hidden + p) * 2 * inter + i)];
  }
  double down_at(std::int64_t e, std::int64_t i, std::int64_t c) const {
    return down_values[static_cast<std::size_t>((e * inter + i) * hidden + c)];
  }

  using Row = std::vector<double>;
  struct Expert {
    std::function<double(double)> activation = [](double g) { return g / (1 + std::exp(-g)); };
    bool exchanges_halves = false;
    double input = 1;  // a factor of x
  };
  /// Of token t, rounded to the type at each step.
  Row expert(std::int64_t t, std::int64_t e, const Expert& how) const {
    const auto round = [&](double value) { return rounded(value, dtype); };
    Row both(static_cast<std::size_t>(2 * inter)), h(static_cast<std::size_t>(inter)),
        y(static_cast<std::size_t>(hidden));
    for (std::int64_t i = 0; i < 2 * inter; ++i) {
      float sum = 0;
      for (std::int64_t p = 0; p < hidden; ++p)
        sum += static_cast<float>(round(how.input * x_at(t, p)) * gate_at(e, p, i));
      both[static_cast<std::size_t>(i)] = round(sum);
    }
    for (std::size_t i = 0; i < h.size(); ++i) {
      const double g = both[how.exchanges_halves ? i + h.size() : i],
                   u = both[how.exchanges_halves ? i : i + h.size()];
      h[i] = round(round(how.activation(g)) * u);
    }
    for (std::int64_t c = 0; c < hidden; ++c) {
      float sum = 0;
      for (std::int64_t i = 0; i < inter; ++i)
        sum += static_cast<float>(h[static_cast<std::size_t>(i)] * down_at(e, i, c));
      y[static_cast<std::size_t>(c)] = round(sum);
    }
    return y;
  }
  std::vector<Row> expert_rows(const std::function<Expert(std::int64_t t, std::int64_t j)>& how = {}) const {
    std::vector<Row> rows;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t j = 0; j < k; ++j)
        rows.push_back(expert(t, id_values[choice(t, j)], how ? how(t, j) : Expert{}));
    return rows;
  }
  /// Sums of a token's rows in the type.
  Array combined(const std::vector<Row>& rows, const std::vector<double>& with) const {
    std::vector<double> out(static_cast<std::size_t>(tokens * hidden));
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t j = 0; j < k; ++j)
        for (std::int64_t c = 0; c < hidden; ++c) {
          double& sum = out[static_cast<std::size_t>(t * hidden + c)];
          sum = rounded(
              sum + rounded(with[choice(t, j)] * rows[choice(t, j)][static_cast<std::size_t>(c)], dtype),
              dtype);
        }
    return array_of(dtype, {tokens, hidden}, out);
  }
};

/// Random matrices and choices; the weights of a token sum to 1, the largest first.
inline MoeLayer moe_layer(DType dtype, std::int64_t tokens, std::int64_t k, std::uint64_t seed,
                          std::int64_t hidden = 40, std::int64_t inter = 24, std::int64_t experts = 5) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  MoeLayer layer{dtype, tokens, hidden, inter, experts, k, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const auto random = [&](const Shape& shape, double size) {
    std::vector<double> values(static_cast<std::size_t>(ejk::element_count(shape)));
    for (double& value : values) value = size * normal(engine);
    return array_of(dtype, shape, values);
  };
  layer.x = random({tokens, hidden}, 1);
  layer.gate_up = random({experts, hidden, 2 * inter}, 1 / std::sqrt(static_cast<double>(hidden)));
  layer.down = random({experts, inter, hidden}, 1 / std::sqrt(static_cast<double>(inter)));
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(experts));
    for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int64_t>(e);
    std::shuffle(all.begin(), all.end(), engine);
    std::vector<double> own;
    double sum = 0;
    for (std::int64_t j = 0; j < k; ++j) own.push_back(std::exp(normal(engine))), sum += own.back();
    std::sort(own.rbegin(), own.rend());
    for (std::int64_t j = 0; j < k; ++j) {
      layer.id_values.push_back(all[static_cast<std::size_t>(j)]);
      layer.weight_values.push_back(rounded(own[static_cast<std::size_t>(j)] / sum, DType::float32));
    }
  }
  std::vector<double> ids(layer.id_values.begin(), layer.id_values.end());
  layer.ids = array_of(DType::int32, {tokens, k}, ids);
  layer.weights = array_of(DType::float32, {tokens, k}, layer.weight_values);
  layer.x_values = doubles(layer.x.view()), layer.gate_up_values = doubles(layer.gate_up.view()),
  layer.down_values = doubles(layer.down.view());
  return layer;
}

}  // namespace plain
