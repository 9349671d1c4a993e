// A row's factor is fitted to all of its columns, so that one number is confirmed by many elements. Cost: the
// reference of a row.
// tests: tests/verdict/matmul/test_fault_models.cpp
#include "verdict/row_factor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "compare/hypothesis.hpp"

namespace ejk::verify {

namespace {

std::optional<FittedFactor> factor_of(const ResultRows& result, std::int64_t row, Row& it) {
  it.load(result, row);
  return fit_factor(it.value, it.expected, it.allowed);
}

}  // namespace

std::optional<FaultModel> factor_of_each_row(const ResultRows& result, const FaultSearch& search,
                                             const std::string& one, double row_nanoseconds) {
  if (!search.is_enough_to_fit()) return std::nullopt;
  std::map<std::vector<std::int64_t>, FittedFactor> last;  // by the parts of a row
  int pairs = 0, different = 0;
  double least = 0, most = 0;
  Row it(result.columns);
  for (const std::int64_t row : search.some_rows(64)) {
    const auto fit = factor_of(result, row, it);
    if (!fit) continue;
    std::vector<std::int64_t> place(result.axes.size());
    result.place(row, place.data());
    for (std::size_t a = 0; a < place.size(); ++a)
      if (result.axes[a].kind == RowAxis::Kind::position) place[a] = 0;
    least = last.empty() ? fit->value : std::min(least, fit->value);
    most = last.empty() ? fit->value : std::max(most, fit->value);
    const auto [other, is_new] = last.emplace(std::move(place), *fit);
    if (is_new) continue;
    ++pairs;
    different += std::abs(fit->value - other->second.value) > 3 * (fit->deviation + other->second.deviation);
    other->second = *fit;
  }
  if (pairs == 0 || 3 * different < 2 * pairs) return std::nullopt;
  FaultModel model;
  model.kind = "factor";
  model.text = fmt::format("each {} has a factor of its own, of some {}s from {:.3g} to {:.3g}", one, one,
                           least, most);
  model.nanoseconds = row_nanoseconds;
  model.is_subtle = true;
  model.values = [&result](std::int64_t row, std::span<const std::int64_t> columns, double* values,
                           double* allowed) {
    Row all(result.columns);
    const auto fit = factor_of(result, row, all);
    if (!fit) return false;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto column = static_cast<std::size_t>(columns[c]);
      values[c] = fit->value * all.expected[column];
      allowed[c] = std::abs(fit->value) * all.allowed[column] +
                   3 * fit->deviation * std::abs(all.expected[column]) +
                   float_type(result.dtype).spacing_at(0) / 2;
    }
    return true;
  };
  return model;
}

}  // namespace ejk::verify
