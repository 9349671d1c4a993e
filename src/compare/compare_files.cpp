// Pairs of arrays by name, and their report. Types are read when pairs are planned, so that errors come
// before elements are read. Cost: each array is opened twice.
// tests: tests/compare/test_compare_files.cpp, tests/cli/compare/
#include "ejk/program/compare_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "compare/exchanged_arrays.hpp"
#include "compare/report_parts.hpp"
#include "core/require.hpp"
#include "ejk/error.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

using Source = std::shared_ptr<const ArraySource>;

// The name in the other set, by the first map that matches, which is added to `used`.
std::string mapped_name(const std::string& name, const std::vector<NameMap>& maps,
                        std::set<const NameMap*>& used) {
  for (const NameMap& map : maps)
    if (auto other = map(name)) {
      used.insert(&map);
      return *std::move(other);
    }
  return name;
}

ArrayPair single_pair(const ArraySet& actual, const ArraySet& expected) {
  for (const auto& [set, other] : {std::pair{&actual, &expected}, std::pair{&expected, &actual}})
    if (set->arrays.size() != 1)
      throw core::invalid("{} holds {} arrays, and {} is one", printable(set->name), set->arrays.size(),
                          printable(other->name))
          .hint(set->arrays.empty()
                    ? "there is nothing to compare"
                    : fmt::format("name one of them, as in {}", printable(set->arrays[0].reference)));
  const ArraySet::Member &a = actual.arrays[0], &e = expected.arrays[0];
  ArrayPair pair{a.name, e.name};
  pair.open_actual = a.open, pair.open_expected = e.open;
  pair.actual_element = a.element, pair.expected_element = e.element;
  return pair;
}

// The array of another implementation that belongs to a pair.
std::function<Source()> reference_of(const ArrayPair& pair, const ArraySet& set, bool by_name) {
  for (const ArraySet::Member& array : set.arrays)
    if (array.name == pair.expected_name || array.name == pair.name || (!by_name && set.arrays.size() == 1))
      return array.open;
  throw core::invalid("{}: holds no array '{}'", printable(set.name), printable(pair.expected_name));
}

std::vector<ArrayPair> pairs_by_name(const ArraySet& actual, const ArraySet& expected,
                                     const std::vector<NameMap>& maps) {
  const auto invalid = [](std::string why) {
    return std::move(Error(Error::Kind::usage, std::move(why)).about("maps"));
  };
  std::map<std::string, ArrayPair> pairs;  // by the name in `expected`
  std::set<const NameMap*> used;
  for (const ArraySet::Member& array : actual.arrays) {
    ArrayPair& pair = pairs[mapped_name(array.name, maps, used)];
    if (pair.open_actual)
      throw invalid(fmt::format("{} and {} both become {}", printable(pair.name), printable(array.name),
                                printable(mapped_name(array.name, maps, used))));
    pair.name = array.name, pair.open_actual = array.open, pair.actual_element = array.element;
    pair.why = "only in " + printable(actual.name);
  }
  for (const NameMap& map : maps)
    if (!used.contains(&map)) {
      Error error =
          invalid(fmt::format("no array of {} is called {}", printable(actual.name), printable(map.left())));
      if (!actual.arrays.empty())
        error.hint(fmt::format("one is called {}", printable(actual.arrays[0].name)));
      throw std::move(error);
    }
  for (const ArraySet::Member& array : expected.arrays) {
    ArrayPair& pair = pairs[array.name];
    pair.expected_name = array.name, pair.open_expected = array.open, pair.expected_element = array.element;
    pair.why = pair.open_actual ? "" : "only in " + printable(expected.name);
    if (!pair.open_actual) pair.name = array.name;
  }
  std::vector<ArrayPair> all;
  if (maps.empty() && actual.arrays.size() == 1 && expected.arrays.size() == 1 && pairs.size() == 2)
    return {single_pair(actual, expected)};  // of different names
  for (auto& [name, pair] : pairs) all.push_back(std::move(pair));
  return all;
}

