// Softmax weights of short rows by least squares: normal equations and Cholesky decomposition.
// tests: tests/verdict/attention/test_dropout.cpp
#include "verdict/attention/dropout.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace ejk::attn {

std::optional<std::vector<double>> weights_of_row(const WeightedRow& row) {
  const std::size_t n = row.weights.size(), size = row.given.size();
  if (n == 0 || 2 * n > size) return std::nullopt;
  const auto product = [size](const double* x, const double* y) {
    double sum = 0;
    for (std::size_t d = 0; d < size; ++d) sum += x[d] * y[d];
    return sum;
  };
  std::vector<double> lower(n * n), w(n);  // of V·Vᵀ = L·Lᵀ
  for (std::size_t i = 0; i < n; ++i) {
    const double* v = row.values.data() + i * size;
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = product(v, row.values.data() + j * size);
      const double whole = sum;
      for (std::size_t p = 0; p < j; ++p) sum -= lower[i * n + p] * lower[j * n + p];
      if (i == j && !(sum > 1e-3 * whole)) return std::nullopt;
      lower[i * n + j] = i == j ? std::sqrt(sum) : sum / lower[j * n + j];
    }
    w[i] = product(v, row.given.data());
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t p = 0; p < i; ++p) w[i] -= lower[i * n + p] * w[p];
    w[i] /= lower[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t p = i + 1; p < n; ++p) w[i] -= lower[p * n + i] * w[p];
    w[i] /= lower[i * n + i];
  }
  // The residual: a sum of other values has one.
  double left = 0, all = 0;
  for (std::size_t d = 0; d < size; ++d) {
    double sum = row.given[d];
    for (std::size_t j = 0; j < n; ++j) sum -= w[j] * row.values[j * size + d];
    left += sum * sum;
    all += row.given[d] * row.given[d];
  }
  if (!(left <= 1e-3 * all)) return std::nullopt;
  return w;
}

std::optional<DroppedPairs> dropped_pairs(const std::vector<WeightedRow>& rows) {
  constexpr double kLight = 0.05;  // smaller weights are ignored
  struct Ratio {
    double value = 0;
    std::int64_t key = 0;
    std::size_t row = 0;
  };
  std::vector<Ratio> ratios;
  std::vector<double> kept;
  std::size_t judged = 0;
  for (const WeightedRow& row : rows) {
    const auto w = weights_of_row(row);
    if (!w) continue;
    ++judged;
    for (std::size_t j = 0; j < w->size(); ++j)
      if (row.weights[j] > kLight) ratios.push_back({(*w)[j] / row.weights[j], row.keys[j], judged});
  }
  if (2 * judged < rows.size() || ratios.size() < 32) return std::nullopt;
  for (const Ratio& ratio : ratios)
    if (ratio.value > 0.5) kept.push_back(ratio.value);
  if (kept.empty()) return std::nullopt;
  const auto middle = kept.begin() + static_cast<std::ptrdiff_t>(kept.size() / 2);
  std::nth_element(kept.begin(), middle, kept.end());
  const double factor = *middle;
  std::size_t none = 0, others = 0;
  std::map<std::int64_t, std::size_t> of_keys, of_rows;  // those that are 0
  for (const Ratio& ratio : ratios) {
    const bool is_none = std::abs(ratio.value) < 0.15 * factor;
    none += is_none;
    others += std::abs(ratio.value / factor - 1) < 0.1;
    if (is_none) ++of_keys[ratio.key], ++of_rows[static_cast<std::int64_t>(ratio.row)];
  }
  const auto all = static_cast<double>(ratios.size());
  const double share = static_cast<double>(none) / all;
  const auto is_of_few = [&](const std::map<std::int64_t, std::size_t>& counts) {
    std::size_t most = 0;
    for (const auto& [at, count] : counts) most = std::max(most, count);
    return counts.size() < 3 || 2 * most > none;
  };
  if (static_cast<double>(none + others) < 0.97 * all || share < 0.01 || share > 0.7 || is_of_few(of_keys) ||
      is_of_few(of_rows))
    return std::nullopt;
  return DroppedPairs{share, factor};
}

}  // namespace ejk::attn
