// Counts of wrong elements by row and axis. Rows are compared in parallel into counts by row, which one pass
// then sums by axis.
// tests: tests/verdict/test_against.cpp
#include "verdict/against.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <span>

#include "compare/error_stats.hpp"
#include "compare/float_type.hpp"
#include "compare/report_parts.hpp"
#include "compare/where.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/audit.hpp"
#include "ejk/program/text.hpp"

namespace ejk::verify {

namespace {

constexpr std::int64_t kElementsAtOnce = 1 << 15;
constexpr std::size_t kWorst = 5;

Against::Element worst_of(const ResultRows& result, std::int64_t row) {
  Row it(result.columns);
  it.load(result, row);
  const FloatType type = float_type(result.dtype, result.rounded_first);
  WorstElement worst;
  for (std::size_t c = 0; c < it.value.size(); ++c) worst.see(result, type, it, row, c);
  return worst.bounds < 0 ? Against::Element{result.name, {}, 0, 0, 0, 0} : worst.element;
}

// By its name, plural, last word or the initial of that; axes.size(): the columns.
std::optional<std::size_t> axis_of(const ResultRows& result, const std::string& word) {
  const auto is_it = [&](const std::string& name, const std::string& plural) {
    const std::string last = name.substr(name.find_last_of(' ') + 1);
    return word == name || word == plural || word == last || (word.size() == 1 && last.starts_with(word));
  };
  for (std::size_t a = 0; a < result.axes.size(); ++a)
    if (is_it(result.axes[a].name, result.axes[a].plural)) return a;
  if (is_it("column", "columns")) return result.axes.size();
  return std::nullopt;
}

// Elements out of tolerance by tiles of two axes. None if the array lacks an axis or all tiles are alike.
// Cost: an index a row; tiles of columns load rows out of tolerance again.
std::optional<Against::Tiles> picture_of(const ResultRows& result, const RowCounts& counts) {
  if (result.tiles.size() != 2) return std::nullopt;
  const std::size_t of_columns = result.axes.size();
  struct Axis {
    std::size_t axis;
    PictureAxis shown;
    std::int64_t size, cells;
  };
  std::vector<Axis> axes;
  for (const std::string& word : result.tiles) {
    const auto axis = axis_of(result, word);
    if (!axis) return std::nullopt;
    PictureAxis shown{"columns", 1, result.columns};
    if (*axis < of_columns) {
      const RowAxis& of_rows = result.axes[*axis];
      shown = {of_rows.plural, 1, of_rows.length};
      if (shown.name == "queries" || shown.name == "keys") shown.unit = "tokens";
    }
    shown.block = core::ceil_div(std::max<std::int64_t>(shown.length, 1), kPictureCells);
    axes.push_back({*axis, shown, shown.block, core::ceil_div(shown.length, shown.block)});
  }
  struct Cell {
    std::int64_t beyond = 0, all = 0;
  };
  std::vector<Cell> cells(static_cast<std::size_t>(axes[0].cells * axes[1].cells));
  const bool has_columns = axes[0].axis == of_columns || axes[1].axis == of_columns;
  const std::int64_t run = axes[0].axis == of_columns   ? axes[0].size
                           : axes[1].axis == of_columns ? axes[1].size
                                                        : std::max<std::int64_t>(result.columns, 1);
  const FloatType type = float_type(result.dtype, result.rounded_first);
  std::vector<std::int64_t> place(result.axes.size());
  Row it(result.columns);
  for (std::int64_t row = 0; row < result.rows; ++row) {
    result.place(row, place.data());
    if (std::any_of(axes.begin(), axes.end(),
                    [&](const Axis& a) { return a.axis != of_columns && place[a.axis] < 0; }))
      continue;
    const std::int64_t beyond = counts.beyond[static_cast<std::size_t>(row)];
    if (has_columns && beyond > 0) it.load(result, row);
    for (std::int64_t begin = 0; begin < result.columns; begin += run) {
      const std::int64_t end = std::min(result.columns, begin + run);
      const auto cell_of = [&](const Axis& a) {
        return (a.axis == of_columns ? begin : place[a.axis]) / a.size;
      };
      Cell& cell = cells[static_cast<std::size_t>(cell_of(axes[0]) * axes[1].cells + cell_of(axes[1]))];
      cell.all += end - begin;
      if (!has_columns) cell.beyond += beyond;
      for (std::int64_t c = begin; c < end && has_columns && beyond > 0; ++c)
        cell.beyond += !it.result_of(type, static_cast<std::size_t>(c)).right;
    }
  }
  std::vector<std::uint8_t> states;
  for (const Cell& cell : cells) states.push_back(cell.beyond == 0 ? 0 : cell.beyond == cell.all ? 2 : 1);
  auto picture = std::make_shared<const BlockStates>(axes[1].cells, std::move(states));
  if (!has_contrast(*picture)) return std::nullopt;
  return Against::Tiles{result.name, axes[0].shown, axes[1].shown, std::move(picture)};
}

double error_of(const Against::Element& e) {
  return e.allowed > 0 ? e.size / e.allowed : std::numeric_limits<double>::infinity();
}

}  // namespace

std::int64_t RowCounts::bad_rows() const {
  return std::count_if(beyond.begin(), beyond.end(), [](std::uint32_t n) { return n > 0; });
}

std::string ranges_of(const std::vector<bool>& flags, std::size_t most) {
  std::string text;
  std::size_t ranges = 0;
  for (std::size_t begin = 0; begin < flags.size();) {
    if (!flags[begin]) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < flags.size() && flags[end]) ++end;
    if (ranges++ == most) return text + ", ...";
    if (!text.empty()) text += ", ";
    text += end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
    begin = end;
  }
  return text;
}