// Positions of names in a file; nothing where its arrays of each dtype are merely sorted by name.
using Positions = std::map<std::string, std::size_t>;
std::optional<Positions> own_order(const ArraySet& set, const std::map<std::string, DType>& dtypes) {
  Positions positions;
  bool is_sorted = true;
  const std::string* before = nullptr;
  for (const ArraySet::Member& array : set.arrays) {
    positions.emplace(array.name, positions.size());
    const auto dtype = dtypes.find(array.name);
    if (dtype == dtypes.end()) continue;
    if (before != nullptr && array.name < *before && dtypes.at(*before) == dtype->second) is_sorted = false;
    before = &array.name;
  }
  if (is_sorted) return std::nullopt;
  return positions;
}

// Sorts pairs in the order of layers; returns the file that has it, empty for that of names.
std::string sort_in_layers(const ArraySet& actual, const ArraySet& expected, std::vector<ArrayPair>& pairs) {
  const auto links = std::stable_partition(pairs.begin(), pairs.end(),
                                           [](const ArrayPair& pair) { return !pair.is_link(); });
  std::stable_sort(pairs.begin(), links,
                   [](const ArrayPair& x, const ArrayPair& y) { return natural_less(x.name, y.name); });
  std::map<std::string, DType> of_actual, of_expected;
  for (const ArrayPair& pair : pairs)
    if (pair.why.empty())
      of_actual[pair.name] = pair.actual.dtype, of_expected[pair.expected_name] = pair.expected.dtype;
  std::string ArrayPair::*name = &ArrayPair::expected_name;
  auto positions = own_order(expected, of_expected);
  const ArraySet* set = &expected;
  if (!positions) {
    positions = own_order(actual, of_actual);
    name = &ArrayPair::name, set = &actual;
  }
  if (!positions) return "";
  std::stable_sort(pairs.begin(), links, [&](const ArrayPair& x, const ArrayPair& y) {
    const auto position = [&](const ArrayPair& pair) {
      const auto found = positions->find(pair.*name);
      return found == positions->end() ? positions->size() : found->second;
    };
    return position(x) < position(y);
  });
  return set->name;
}

// A link on one side only is no difference. Links with one outside target are compared where they are
// followed.
void add_different_links(const ArraySet& actual, const ArraySet& expected, bool follow,
                         std::vector<ArrayPair>& pairs) {
  for (const auto& [name, a] : actual.links) {
    const auto found = expected.links.find(name);
    if (found == expected.links.end()) continue;
    const ArraySet::Link& e = found->second;
    const bool same_target = a.target == e.target, outside = a.is_outside || e.is_outside;
    if (a.resolved == e.resolved || (same_target && outside && follow)) continue;
    pairs.push_back({name, name,
                     fmt::format("{}a link to {} against one to {}", outside ? "not followed: " : "",
                                 printable(same_target ? a.resolved : a.target),
                                 printable(same_target ? e.resolved : e.target))});
  }
}

// In memory, where exchanges are searched for; unchanged where it exceeds `spare`.
Source at_hand(const Source& source, std::int64_t spare) {
  const bool is_at_hand = source->mapped() && source->mapped()->is_c_contiguous();
  return is_at_hand || type_of(*source).bytes() > spare ? source
                                                        : make_source(read_all(*source), source->name());
}

bool is_default(const Tolerance& t) {
  return t.library.empty() && !t.rtol && !t.atol && !t.max_ulp && !t.metric && t.allowed_count == 0 &&
         t.allowed_share == 0;
}

// Half a step of normal elements, and of the smallest ones in blocks whose largest element is 6 times the root
// mean square: 3 times in most blocks of weights, and a scale that is a power of two is up to twice as large.
Tolerance rounding_of(ElementFormat element, double rms) {
  struct Row {
    double relative, smallest;  // half a step; the smallest one over the largest element
  };
  const auto [relative, smallest] = [&]() -> Row {
    switch (element) {
      case ElementFormat::e2m1:
        return {0.25, 0.25 / 6};
      case ElementFormat::e2m3:
        return {0.0625, 0.0625 / 7.5};
      case ElementFormat::e3m2:
        return {0.125, 0.03125 / 28};
      case ElementFormat::e5m2:
        return {0.125, 0x1p-17 / 57344};
      case ElementFormat::e4m3:
        break;
    }
    return {0.0625, 0x1p-10 / 448};
  }();
  Tolerance tolerance;
  tolerance.rtol = relative;
  tolerance.atol = 6 * smallest * rms;
  return tolerance;
}

