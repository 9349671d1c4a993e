// Softmax weights are recovered from rows of few keys, and dropped ones are distinguished from other errors.
#include "verdict/attention/dropout.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

using namespace ejk;

namespace {

// Rows of 2 to 12 keys of 32 elements; changed(weight) is what a row is made with.
template <class Change>
std::vector<attn::WeightedRow> rows_with(std::mt19937_64& engine, Change changed) {
  std::normal_distribution<double> normal;
  std::vector<attn::WeightedRow> rows;
  for (std::size_t n = 2; n < 13; ++n)
    for (int again = 0; again < 3; ++again) {
      attn::WeightedRow row;
      double sum = 0;
      for (std::size_t j = 0; j < n; ++j)
        row.weights.push_back(std::exp(normal(engine))), row.keys.push_back(static_cast<std::int64_t>(j)),
            sum += row.weights[j];
      row.given.assign(32, 0);
      for (double& w : row.weights) {
        w /= sum;
        const double used = changed(w);
        for (double& out : row.given) row.values.push_back(normal(engine)), out += used * row.values.back();
      }
      for (double& out : row.given) out *= 1 + 0x1p-9 * normal(engine);
      rows.push_back(std::move(row));
    }
  return rows;
}

}  // namespace

TEST_CASE("weights follow from a row of few keys, and from no other") {
  std::mt19937_64 engine(3);
  for (auto& row : rows_with(engine, [](double w) { return 2 * w; })) {
    const auto weights = attn::weights_of_row(row);
    REQUIRE(weights);
    for (std::size_t j = 0; j < weights->size(); ++j)
      CHECK(std::abs((*weights)[j] - 2 * row.weights[j]) < 0.01);
    row.given[5] += 3;  // of no weights
    CHECK_FALSE(attn::weights_of_row(row));
  }
  CHECK_FALSE(
      attn::weights_of_row({{0.5, 0.5}, {0, 1}, {1, 2, 3, 1, 2, 3}, {1, 2, 3}}));  // of two equal values
}

TEST_CASE("dropped pairs are counted, and their scale is told; others that are off are not dropped") {
  std::mt19937_64 engine(4);
  std::uniform_real_distribution<double> uniform;
  for (const double share : {0.1, 0.3}) {
    int all = 0, none = 0;
    const auto dropped = attn::dropped_pairs(rows_with(engine, [&](double w) {
      const bool is_dropped = uniform(engine) < share;
      if (w > 0.02) ++all, none += is_dropped;
      return is_dropped ? 0 : w / (1 - share);
    }));
    REQUIRE(dropped);
    CHECK(dropped->share == doctest::Approx(static_cast<double>(none) / all).epsilon(0.1));
    CHECK(dropped->factor == doctest::Approx(1 / (1 - share)).epsilon(0.02));
  }
  CHECK_FALSE(attn::dropped_pairs(rows_with(engine, [](double w) { return 2 * w; })));
  CHECK_FALSE(attn::dropped_pairs(rows_with(engine, [&](double w) { return uniform(engine) * w; })));
  CHECK_FALSE(attn::dropped_pairs(rows_with(engine, [](double) { return 0.1; })));
  // One key that is hidden, and the others times more, are no dropout.
  auto hidden = rows_with(engine, [](double w) { return w; });
  for (auto& row : hidden)
    for (std::size_t d = 0; d < row.given.size(); ++d)
      row.given[d] -= row.weights[1] * row.values[row.given.size() + d];
  CHECK_FALSE(attn::dropped_pairs(hidden));
}
