// Explanation of differences: one pass counts and samples them, compare/value_search.hpp explains them. Cost:
// the comparison, a pass, and one or two for each hypothesis.
// tests: tests/compare/test_explain.cpp
#include "ejk/program/explain.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>

#include "compare/difference_pass.hpp"
#include "compare/float_type.hpp"
#include "compare/hypothesis.hpp"
#include "compare/report_parts.hpp"
#include "compare/value_search.hpp"
#include "compare/where.hpp"
#include "core/splitmix64.hpp"
#include "ejk/threads.hpp"

namespace ejk {

namespace {

using verify::Naming;
using verify::Side;
using verify::TileGrid;

using verify::axes_of, verify::grid_of, verify::naming_of, verify::runs_of, verify::tiles_of;

// When an element agrees with a prediction: within the tolerance, or max_ulp units in the last place.
verify::Agreement agreement_of(const Comparison& c, NanEqual nan) {
  verify::Agreement agree{c.rtol, c.atol, nan == NanEqual::yes};
  if (c.by_size || !c.max_ulp) return agree;
  double unit = 0;
  for (const DType dtype : {c.actual_dtype, c.expected_dtype})
    if (is_float(dtype)) unit = std::max(unit, verify::float_type(dtype).epsilon());
  const auto units = static_cast<double>(*c.max_ulp);
  agree.rtol = units * unit;
  agree.atol = unit > 0 ? 0 : units;
  return agree;
}

// The orders of axes that make the shape of `actual` that of `expected`; axes of length 1 are anywhere.
std::vector<std::vector<std::int64_t>> orders_of(const Shape& actual, const Shape& expected) {
  std::vector<std::vector<std::int64_t>> orders;
  std::set<std::vector<std::int64_t>> seen;
  std::vector<std::int64_t> order(actual.size());
  std::iota(order.begin(), order.end(), 0);
  if (actual.size() != expected.size() || actual.size() > 7) return orders;
  do {
    std::vector<std::int64_t> longer;
    bool fits = true;
    for (std::size_t d = 0; d < order.size() && fits; ++d) {
      fits = actual[static_cast<std::size_t>(order[d])] == expected[d];
      if (expected[d] > 1) longer.push_back(order[d]);
    }
    if (fits && seen.insert(std::move(longer)).second) orders.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

ArrayView in_order(const ArrayView& view, const std::vector<std::int64_t>& axes) {
  ArrayView turned = view;
  for (std::size_t d = 0; d < axes.size(); ++d) {
    turned.shape[d] = view.shape[static_cast<std::size_t>(axes[d])];
    turned.strides[d] = view.strides[static_cast<std::size_t>(axes[d])];
  }
  return turned;
}

// The order of axes in which most of some elements agree; all are compared if half of these do.
std::optional<PermutedAxes> permuted_axes(const ArraySource& actual, const ArraySource& expected,
                                          const Tolerance& tolerance) {
  constexpr std::uint64_t kElements = 256;
  const Shape& shape = expected.shape();
  if (!actual.mapped() || element_count(shape) == 0 || element_count(actual.shape()) != element_count(shape))
    return std::nullopt;
  const auto permuted = [&](const std::vector<std::int64_t>& order) {
    return make_source(in_order(*actual.mapped(), order), actual.name());
  };
  const auto [usual_rtol, usual_atol] = default_tolerance(actual.dtype(), expected.dtype());
  const verify::Agreement agree{tolerance.rtol.value_or(usual_rtol), tolerance.atol.value_or(usual_atol)};
  const Side e(expected);
  std::vector<std::int64_t> best;
  std::uint64_t most = kElements / 2;
  for (const auto& order : orders_of(actual.shape(), shape)) {
    const auto source = permuted(order);
    const Side a(*source);
    std::uint64_t good = 0;
    for (std::uint64_t n = 0; n < kElements; ++n) {
      Shape at(shape.size());
      for (std::size_t d = 0; d < at.size(); ++d)
        at[d] = static_cast<std::int64_t>(core::splitmix64(n * at.size() + d) %
                                          static_cast<std::uint64_t>(shape[d]));
      good += agree(a.element(at), e.element(at));
    }
    if (good > most) most = good, best = order;
  }
  if (best.empty()) return std::nullopt;
  return PermutedAxes{best, compare_arrays(*permuted(best), expected, tolerance)};
}

// An array from an index of its first axis on.
std::shared_ptr<const ArraySource> rows_from(const ArraySource& array, std::int64_t begin) {
  ArrayType type(array.dtype(), array.shape());
  type.shape[0] -= begin;
  if (const auto view = array.mapped())
    return make_source(
        ArrayView(view->data + begin * view->strides[0], view->dtype, type.shape, view->strides),
        array.name());
  return generated_source(
      std::move(type), array.name(),
      [&array, begin](auto start, auto count, void* out) {
        Shape from(start.begin(), start.end());
        from[0] += begin;
        array.read(from, count, out);
      },
      ArrayAccess(array.access().order));
}

// Of axis 0, where rows are past the last group and some differ.
std::optional<NoGroupDifferences> past_groups(const ArraySource& actual, const ArraySource& expected,
                                              const Naming& naming, const std::vector<AxisDifferences>& axes,
                                              const Tolerance& tolerance) {
  for (const Naming::Run& run : naming.runs) {
    const std::int64_t begin = run.offsets.back(), end = naming.shape[run.axis];
    if (run.name != "group" || run.axis != 0 || begin >= end) continue;
    if (axes[0].ranges.empty() || axes[0].ranges.back().end <= begin) return std::nullopt;
    Comparison rows = compare_arrays(*rows_from(actual, begin), *rows_from(expected, begin), tolerance);
    if (rows.differing == 0) return std::nullopt;
    return NoGroupDifferences{{begin, end}, std::move(rows)};
  }
  return std::nullopt;
}

// Of differences that are too few for a fit: a factor of few digits that all have, to a unit in the last place.
std::optional<Explanation> factor_of_few(const std::vector<verify::Sample>& samples, DType dtype) {
  constexpr std::size_t kFewest = 3, kMost = 7;
  std::set<double> sizes;
  for (const verify::Sample& s : samples)
    if (std::isfinite(s.actual) && std::isfinite(s.expected)) sizes.insert(std::abs(s.expected));
  if (!is_float(dtype) || samples.size() > kMost || sizes.size() < kFewest || sizes.contains(0))
    return std::nullopt;
  const verify::FloatType type = verify::float_type(dtype);
  for (int digits = 1; digits < 6; ++digits) {
    const double factor =
        std::strtod(fmt::format("{:.{}g}", samples[0].actual / samples[0].expected, digits).c_str(), nullptr);
    if (std::all_of(samples.begin(), samples.end(), [&](const verify::Sample& s) {
          return std::abs(s.actual - factor * s.expected) <= type.spacing_at(s.actual);
        }))
      return Explanation{
          "factor",
          fmt::format("{:g} times what it should be, to a unit in the last place: all {} that differ", factor,
                      samples.size()),
          1};
  }
  return std::nullopt;
}

}  // namespace

Explained explain_difference(const ArraySource& actual, const ArraySource& expected,
                             const ExplainOptions& options,
                             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const Shape& shape = expected.shape();
  const bool alike = actual.shape() == shape;
  const Naming naming = alike ? naming_of(shape, options) : Naming{};
  const TileGrid grid =
      alike ? grid_of(shape, options.tile, verify::tile_axes_of(naming, options.tile_axes)) : TileGrid{};
  Explained explained;
  explained.comparison = compare_arrays(actual, expected, options.tolerance, progress);
  const Comparison& c = explained.comparison;
  if (!alike) explained.permuted = permuted_axes(actual, expected, options.tolerance);
  if (explained.permuted && !explained.permuted->comparison.close) {
    const auto turned =
        make_source(Array::copy_of(in_order(*actual.mapped(), explained.permuted->axes)), actual.name());
    Explained then = explain_difference(*turned, expected, options, progress);
    then.permuted = std::move(explained.permuted);
    then.comparison = std::move(explained.comparison);
    return then;
  }
  if (c.close || !alike || shape.empty()) return explained;

  const verify::ElementComparer comparer(actual.dtype(), expected.dtype(),
                                         verify::rule_of(c, options.tolerance));
  const verify::Agreement agree = agreement_of(c, options.tolerance.nan);
  const Side a(actual), e(expected);
  verify::ValueSearch search({a, e, comparer, agree, naming, grid}, progress);
  const verify::PositionCounts& differing = search.rest().left_at;
  explained.axes = axes_of(naming, differing, &search.rest().zeros_at);
  explained.runs = runs_of(naming, differing);
  explained.no_group = past_groups(actual, expected, naming, explained.axes, options.tolerance);
  if (grid.rows > 0) explained.tiles = tiles_of(shape, differing);
  const std::vector<verify::Sample>& samples = search.rest().samples;
  if (std::all_of(samples.begin(), samples.end(), [](const auto& s) { return s.actual == s.expected; })) {
    explained.not_tried = "anything: the values differ by less than float64 holds";  // large integers
    return explained;
  }
  verify::ValueExplanations found = search.run();
  const auto all = static_cast<double>(search.all());
  for (verify::ValueExplanation& explanation : found.explanations)
    explained.explanations.push_back({std::move(explanation.kind), std::move(explanation.text),
                                      static_cast<double>(explanation.elements) / all});
  if (all > 0) explained.share_explained = (all - static_cast<double>(found.left)) / all;
  if (explained.explanations.empty() && std::ssize(samples) == search.all())
    if (auto factor = factor_of_few(samples, actual.dtype())) {
      explained.explanations = {std::move(*factor)};
      explained.share_explained = 1;
    }
  explained.not_tried = std::move(found.not_tried);
  return explained;
}

std::int64_t explain_bytes(const ArraySource& actual, const ArraySource& expected) {
  const Shape& shape = expected.shape();
  if (actual.shape() != shape &&
      element_count(actual.shape()) == element_count(shape))  // axes permuted, copied
    return explain_bytes(expected, expected) + byte_count(actual.shape(), actual.dtype());
  const std::int64_t compared = compare_bytes(type_of(actual), type_of(expected));
  if (element_count(shape) == 0 || shape.empty()) return compared;
  const Side a(actual), e(expected);
  constexpr std::int64_t kTiles = verify::kPictureCells * verify::kPictureCells * 8;
  // The last pass, and the one before it, whose result is kept.
  return std::max(compared,
                  verify::fitting_bytes(shape) + 2 * verify::pass_bytes(a, e) + (threads() + 2) * kTiles);
}

Report describe(const Explained& explained) {
  Report comparison = describe(explained.comparison);
  const std::string verdict = verify::verdict_of(explained);
  comparison.items.insert(comparison.items.begin(), Line{"verdict", verdict});
  using Outcome = ReportCase::Outcome;
  const bool is_close = explained.comparison.close;
  comparison.cases = {{"", is_close ? Outcome::passed : Outcome::failed, is_close ? "" : verdict}};
  if (explained.no_worse_than) comparison.add(verify::section_of(*explained.no_worse_than));
  if (explained.permuted) {
    const PermutedAxes& p = *explained.permuted;
    const std::string order = fmt::format("{}", fmt::join(p.axes, ", "));
    comparison.add("permuted_axes", "axes in the order", Shape(p.axes))
        .add("permuted_close", "close then", p.comparison.close)
        .add("permuted_differing", "elements that differ then", p.comparison.differing, Unit::count)
        .add(Remark{fmt::format("ACTUAL.transpose({}) {} EXPECTED.", order,
                                p.comparison.close ? "is close to" : "has most elements of")});
  }
  if (explained.axes.empty()) {
    if (!explained.not_tried.empty()) comparison.add("not_tried", "not tried", explained.not_tried);
    verify::keep_brief(comparison, {});
    return comparison;
  }
  // Where and why precede the tables of single elements.
  Report report;
  report.warnings = std::move(comparison.warnings);
  report.cases = std::move(comparison.cases);
  const auto tables =
      std::find_if(comparison.items.begin(), comparison.items.end(),
                   [](const Report::Item& item) { return std::holds_alternative<Table>(item); });
  std::move(comparison.items.begin(), tables, std::back_inserter(report.items));
  report.add(verify::table_of(explained.axes, "where they differ", "wholly different", "wholly 0"));
  if (!explained.runs.empty())
    report.add(
        verify::table_of(explained.runs, "runs", "groups and sequences that differ", "differing", "differ"));
  if (explained.no_group) {
    const NoGroupDifferences& none = *explained.no_group;
    const Comparison& c = none.comparison;
    report.add(verify::no_group_section(none.rows.count(), "differing", c.elements, c.differing,
                                        c.one_sided_nans + c.one_sided_infinities,
                                        c.differing == explained.comparison.differing));
  }
  report.add("share_explained", "accounted for", explained.share_explained, Unit::share);
  report.add(table_of(explained.explanations));
  if (!explained.not_tried.empty()) report.add("not_tried", "not tried", explained.not_tried);
  if (explained.tiles)
    if (auto picture = verify::picture_of(*explained.tiles, explained.axes,
                                          {"nothing differs", "something differs", "everything differs"}))
      report.add(*std::move(picture));
  std::move(tables, comparison.items.end(), std::back_inserter(report.items));
  if (explained.explanations.size() > 1)
    verify::keep_brief(report, {"explanations"});
  else
    verify::keep_brief(report, {});  // the verdict has the cause
  return report;
}

}  // namespace ejk