// Of numbers beside the same ones quantised the signal to noise decides.
Comparison compare_pair(const ArrayPair& pair, const ArraySource& a, const ArraySource& e,
                        const Tolerance& tolerance,
                        const std::function<void(std::int64_t, std::int64_t)>& counted) {
  const auto element = pair.rounded_to();
  if (!element || !is_default(tolerance)) return compare_arrays(a, e, tolerance, counted);
  Tolerance by_snr = tolerance;
  by_snr.metric = MetricLimit{Metric::snr, quantization_snr(*element)};
  return compare_arrays(a, e, by_snr, counted);
}

// Of numbers beside the same ones quantised explanations hold within the rounding of elements.
Explained explain_pair(const ArrayPair& pair, const ArraySource& a, const ArraySource& e,
                       const ExplainOptions& options,
                       const std::function<void(std::int64_t, std::int64_t)>& counted) {
  const auto element = pair.rounded_to();
  if (!element || !is_default(options.tolerance)) return explain_difference(a, e, options, counted);
  Explained found;
  found.comparison = compare_pair(pair, a, e, options.tolerance, counted);
  const Comparison& c = found.comparison;
  if (c.close || !c.same_shape() || !c.rms || !c.snr) return found;
  ExplainOptions within = options;
  within.tolerance = rounding_of(*element, *c.rms * std::pow(10, *c.snr / 20));
  within.tolerance.nan = options.tolerance.nan;
  Explained explained = explain_difference(a, e, within, counted);
  explained.comparison.close = false;
  explained.comparison.failed = c.failed;
  return explained;
}

// The moves among those that resemble another array which are within the tolerance.
std::vector<ArrayMove> close_moves(const FilesComparison& files, const Tolerance& tolerance) {
  std::vector<bool> differing;
  for (std::size_t p = 0; p < files.pairs.size(); ++p) {
    const Comparison& c = files.found[p].comparison;
    differing.push_back(files.pairs[p].why.empty() && !c.close && c.same_shape());
  }
  std::vector<ArrayMove> moves = verify::resembling_arrays(files.pairs, differing);
  std::erase_if(moves, [&](const ArrayMove& move) {
    ArrayPair pair = files.pairs[move.pair];
    pair.open_expected = files.pairs[move.from].open_expected;
    pair.expected_element = files.pairs[move.from].expected_element;
    return !compare_pair(pair, *pair.open_actual(), *pair.open_expected(), tolerance, {}).close;
  });
  return moves;
}

std::string dtypes_of(const Comparison& c) {
  return fmt::format("{} against {}", name_of(c.actual_dtype), name_of(c.expected_dtype));
}

// Of decoded arrays the decibels are shown in place of elements that differ.
Table pairs_table(bool decoded) {
  Table table{"arrays",
              "",
              {{"array", "array"},
               {"actual_dtype", "dtype", Unit::none, true},
               {"expected_dtype", "dtype, expected", Unit::none, true},
               {"close", "close", Unit::none, true},
               {"rtol", "rtol", Unit::none, true},
               {"atol", "atol", Unit::none, true},
               {"elements", "elements", Unit::none, true},
               {"differing", "differ", Unit::none, decoded},
               {"differing_share", "share", Unit::share, decoded},
               {"max_difference", "by up to"},
               {"max_index", "at", Unit::none, decoded},
               {"max_relative", "relative", Unit::none, true},
               {"max_ulps", "ulps", Unit::none, true},
               {"rms", "root mean square", Unit::none, true},
               {"cosine", "cosine", Unit::none, true},
               {"snr", "dB", Unit::none, !decoded},
               {"rel", "rel", Unit::none, true},
               {"one_sided_nans", "NaN", Unit::none, true},
               {"one_sided_infinities", "infinite", Unit::none, true},
               {"why", "why"}},
              {},
              64};
  if (decoded) table.columns.insert(table.columns.begin() + 1, {"element", "element", Unit::none, true});
  return table;
}

std::string format_of(const ArrayPair& pair) {
  const auto element = pair.actual_element ? pair.actual_element : pair.expected_element;
  return element ? std::string(name_of(*element)) : std::string();
}

bool is_any_decoded(const std::vector<ArrayPair>& pairs) {
  return std::any_of(pairs.begin(), pairs.end(),
                     [](const ArrayPair& pair) { return pair.actual_element || pair.expected_element; });
}