void require_given(const ArrayView& given, const Shape& shape, const std::string& name,
                   const std::string& subject) {
  if (given.shape != shape)
    throw core::invalid("the given {} has the shape {}, not {}", name, to_string(given.shape),
                        to_string(shape))
        .about(subject);
  if (!is_wide_float(given.dtype))
    throw core::invalid("the given {} is {}, not of a float type of 16 bits or more", name,
                        name_of(given.dtype))
        .about(subject);
}

void require_tiles(std::span<const ResultRows* const> results, const std::vector<std::string>& words) {
  if (words.empty() || results.empty()) return;
  if (words.size() != 2) throw Error(Error::Kind::usage, "a picture of tiles has two axes");
  for (const ResultRows* result : results) {
    const auto row = axis_of(*result, words[0]), column = axis_of(*result, words[1]);
    if (row && column && row != column) return;
  }
  std::vector<std::string> names;
  for (const RowAxis& axis : results[0]->axes) names.push_back(axis.name);
  throw core::usage("a picture of tiles of {} and {}: its axes are two of {}, column", words[0], words[1],
                    fmt::join(names, ", "));
}

namespace {

struct Sum {
  std::int64_t rows = 0, beyond = 0, not_numbers = 0;
  float worst = 0;
};

// The indices of an axis with elements out of tolerance. `sums`: by index; the last one of rows that are on none.
void add_axis(const ResultRows& result, const RowAxis& axis, const std::vector<Sum>& sums, Against& against) {
  const bool is_part = axis.kind == RowAxis::Kind::part;
  against.has_parts = against.has_parts || is_part;
  if (axis.length == 1 && is_part && sums.back().beyond == 0) return;
  if (const Sum& none = sums.back(); none.beyond > 0 && !axis.none.empty())
    against.no_group = {none.rows, none.rows * result.columns, none.beyond, none.not_numbers};
  std::vector<bool> flags(static_cast<std::size_t>(axis.length));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const Sum& sum = sums[i];
    if (sum.beyond == 0) continue;
    if (i < flags.size()) flags[i] = true;
    if (is_part)
      against.parts.push_back({result.name, axis.name,
                               i < flags.size() ? static_cast<std::int64_t>(i) : std::int64_t{-1},
                               sum.rows * result.columns, sum.beyond, static_cast<double>(sum.worst)});
  }
  const std::int64_t count = std::count(flags.begin(), flags.end(), true);
  if (count > 0) against.where.push_back({result.name, axis.plural, ranges_of(flags), count, axis.length});
}

}  // namespace

