// Rows of a result as arrays, for explanations by values.
// tests: tests/verdict/test_fault_search.cpp
#include "verdict/explain_rows.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/checked.hpp"
#include "core/parallel.hpp"

namespace ejk::verify {

namespace {

// Rows of a result as an array: ResultRows::array_axes, and the columns.
struct RowArray {
  Shape shape;
  std::vector<std::int64_t> first_of_row;  // element, by row
};

// Nothing where rows of the array are missing, as those of padding are.
std::optional<RowArray> row_array(const ResultRows& result) {
  RowArray array{{}, std::vector<std::int64_t>(static_cast<std::size_t>(result.rows))};
  for (const std::size_t a : result.array_axes) array.shape.push_back(result.axes[a].length);
  if (element_count(array.shape) != result.rows) return std::nullopt;
  array.shape.push_back(result.columns);
  std::vector<std::int64_t> place(result.axes.size());
  for (std::int64_t row = 0; row < result.rows; ++row) {
    result.place(row, place.data());
    Shape at;
    for (const std::size_t a : result.array_axes) at.push_back(place[a]);
    at.push_back(0);
    array.first_of_row[static_cast<std::size_t>(row)] = flat_index(array.shape, at);
  }
  return array;
}

Naming naming_of(const ResultRows& result, const RowArray& array) {
  Naming naming;
  naming.shape = array.shape;
  const std::vector<std::size_t>& axes = result.array_axes;
  for (const std::size_t a : axes) naming.axes.push_back(result.axes[a].name);
  naming.axes.push_back(result.column.empty() ? "column" : result.column);
  // Parts that are runs of a position: groups of rows, sequences of queries.
  for (std::size_t a = 0; a < result.axes.size(); ++a) {
    if (std::find(axes.begin(), axes.end(), a) != axes.end() || result.axes[a].length == 1) continue;
    const auto of_axis = std::find_if(axes.begin(), axes.end(), [&](std::size_t other) {
      return result.axes[other].kind == RowAxis::Kind::position;
    });
    if (of_axis == axes.end()) continue;
    std::vector<std::int64_t> part(static_cast<std::size_t>(result.axes[*of_axis].length), -1),
        place(result.axes.size());
    for (std::int64_t row = 0; row < result.rows; ++row) {
      result.place(row, place.data());
      part[static_cast<std::size_t>(place[*of_axis])] = place[a];
    }
    const auto end = std::find(part.begin(), part.end(), -1);
    if (!std::is_sorted(part.begin(), end)) continue;
    Naming::Run run{static_cast<std::size_t>(of_axis - axes.begin()), result.axes[a].name, {}};
    for (std::int64_t p = 0; p <= result.axes[a].length; ++p)
      run.offsets.push_back(std::lower_bound(part.begin(), end, p) - part.begin());
    naming.runs.push_back(std::move(run));
  }
  return naming;
}

}  // namespace

ValueExplanations explain_rows(const ResultRows& result, std::vector<std::uint8_t>& left) {
  const auto array = row_array(result);
  if (!array) return {};
  const std::int64_t columns = result.columns;
  Array given(DType::float64, array->shape), expected(DType::float64, array->shape);
  std::vector<std::uint8_t> differing(left.size());
  constexpr std::int64_t kRows = 64;
  LineTolerances lines{array->shape, std::vector<double>(static_cast<std::size_t>(result.rows))};
  std::vector<double> of_left(static_cast<std::size_t>(result.rows), -1);  // of rows with some
  core::parallel_for(
      core::ceil_div(result.rows, kRows), 8 * static_cast<double>(left.size()), [&](std::int64_t n) {
        std::vector<double> allowed(static_cast<std::size_t>(columns));
        for (std::int64_t row = n * kRows; row < std::min(result.rows, (n + 1) * kRows); ++row) {
          const std::int64_t first = array->first_of_row[static_cast<std::size_t>(row)];
          result.given(row, given.elements<double>().data() + first);
          result.expected(row, expected.elements<double>().data() + first, allowed.data());
          const auto flags = left.begin() + row * columns;
          std::copy_n(flags, columns, differing.begin() + first);
          double most = 0;
          for (const double bound : allowed)
            if (std::isfinite(bound)) most = std::max(most, bound);
          lines.atol[static_cast<std::size_t>(first / columns)] = most;
          if (std::any_of(flags, flags + columns, [](std::uint8_t is_left) { return is_left != 0; }))
            of_left[static_cast<std::size_t>(row)] = most;
        }
      });
  std::erase_if(of_left, [](double bound) { return bound < 0; });
  if (of_left.empty()) return {};
  const auto at = of_left.begin() + static_cast<std::ptrdiff_t>(of_left.size() * 95 / 100);
  std::nth_element(of_left.begin(), at, of_left.end());
  const Agreement agree{0, *at, true, &lines};
  const Naming naming = naming_of(result, *array);
  const auto given_source = make_source(given.view(), "given"),
             expected_source = make_source(expected.view(), "expected");
  const Side a(*given_source), e(*expected_source);
  const ElementComparer judge(DType::float64, DType::float64, {0, *at});
  ValueSearch search({a, e, judge, agree, naming, {}, differing.data()}, {});
  ValueExplanations found = search.run();
  if (found.explanations.empty()) return found;
  std::vector<std::uint8_t> still(left.size());
  search.mark_left(still.data());
  for (std::int64_t row = 0; row < result.rows; ++row)
    std::copy_n(still.data() + array->first_of_row[static_cast<std::size_t>(row)], columns,
                left.data() + row * columns);
  return found;
}

}  // namespace ejk::verify