std::string why_of(const ArrayPair& pair, const Comparison& c) {
  if (!pair.why.empty()) return pair.why;
  if (!c.same_shape())
    return fmt::format("{} against {}", to_string(c.actual_shape), to_string(c.expected_shape));
  std::vector<std::string> why;
  if (c.actual_dtype != c.expected_dtype && format_of(pair).empty()) why.push_back(dtypes_of(c));
  if (c.one_sided_nans > 0) why.push_back(fmt::format("NaN on one side: {}", c.one_sided_nans));
  if (c.one_sided_infinities > 0) {
    const std::int64_t opposite = c.opposite_infinities, one_side = c.one_sided_infinities - opposite;
    std::vector<std::string> kinds;
    if (one_side > 0) kinds.push_back(fmt::format("infinite on one side: {}", one_side));
    if (opposite > 0) kinds.push_back(fmt::format("infinite, signs differ: {}", opposite));
    why.push_back(
        fmt::format("{}, first {}", fmt::join(kinds, "; "), to_string(*c.first_one_sided_infinity)));
  }
  if (c.conditions > 1 && !c.failed.empty())
    why.push_back(fmt::format("failed: {}", fmt::join(c.failed, ", ")));
  return fmt::format("{}", fmt::join(why, "; "));
}

// The largest difference, unless it is 0 and others, of NaN or infinities, are those that count.
const std::optional<Difference>& largest_of(const Comparison& c) {
  static const std::optional<Difference> kNone;
  return c.largest_absolute && c.largest_absolute->amount == 0 && c.differing > 0 ? kNone
                                                                                  : c.largest_absolute;
}

std::vector<ReportValue> row_of(const ArrayPair& pair, const Comparison& c, bool decoded) {
  const bool opened = pair.why.empty(), compared = opened && c.same_shape();
  const auto where = [](bool there, auto value) { return there ? ReportValue(value) : ReportValue(); };
  const auto amount = [](const std::optional<Difference>& d) {
    return d ? ReportValue(d->amount) : ReportValue();
  };
  const std::string why = why_of(pair, c), format = format_of(pair);
  const std::optional<Difference>& largest = largest_of(c);
  std::vector<ReportValue> row{printable(pair.name),
                               where(opened, std::string(name_of(c.actual_dtype))),
                               where(opened, std::string(name_of(c.expected_dtype))),
                               c.close,
                               where(opened, c.rtol),
                               where(opened, c.atol),
                               where(compared, c.elements),
                               where(compared, c.differing),
                               share_of(c.differing, c.elements),
                               amount(largest),
                               largest ? ReportValue(largest->index) : ReportValue(),
                               amount(c.largest_relative),
                               amount(c.largest_ulps),
                               verify::value_or_null(c.rms),
                               verify::value_or_null(c.cosine),
                               verify::value_or_null(c.snr),
                               verify::value_or_null(c.rel),
                               where(compared, c.one_sided_nans),
                               where(compared, c.one_sided_infinities),
                               where(!why.empty(), why)};
  if (decoded) row.insert(row.begin() + 1, where(!format.empty(), format));
  return row;
}

// Decoded arrays whose names differ in numbers only, a row.
Table patterns_table(const FilesComparison& files) {
  struct Pattern {
    std::string name, element;  // the first
    std::int64_t arrays = 0, differing = 0;
    std::vector<double> snr;
  };
  std::map<std::string, Pattern> patterns;
  for (std::size_t p = 0; p < files.pairs.size(); ++p) {
    const ArrayPair& pair = files.pairs[p];
    const std::string element = format_of(pair);
    if (element.empty()) continue;
    Pattern& pattern = patterns[name_pattern(pair.name)];
    if (pattern.arrays++ == 0) pattern.name = pair.name, pattern.element = element;
    const Comparison& c = files.found[p].comparison;
    pattern.differing += !c.close;
    if (c.snr) pattern.snr.push_back(*c.snr);
  }
  Table table{"patterns",
              "",
              {{"pattern", "decoded"},
               {"element", "element", Unit::none, true},
               {"arrays", "arrays", Unit::count},
               {"differing", "differ", Unit::count},
               {"least_snr", "least dB"},
               {"median_snr", "median dB"}},
              {}};
  for (auto& one : patterns) {
    Pattern& pattern = one.second;
    std::sort(pattern.snr.begin(), pattern.snr.end());
    const auto at = [&](std::size_t place) {
      return pattern.snr.empty() ? ReportValue() : verify::value_or_null(std::optional(pattern.snr[place]));
    };
    table.rows.push_back({printable(pattern.arrays == 1 ? pattern.name : one.first), pattern.element,
                          pattern.arrays, pattern.differing, at(0), at(pattern.snr.size() / 2)});
  }
  return table;
}