void judge_beside(ResultRows& result, const std::function<void(std::int64_t row, double* values)>& other,
                  double factor, Against& against, double nanoseconds) {
  struct Most {
    double error = 0, of_other = 0, expected = 0;
    bool is_wrong = false, is_other_wrong = false;  // not finite on one side

    void join(const Most& rest) {
      error = std::max(error, rest.error), of_other = std::max(of_other, rest.of_other);
      expected = std::max(expected, rest.expected);
      is_wrong = is_wrong || rest.is_wrong, is_other_wrong = is_other_wrong || rest.is_other_wrong;
    }
  };
  const FloatType type = float_type(result.dtype, result.rounded_first);
  const std::int64_t at_once =
      std::max<std::int64_t>(1, kElementsAtOnce / std::max<std::int64_t>(1, result.columns));
  Most all;
  std::mutex adding;
  core::parallel_for(core::ceil_div(result.rows, at_once),
                     nanoseconds + 4 * static_cast<double>(result.rows * result.columns),
                     [&](std::int64_t part) {
                       Row it(result.columns);
                       std::vector<double> others(it.value.size());
                       Most most;
                       const std::int64_t end = std::min(result.rows, (part + 1) * at_once);
                       for (std::int64_t row = part * at_once; row < end; ++row) {
                         it.load(result, row);
                         other(row, others.data());
                         for (std::size_t c = 0; c < others.size(); ++c) {
                           const double e = it.expected[c];
                           const double error = evaluate(type, it.value[c], e, 0).size;
                           most.error = std::max(most.error, error);
                           most.is_wrong = most.is_wrong || std::isinf(error);
                           if (!std::isfinite(e)) continue;
                           most.expected = std::max(most.expected, std::abs(e));
                           most.of_other = std::max(most.of_other, std::abs(others[c] - e));
                           most.is_other_wrong = most.is_other_wrong || !std::isfinite(others[c]);
                         }
                       }
                       const std::scoped_lock lock(adding);
                       all.join(most);
                     });
  if (all.is_other_wrong)
    throw core::invalid("its {} is not finite where it should be", result.name).about("other");
  NoWorseThan rule{factor, all.error, all.of_other,
                   NoWorseThan::allowed_by(factor, all.of_other, type.epsilon(), all.expected)};
  if (all.is_wrong) rule.error.reset();
  if (!against.no_worse_than || excess_of(rule) > excess_of(*against.no_worse_than))
    against.no_worse_than = rule;
  result.expected = [bounded = std::move(result.expected), columns = result.columns, allowed = rule.allowed](
                        std::int64_t row, double* values, double* into) {
    bounded(row, values, into);
    std::fill_n(into, columns, allowed);
  };
}