// "2 of 12 arrays differ, the first layer.0.out: 50 % of the elements differ, ...; 1 is only in ACTUAL".
std::string verdict_of(const FilesComparison& files) {
  std::int64_t compared = 0, differing = 0, only_actual = 0, only_expected = 0, others = 0;
  std::string first;
  for (std::size_t p = 0; p < files.pairs.size(); ++p) {
    const ArrayPair& pair = files.pairs[p];
    if (!pair.why.empty()) {
      ++(pair.is_link() || (pair.open_actual && pair.open_expected) ? others
         : pair.open_actual                                         ? only_actual
                                                                    : only_expected);
      continue;
    }
    ++compared;
    if (files.found[p].comparison.close) continue;
    if (differing++ == 0)
      first = fmt::format("{}: {}", printable(pair.name), verify::verdict_of(files.found[p]));
  }
  std::vector<std::string> parts;
  if (differing == 0 && compared > 0)
    parts.push_back(compared == 1 ? "the array is close"
                                  : fmt::format("all {} arrays are close", format_count(compared)));
  if (differing > 0)
    parts.push_back(fmt::format("{} of {} array{} differ{}{} {}", format_count(differing),
                                format_count(compared), compared == 1 ? "" : "s", differing == 1 ? "s" : "",
                                differing == 1 ? "," : ", the first", first));
  const auto add = [&](std::int64_t count, const char* what) {
    if (count > 0)
      parts.push_back(fmt::format("{} {} {}", format_count(count), count == 1 ? "is" : "are", what));
  };
  add(only_actual, "only in ACTUAL");
  add(only_expected, "only in EXPECTED");
  add(others, "not compared");
  return fmt::format("{}", fmt::join(parts, "; "));
}

ReportCase case_of(const ArrayPair& pair, const Explained& found) {
  if (found.comparison.close) return {printable(pair.name), ReportCase::Outcome::passed};
  const std::optional<Difference>& largest = found.comparison.largest_absolute;
  return {printable(pair.name), ReportCase::Outcome::failed,
          pair.why.empty() ? verify::verdict_of(found) : pair.why,
          largest ? largest->amount : std::numeric_limits<double>::infinity()};
}

Report summary_of(const FilesComparison& files) {
  std::int64_t arrays = 0, differing = 0, only_actual = 0, only_expected = 0, links = 0, elements = 0,
               zeros = 0;
  const Difference* worst = nullptr;
  const ArrayPair* of_worst = nullptr;
  const Explained* of_rule = nullptr;  // the array that is the worst by NoWorseThan
  std::vector<std::string> dtypes;
  std::vector<PassRule> rules;
  Report report;
  report.add(Line{"verdict", verdict_of(files)});
  for (std::size_t p = 0; p < files.pairs.size(); ++p) {
    const ArrayPair& pair = files.pairs[p];
    const Comparison& c = files.found[p].comparison;
    if (pair.is_link()) {
      ++links;
      continue;
    }
    ++arrays;
    report.cases.push_back(case_of(pair, files.found[p]));
    if (const auto& rule = files.found[p].no_worse_than)
      if (of_rule == nullptr || verify::excess_of(*rule) > verify::excess_of(*of_rule->no_worse_than))
        of_rule = &files.found[p];
    if (c.rule) rules.push_back(*c.rule);
    differing += !c.close;
    only_expected += !pair.open_actual, only_actual += !pair.open_expected;
    elements += c.elements;
    zeros += proves_little(c) ? c.both_zero : 0;
    if (!files.found[p].not_tried.empty())
      report.warnings.push_back(
          fmt::format("{}: not tried: {}", printable(pair.name), files.found[p].not_tried));
    if (pair.why.empty() && c.actual_dtype != c.expected_dtype && format_of(pair).empty())
      dtypes.push_back(fmt::format("{} ({})", printable(pair.name), dtypes_of(c)));
    const std::optional<Difference>& largest = largest_of(c);
    if (largest && (worst == nullptr || largest->amount > worst->amount)) worst = &*largest, of_worst = &pair;
  }
  report.add("close", "close", differing == 0 && links == 0)
      .add("arrays_count", "arrays", arrays, Unit::count)
      .add("differing_arrays", "that differ", differing, Unit::count)
      .add("only_in_actual", "only in the first", only_actual, Unit::count)
      .add("only_in_expected", "only in the second", only_expected, Unit::count);
  if (links > 0) report.add("differing_links", "links that differ", links, Unit::count);
  report.add("max_difference", "largest difference", worst ? ReportValue(worst->amount) : ReportValue())
      .add("max_array", "in", worst ? ReportValue(printable(of_worst->name)) : ReportValue())
      .add("max_index", "at", worst ? ReportValue(worst->index) : ReportValue());
  if (constexpr std::size_t kNamed = 4; dtypes.size() > kNamed) {
    const std::size_t more = dtypes.size() - kNamed;
    dtypes.resize(kNamed);
    dtypes.push_back(fmt::format("and {} more", more));
  }
  if (of_rule != nullptr) report.add(verify::section_of(*of_rule->no_worse_than));
  if (!rules.empty()) report.add(verify::section_of(rules));
  if (!dtypes.empty())
    report.warnings.push_back(fmt::format("the dtypes differ: {}", fmt::join(dtypes, ", ")));
  if (elements > 0 && zeros / 9 >= elements - zeros)
    report.warnings.emplace_back("nearly all elements are 0 on both sides: the comparison proves little");
  return report;
}

// Which arrays nothing accounts for.
void add_unexplained(const FilesComparison& files, Report& report) {
  constexpr std::size_t kNamed = 4;
  std::vector<std::string> names;
  std::size_t unexplained = 0;
  for (std::size_t p = 0; p < files.pairs.size(); ++p) {
    const Explained& found = files.found[p];
    if (found.axes.empty() || !found.explanations.empty()) continue;
    if (unexplained++ < kNamed) names.push_back(printable(files.pairs[p].name));
  }
  if (unexplained == 0) return;
  const std::string more = unexplained > kNamed ? fmt::format(" and {} more", unexplained - kNamed) : "";
  report.add(Remark{fmt::format("Nothing that was tried accounts for the differences of {}{}.",
                                fmt::join(names, ", "), more)});
}

// Tables of the explanations of all pairs, each row with the name of its array in front.
void add_explanations(const FilesComparison& files, Report& report) {
  for (const char* const key : {"axes", "explanations"}) {
    Table all;
    for (std::size_t p = 0; p < files.pairs.size(); ++p) {
      if (files.found[p].axes.empty()) continue;
      Report described = describe(files.found[p]);
      described.move_to_details();
      for (const Report::Item& item : described.details) {
        const auto* const table = std::get_if<Table>(&item);
        if (table == nullptr || table->key != key) continue;
        if (all.columns.empty()) {
          all = {table->key, table->title, table->columns, {}};
          all.columns.insert(all.columns.begin(), {"array", "array"});
        }
        for (std::vector<ReportValue> row : table->rows) {
          row.insert(row.begin(), printable(files.pairs[p].name));
          all.rows.push_back(std::move(row));
        }
      }
    }
    if (!all.columns.empty()) report.add(std::move(all));
  }
}

// A section about one layer; null where there is none.
void add_layer(Report& report, const char* key, const char* title, const std::vector<const ArrayPair*>& pairs,
               const std::vector<Comparison>& in_order, const LayerErrors& errors,
               const std::optional<std::size_t>& which) {
  if (!which) {
    report.add(key, title, {});
    return;
  }
  const auto& largest = in_order[*which].largest_absolute;
  Report one;
  one.add("name", "array", printable(pairs[*which]->name))
      .add("max_difference", "largest difference", largest ? ReportValue(largest->amount) : ReportValue())
      .add("max_index", "at", largest ? ReportValue(largest->index) : ReportValue())
      .add("rel", "rel", verify::value_or_null(errors.layers[*which].rel))
      .add("added", "adds", verify::value_or_null(errors.layers[*which].added));
  report.add(Section{key, title, std::make_shared<Report>(std::move(one))});
}

}  // namespace