RowCounts compare_rows(const ResultRows& result, Against& against, double nanoseconds,
                       const std::function<void(std::int64_t)>& progress) {
  const auto rows = static_cast<std::size_t>(result.rows);
  const auto columns = static_cast<std::size_t>(result.columns);
  RowCounts counts;
  for (auto* of_rows : {&counts.beyond, &counts.zeros, &counts.not_numbers}) of_rows->resize(rows);
  for (auto* of_columns : {&counts.zero_columns, &counts.not_number_columns}) of_columns->resize(columns);
  std::vector<bool> beyond_columns(columns);
  std::vector<float> worst(rows);  // in bounds
  const FloatType type = float_type(result.dtype, result.rounded_first);
  Against::Compared all{result.name, result.dtype, result.rows * result.columns, 0, 0, 0};
  const std::int64_t at_once =
      std::max<std::int64_t>(1, kElementsAtOnce / std::max<std::int64_t>(1, result.columns));
  std::mutex adding;
  std::int64_t done = 0;
  core::parallel_for(core::ceil_div(result.rows, at_once),
                     nanoseconds + 4 * static_cast<double>(all.elements), [&](std::int64_t part) {
                       Row it(result.columns);
                       std::vector<std::uint8_t> beyond(columns), zeros(columns), not_numbers(columns);
                       std::int64_t nonzero = 0, wide = 0;
                       const std::int64_t end = std::min(result.rows, (part + 1) * at_once);
                       for (std::int64_t row = part * at_once; row < end; ++row) {
                         it.load(result, row);
                         const auto r = static_cast<std::size_t>(row);
                         double most = 0;
                         for (std::size_t c = 0; c < it.value.size(); ++c) {
                           const ElementResult judged = it.result_of(type, c);
                           const double size = std::abs(it.expected[c]);
                           nonzero += size > 0 && std::isfinite(size);
                           wide += size > 0 && std::isfinite(size) && it.allowed[c] > size;
                           most = std::max(most, in_bounds(judged, it.allowed[c]));
                           if (judged.right) continue;
                           ++counts.beyond[r];
                           counts.zeros[r] += it.value[c] == 0;
                           beyond[c] = 1;
                           if (it.value[c] == 0) zeros[c] = 1;
                           if (std::isfinite(it.value[c]) || !std::isfinite(it.expected[c])) continue;
                           ++counts.not_numbers[r];
                           not_numbers[c] = 1;
                         }
                         worst[r] = static_cast<float>(most);
                       }
                       const std::scoped_lock lock(adding);
                       against.nonzero += nonzero;
                       against.wide += wide;
                       for (std::size_t c = 0; c < columns; ++c) {
                         if (beyond[c] != 0) beyond_columns[c] = true;
                         if (zeros[c] != 0) counts.zero_columns[c] = true;
                         if (not_numbers[c] != 0) counts.not_number_columns[c] = true;
                       }
                       if (progress) progress(done += end - part * at_once);
                     });

  const std::size_t axes = result.axes.size();
  std::vector<std::vector<Sum>> sums(axes);
  for (std::size_t a = 0; a < axes; ++a) sums[a].resize(static_cast<std::size_t>(result.axes[a].length) + 1);
  std::vector<std::int64_t> at(axes), order;
  for (std::size_t r = 0; r < rows; ++r) {
    against.largest = std::max(against.largest, static_cast<double>(worst[r]));
    result.place(static_cast<std::int64_t>(r), at.data());
    for (std::size_t a = 0; a < axes; ++a) {
      Sum& sum = at[a] < 0 ? sums[a].back() : sums[a][static_cast<std::size_t>(at[a])];
      ++sum.rows;
      sum.beyond += counts.beyond[r];
      sum.not_numbers += counts.not_numbers[r];
      sum.worst = std::max(sum.worst, worst[r]);
    }
    if (counts.beyond[r] == 0) continue;
    all.beyond += counts.beyond[r];
    all.zeros += counts.zeros[r];
    all.not_numbers += counts.not_numbers[r];
    // A few rows with the largest errors, of equals the first ones.
    const auto place = std::find_if(order.begin(), order.end(), [&](std::int64_t other) {
      return worst[static_cast<std::size_t>(other)] < worst[r];
    });
    order.insert(place, static_cast<std::int64_t>(r));
    if (order.size() > kWorst) order.pop_back();
  }
  for (std::size_t a = 0; a < axes; ++a) add_axis(result, result.axes[a], sums[a], against);
  const std::int64_t count = std::count(beyond_columns.begin(), beyond_columns.end(), true);
  if (!result.column.empty() && count > 0 && count < result.columns)
    against.where.push_back(
        {result.name, result.columns_name, ranges_of(beyond_columns), count, result.columns});
  const bool is_worst = std::all_of(against.arrays.begin(), against.arrays.end(),
                                    [&](const auto& other) { return other.beyond < all.beyond; });
  if (is_worst && all.beyond > 0) against.tiles = picture_of(result, counts);
  against.elements += all.elements;
  against.beyond += all.beyond;
  against.arrays.push_back(all);
  for (const std::int64_t row : order) against.worst.push_back(worst_of(result, row));
  std::stable_sort(against.worst.begin(), against.worst.end(),
                   [](const auto& a, const auto& b) { return error_of(a) > error_of(b); });
  if (against.worst.size() > kWorst) against.worst.resize(kWorst);
  return counts;
}

}  // namespace ejk::verify