double quantization_snr(ElementFormat element) {
  // Of rounding alone it is 7 dB and 6 for each bit of the significand.
  return std::round(3 - 6 * std::log2(rounding_of(element, 0).rtol.value_or(0)));
}

FilesPlan::FilesPlan(const ArraySet& actual, const ArraySet& expected, FilesOptions options)
    : options_(std::move(options)) {
  const bool by_name = actual.is_whole && expected.is_whole;
  pairs_ =
      by_name ? pairs_by_name(actual, expected, options_.maps) : std::vector{single_pair(actual, expected)};
  if (by_name) add_different_links(actual, expected, options_.follow_links, pairs_);
  for (ArrayPair& pair : pairs_) {
    if (!pair.why.empty()) continue;
    try {
      const Source a = pair.open_actual(), e = pair.open_expected();
      pair.actual = type_of(*a), pair.expected = type_of(*e);
      if (options_.explain) peak_ = std::max(peak_, explain_bytes(*a, *e));
    } catch (const Error& error) {
      const bool is_decoded = pair.actual_element || pair.expected_element;
      if (!by_name || !(is_decoded || error.is_of_unsupported_type())) throw;
      pair.why = "not compared: " + error.message();  // whether both are equal is unknown
      continue;
    }
    if (options_.reference) pair.open_reference = reference_of(pair, *options_.reference, by_name);
    if (pair.actual.shape != pair.expected.shape) continue;
    peak_ = std::max(peak_, compare_bytes(pair.actual, pair.expected));
    bytes_ += pair.actual.bytes() + pair.expected.bytes();
    elements_ += element_count(pair.actual.shape);
  }
  if (options_.explain) peak_ += verify::resemblance_bytes(pairs_);
  if (options_.in_layers) order_of_ = sort_in_layers(actual, expected, pairs_);
}

FilesComparison FilesPlan::run(const ExplainOptions& options, std::int64_t spare,
                               const std::function<void(std::int64_t, std::int64_t)>& progress) const {
  FilesComparison files{pairs_, {}, true, order_of_};
  std::int64_t before = 0;
  const auto counted = [&](std::int64_t done, std::int64_t) {
    if (progress) progress(before + done, elements_);
  };
  const auto judged = [&](const ArrayPair& pair, Explained one) {
    Comparison& c = one.comparison;
    if (!pair.open_reference || !c.same_shape()) return one;
    one.no_worse_than = no_worse_than(c, *pair.open_expected(), *pair.open_reference(), options_.factor);
    c.by_size = false;  // nor is there a tolerance that a constant might be within
    c.constant_that_passes.reset();
    c.close = one.no_worse_than->passes();
    c.failed = c.close ? std::vector<std::string>() : std::vector<std::string>{"no-worse-than"};
    return one;
  };
  const auto compared = [&](const ArrayPair& pair) {
    Explained one;
    one.comparison =
        compare_pair(pair, *pair.open_actual(), *pair.open_expected(), options.tolerance, counted);
    return one;
  };
  const auto explained = [&](const ArrayPair& pair) {
    return judged(pair, explain_pair(pair, *at_hand(pair.open_actual(), spare),
                                     *at_hand(pair.open_expected(), spare), options, counted));
  };
  const bool is_alone = pairs_.size() == 1;
  for (const ArrayPair& pair : pairs_) {
    Explained& found = files.found.emplace_back();
    if (pair.why.empty()) {
      if (options_.explain && is_alone)
        found = explained(pair);
      else
        found = judged(pair, compared(pair));
      before += found.comparison.elements;
    }
    files.close = files.close && found.comparison.close;
  }
  if (!options_.explain || is_alone || files.close) return files;
  files.moves = close_moves(files, options.tolerance);
  std::vector<bool> is_moved(pairs_.size());
  for (const ArrayMove& move : files.moves) is_moved[move.pair] = true;
  before = 0;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Explained& found = files.found[p];
    if (pairs_[p].why.empty() && !found.comparison.close && !is_moved[p]) found = explained(pairs_[p]);
    before += found.comparison.elements;
  }
  return files;
}

void explain_decoded(ArrayPair pair, ElementFormat element, const ExplainOptions& options, std::int64_t spare,
                     Explained& found) {
  if (pair.rounded_to() || found.axes.empty() || !found.explanations.empty() ||
      !is_default(options.tolerance))
    return;
  pair.actual_element = element;
  Explained within = explain_pair(pair, *at_hand(pair.open_actual(), spare),
                                  *at_hand(pair.open_expected(), spare), options, {});
  if (within.comparison.close) {
    found.explanations = {{"rounding", fmt::format("rounded to {} with scales", name_of(element)), 1}};
    found.share_explained = 1;
    return;
  }
  if (within.explanations.empty()) return;
  for (Explanation& one : within.explanations)
    one.text += fmt::format(", within the rounding of {}", name_of(element));
  within.comparison = std::move(found.comparison);
  found = std::move(within);
}

Report describe(const FilesComparison& files, ListedPairs listed) {
  Report report = summary_of(files);
  const bool decoded = is_any_decoded(files.pairs);
  std::vector<std::size_t> order(files.pairs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (decoded && listed == ListedPairs::differing) {
    const auto snr = [&](std::size_t p) {
      return files.found[p].comparison.snr.value_or(-std::numeric_limits<double>::infinity());
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t x, std::size_t y) { return snr(x) < snr(y); });
  }
  Table table = pairs_table(decoded);
  if (decoded) table.text_rows = 16, report.add(patterns_table(files));
  for (const std::size_t p : order)
    if (const Comparison& c = files.found[p].comparison; !c.close || listed == ListedPairs::all)
      table.rows.push_back(row_of(files.pairs[p], c, decoded));
  report.add(std::move(table));
  if (!files.moves.empty()) report.add(verify::table_of(files.moves, files.pairs));
  add_explanations(files, report);
  add_unexplained(files, report);
  verify::keep_brief(report, {"patterns", "arrays", "moved_arrays", "explanations"});
  return report;
}

Report describe_layers(const FilesComparison& files) {
  std::vector<const ArrayPair*> compared;
  std::vector<Comparison> in_order;
  for (std::size_t p = 0; p < files.pairs.size(); ++p) {
    if (!files.pairs[p].why.empty()) continue;
    compared.push_back(&files.pairs[p]);
    in_order.push_back(files.found[p].comparison);
  }
  const LayerErrors errors = layer_errors(in_order);
  Report report = summary_of(files);
  if (!files.order_of.empty()) report.add("order_of", "in the order of", printable(files.order_of));
  add_layer(report, "first", "first out of tolerance", compared, in_order, errors, errors.first);
  add_layer(report, "most_added", "adds the most", compared, in_order, errors, errors.most_added);
  Table table = pairs_table(false);
  table.text_rows = std::numeric_limits<std::int64_t>::max();
  table.columns[0].key = "name";
  for (TableColumn& column : table.columns)
    column.json_only = column.key != "name" && column.key != "close" && column.key != "max_difference" &&
                       column.key != "rel" && column.key != "why";
  bool has_other_names = false, has_why = false;
  auto layer = errors.layers.begin();
  for (std::size_t p = 0; p < files.pairs.size(); ++p) {
    const ArrayPair& pair = files.pairs[p];
    std::vector<ReportValue>& row = table.rows.emplace_back(row_of(pair, files.found[p].comparison, false));
    const auto [rel, added] = pair.why.empty() ? *layer++ : LayerErrors::Layer{};
    has_other_names = has_other_names || (pair.open_expected && pair.expected_name != pair.name);
    has_why = has_why || row.back() != ReportValue();
    for (std::size_t c = 0; c < row.size(); ++c)
      if (table.columns[c].key == "rel") row[c] = verify::value_or_null(rel);
    row.insert(row.end() - 1, verify::value_or_null(added));
    row.insert(row.begin() + 1,
               pair.open_expected ? ReportValue(printable(pair.expected_name)) : ReportValue());
  }
  table.columns.back().json_only = !has_why;
  table.columns.insert(table.columns.end() - 1, {"added", "adds"});
  table.columns.insert(table.columns.begin() + 1,
                       {"expected_name", "in EXPECTED", Unit::none, !has_other_names || has_why});
  report.add(std::move(table));
  report.move_to_details([](const Report::Item& item) { return !std::holds_alternative<Field>(item); });
  return report;
}

}  // namespace ejk