namespace ejk {

namespace {

Table table_of(const std::vector<Against::Compared>& arrays) {
  Table table{"arrays",
              "",
              {{"array", "array"},
               {"dtype", "dtype"},
               {"elements", "elements"},
               {"beyond", "beyond"},
               {"beyond_share", "share", Unit::share},
               {"zeros", "of them 0"},
               {"not_numbers", "NaN or infinite"}},
              {}};
  for (const Against::Compared& a : arrays)
    table.rows.push_back({a.name, std::string(name_of(a.dtype)), a.elements, a.beyond,
                          share_of(a.beyond, a.elements), a.zeros, a.not_numbers});
  return table;
}

Table table_of(const std::vector<Against::Part>& parts) {
  Table table{"parts",
              "parts with elements beyond the bound",
              {{"array", "array"},
               {"axis", "axis"},
               {"index", "index"},
               {"elements", "elements"},
               {"beyond", "beyond"},
               {"beyond_share", "share", Unit::share},
               {"worst", "worst, in bounds"}},
              {},
              16};
  for (const Against::Part& p : parts)
    table.rows.push_back({p.array, p.axis, p.index < 0 ? ReportValue() : ReportValue(p.index), p.elements,
                          p.beyond, share_of(p.beyond, p.elements), p.worst});
  return table;
}

Table table_of(const std::vector<Against::Indices>& where) {
  Table table{
      "where",
      "where they are",
      {{"array", "array"}, {"axis", "axis"}, {"count", "count"}, {"length", "of"}, {"indices", "indices"}},
      {}};
  for (const Against::Indices& w : where)
    table.rows.push_back({w.array, w.axis, w.count, w.length, w.indices});
  return table;
}

Table table_of(const std::vector<Against::Element>& worst) {
  Table table{"worst",
              "furthest beyond the bound",
              {{"array", "array"},
               {"difference", "difference"},
               {"allowed", "allowed"},
               {"index", "index"},
               {"value", "given"},
               {"expected", "expected"}},
              {}};
  for (const Against::Element& e : worst)
    table.rows.push_back({e.array, e.size, e.allowed, e.index, e.value, e.expected});
  return table;
}

Table table_of(const std::vector<Against::Explained>& explanations) {
  Table table{"explanations",
              "what accounts for it",
              {{"array", "array"},
               {"kind", "kind"},
               {"share_explained", "share", Unit::share},
               {"fault", "fault", Unit::none, true},
               {"text", "what it is"}},
              {}};
  for (const Against::Explained& e : explanations) {
    const Fault* const fault = fault_named_by(e.text);
    table.rows.push_back({e.array, e.kind, e.share_explained,
                          fault ? ReportValue(std::string(fault->name)) : ReportValue(), e.text});
  }
  return table;
}

Table table_of(const std::vector<Against::Unexplained>& unexplained) {
  Table table{"unexplained",
              "what is left",
              {{"array", "array"},
               {"elements", "elements"},
               {"share", "share", Unit::share},
               {"difference", "the worst by"},
               {"index", "at"},
               {"value", "given"},
               {"expected", "expected"}},
              {}};
  for (const Against::Unexplained& u : unexplained)
    table.rows.push_back(
        {u.array, u.elements, u.share, u.worst.size, u.worst.index, u.worst.value, u.worst.expected});
  return table;
}

// ", in queries 448-511": where an array is wrong, if it is in less than half of an axis. The narrowest one.
std::string place_of(const Against& against, const std::string& array) {
  constexpr std::size_t kLongest = 32;
  const Against::Indices* narrowest = nullptr;
  const auto share = [](const Against::Indices& w) {
    return static_cast<double>(w.count) / static_cast<double>(std::max<std::int64_t>(w.length, 1));
  };
  for (const Against::Indices& where : against.where)
    if (where.array == array && share(where) <= 0.5 && where.indices.size() <= kLongest &&
        (narrowest == nullptr || share(where) < share(*narrowest)))
      narrowest = &where;
  return narrowest ? fmt::format(", in {} {}", narrowest->axis, narrowest->indices) : "";
}

// Why an array is wrong: its first cause, and how many more there are. Empty where nothing was tried.
std::string cause_of(const Against& against, const std::string& array) {
  if (!against.agrees_with.empty()) return "it agrees with " + against.agrees_with;
  std::vector<const Against::Explained*> causes;
  for (const Against::Explained& cause : against.explanations)
    if (cause.array == array) causes.push_back(&cause);
  if (causes.empty())
    return against.tried ? "no usual mistake accounts for it" + place_of(against, array) : "";
  constexpr double kMost = 0.5;
  double share = 0;
  for (const Against::Explained* cause : causes) share += cause->share_explained;
  if (share < kMost) return "no usual mistake accounts for most of it";
  return verify::text_of_causes(*causes[0], causes.size() - 1);
}

// "out is wrong in 97.3 %: the scale is applied twice"
std::string wrong_in(const std::string& names, bool is_one, const std::string& share,
                     const std::string& cause) {
  return fmt::format("{} {} wrong in {}{}{}", names, is_one ? "is" : "are", share, cause.empty() ? "" : ": ",
                     cause);
}

std::vector<ReportCase> cases_of(const Against& against) {
  using Outcome = ReportCase::Outcome;
  std::vector<ReportCase> cases;
  for (const Against::Compared& array : against.arrays) {
    ReportCase& one = cases.emplace_back(ReportCase{array.name, Outcome::passed});
    if (array.beyond == 0) continue;
    one.outcome = Outcome::failed;
    one.size = static_cast<double>(array.beyond) / static_cast<double>(array.elements);
    one.text = wrong_in(array.name, true, to_text(one.size, Unit::share), cause_of(against, array.name));
  }
  for (const std::string& name : against.not_given) cases.push_back({name, Outcome::skipped, "not compared"});
  return cases;
}

// "out and lse are wrong in 97.3 % and 100 %: the scale is applied twice; not compared: dq".
std::string verdict_of(const Against& against) {
  struct Group {
    std::vector<std::string> names, shares;
    std::string cause;
  };
  std::vector<Group> wrong;
  Group right;
  for (const Against::Compared& array : against.arrays) {
    if (array.beyond == 0) {
      right.names.push_back(array.name);
      continue;
    }
    const std::string cause = cause_of(against, array.name);
    if (wrong.empty() || wrong.back().cause != cause) wrong.push_back({{}, {}, cause});
    wrong.back().names.push_back(array.name);
    wrong.back().shares.push_back(to_text(share_of(array.beyond, array.elements), Unit::share));
  }
  const auto listed = [](const std::vector<std::string>& all) {
    const std::size_t n = all.size();
    const std::string first = fmt::format("{}", fmt::join(all.begin(), all.end() - (n > 1 ? 1 : 0), ", "));
    return n > 1 ? first + " and " + all.back() : first;
  };
  std::vector<std::string> parts;
  for (const Group& group : wrong) {
    const bool is_one =
        std::count(group.shares.begin(), group.shares.end(), group.shares[0]) == std::ssize(group.shares);
    parts.push_back(wrong_in(listed(group.names), group.names.size() == 1,
                             is_one ? group.shares[0] : listed(group.shares), group.cause));
  }
  if (!right.names.empty())
    parts.push_back(fmt::format("{} {} right{}", listed(right.names), right.names.size() > 1 ? "are" : "is",
                                !wrong.empty() ? ""
                                : against.no_worse_than
                                    ? fmt::format(", within {:.2g} of what is allowed", against.largest)
                                    : fmt::format(", within {:.2g} of the error bound", against.largest)));
  if (!against.not_given.empty()) parts.push_back("not compared: " + listed(against.not_given));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

Report describe(const Against& against) {
  Report report;
  report.add(Line{"verdict", verdict_of(against)});
  report.cases = cases_of(against);
  report.add("agrees", "within the error bound", against.agrees())
      .add("method", "every element compared with",
           std::string(against.method == Against::Method::float64 ? "float64" : "the own result"))
      .add("elements", "elements", against.elements, Unit::count)
      .add("beyond", "beyond the bound", against.beyond, Unit::count)
      .add("beyond_share", "share of those", share_of(against.beyond, against.elements), Unit::share)
      .add("largest", "largest error, in bounds", against.largest);
  if (against.no_worse_than) report.add(verify::section_of(*against.no_worse_than));
  if (!against.agrees_with.empty()) report.add("agrees_with", "it agrees with", against.agrees_with);
  if (against.proves_little())
    report.warnings.push_back(fmt::format(
        "{} of {} elements may differ by more than they are, as inputs hold values so large: this proves little",
        format_count(against.wide), format_count(against.nonzero)));
  if (against.has_equal_scores())
    report.warnings.push_back(fmt::format(
        "two scores of a query differ by {:.2g} at most: such inputs hardly test the scale and the keys",
        *against.score_range));
  if (against.score_range)
    report.add("score_range", "scores of a query differ by, at most", *against.score_range);
  const auto add_names = [&](const char* key, const char* title, const std::vector<std::string>& names) {
    if (!names.empty()) report.add(key, title, fmt::format("{}", fmt::join(names, ", ")));
  };
  if (!against.not_given.empty() || !against.not_compared.empty()) {
    std::vector<std::string> names;
    for (const Against::Compared& array : against.arrays) names.push_back(array.name);
    add_names("compared", "compared", names);
  }
  add_names("not_given", "not given, not compared", against.not_given);
  add_names("not_compared", "no results, not compared", against.not_compared);
  if (against.no_group) {
    const Against::NoGroup& none = *against.no_group;
    report.add(verify::no_group_section(none.rows, "beyond", none.elements, none.beyond, none.not_numbers,
                                        against.groups_agree()));
  }
  if (against.tried) {
    report.add(table_of(against.explanations)).add(table_of(against.unexplained));
    if (against.counted_rows < against.wrong_rows)
      report.add(Remark{fmt::format("Shares are estimates: they were counted on {} of {} rows.",
                                    format_count(against.counted_rows), format_count(against.wrong_rows))});
  }
  report.add(table_of(against.where)).add(table_of(against.worst));
  if (against.tiles) {
    const Against::Tiles& t = *against.tiles;
    BlockPicture picture{"tiles",
                         fmt::format("{}: tiles of {} x {} ({} down, {} across)", t.array, t.row_axis.block,
                                     t.column_axis.block, t.row_axis.name, t.column_axis.name),
                         t.states};
    picture.state_names = {"nothing beyond the bound", "something", "everything"};
    picture.block_name = "tile";
    picture.row_axis = t.row_axis, picture.column_axis = t.column_axis;
    report.add(std::move(picture));
  }
  report.add(table_of(against.arrays));
  if (against.has_parts) report.add(table_of(against.parts));
  // The verdict has the cause where there is only one.
  const bool is_in_verdict =
      against.unexplained.empty() &&
      std::all_of(against.explanations.begin(), against.explanations.end(),
                  [&](const auto& cause) { return cause.text == against.explanations[0].text; });
  if (is_in_verdict)
    verify::keep_brief(report, {});
  else
    verify::keep_brief(report, {"explanations", "unexplained"});
  return report;
}

}  // namespace ejk
