// Fault search on two samples of the rows out of tolerance: one to find models, a larger one to confirm them.
// If none holds everywhere, models are tried on a row of each part, within a time limit. Accepted models are
// counted on all rows.
// tests: tests/verdict/test_fault_search.cpp
#include "verdict/fault_search.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "compare/error_stats.hpp"
#include "compare/sample.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/splitmix64.hpp"
#include "verdict/explain_rows.hpp"

namespace ejk::verify {

namespace {

constexpr double kMost = 0.95;      // of rows, or of a row's elements, that have to agree
constexpr std::size_t kFirst = 12;  // rows by which a model is given up
constexpr std::int64_t kColumns = 32;
constexpr std::size_t kColumnsAtFirst = 4;  // by which a row is given up
constexpr double kNanoseconds = 1e9;        // of one thread: to try all models in all parts, to find partners
constexpr double kCounting = 2.5e9;         // of one thread: to count what was found
constexpr int kFewestElements = 4;          // elements that a model in some parts has to make agree
constexpr int kFewestElementsOfSubtle = 32;  // and a subtle one anywhere

// Whether an element is so near its reference that an unrelated number of that size often agrees.
bool is_near(const Row& it, std::size_t column) {
  constexpr double kNear = 16;  // bounds
  return std::abs(it.value[column] - it.expected[column]) < kNear * it.allowed[column];
}

bool is_minority_nearby(std::int64_t covered, std::int64_t near, std::int64_t left, std::int64_t elements) {
  return 2 * covered < elements && 2 * near > covered &&
         static_cast<double>(left) > (1 - kMost) * static_cast<double>(elements);
}

std::uint64_t shuffled(std::int64_t n) { return core::splitmix64(static_cast<std::uint64_t>(n)); }

// Of each part, by the partners of some: the same, the same distance, the inverse.
std::vector<std::vector<std::int64_t>> likely_partners(const std::vector<std::int64_t>& from,
                                                       const std::vector<std::size_t>& parts,
                                                       std::int64_t candidates) {
  std::vector<std::vector<std::int64_t>> likely(from.size());
  for (std::size_t part = 0; part < from.size(); ++part) {
    const std::int64_t found = from[part];
    if (found < 0) continue;
    const std::int64_t by = found - static_cast<std::int64_t>(part);
    if (static_cast<std::size_t>(found) < from.size())
      likely[static_cast<std::size_t>(found)].push_back(static_cast<std::int64_t>(part));
    for (const std::size_t other : parts)
      for (const std::int64_t c : {found, static_cast<std::int64_t>(other) + by})
        if (c >= 0 && c < candidates) likely[other].push_back(c);
  }
  return likely;
}

}  // namespace

bool FaultSearch::Scope::holds(const std::vector<std::int64_t>& place) const {
  for (std::size_t a = 0; a < parts.size(); ++a)
    if (!parts[a].empty() && !parts[a][static_cast<std::size_t>(place[a])]) return false;
  return true;
}

bool FaultSearch::Skipped::operator()(double given) const {
  return (zeros && given == 0) || (not_numbers && !std::isfinite(given));
}

FaultSearch::FaultSearch(const ResultRows& result, const RowCounts& counts, double row_nanoseconds)
    : result_(result), counts_(counts), row_nanoseconds_(row_nanoseconds), open_(counts.beyond.size()) {
  const auto affordable = [&](double nanoseconds, double least, double most) {
    return static_cast<std::int64_t>(std::clamp(nanoseconds / std::max(row_nanoseconds, 1.0), least, most));
  };
  const std::int64_t wanted = affordable(3e8, 16, 64), most = affordable(5e9, 64, 3072);
  for (std::size_t r = 0; r < open_.size(); ++r) open_[r] = counts.beyond[r] > 0;
  bad_ = flags_of([&](std::int64_t row) { return is_beyond(row); });
  first_ = choose(Rows::beyond, 3, wanted, most, 1);
  second_ = choose(Rows::beyond, 4, 4 * wanted, 2 * most, 2);
  within_ = choose(Rows::within, 2, wanted / 2, wanted, 3);
  for (const std::vector<bool>& flags : bad_) sampled_parts_.emplace_back(flags.size());
  for (const Sample* sample : {&first_, &second_})
    for (const Sampled& s : *sample)
      for (std::size_t a = 0; a < sampled_parts_.size(); ++a)
        sampled_parts_[a][static_cast<std::size_t>(s.place[a])] = true;
  std::set<std::vector<std::int64_t>> parts;
  for (const Sampled& s : first_) {
    std::vector<std::int64_t> part = s.place;
    for (std::size_t a = 0; a < part.size(); ++a)
      if (!is_of_parts(a)) part[a] = 0;
    parts.insert(std::move(part));
  }
  parts_in_first_ = parts.size();
}

std::int64_t FaultSearch::length_of(std::size_t axis) const {
  return axis < result_.axes.size() ? result_.axes[axis].length : std::int64_t{kContents};
}

bool FaultSearch::is_of_parts(std::size_t axis) const {
  return axis >= result_.axes.size() || result_.axes[axis].kind == RowAxis::Kind::part;
}

void FaultSearch::place_of(std::int64_t row, std::vector<std::int64_t>& place) const {
  const std::size_t axes = result_.axes.size();
  place.resize(axes + 1);
  result_.place(row, place.data());
  for (std::size_t a = 0; a < axes; ++a)
    if (place[a] < 0) place[a] = result_.axes[a].length;
  const auto r = static_cast<std::size_t>(row);
  const std::uint32_t beyond = counts_.beyond[r];
  place[axes] = beyond == 0                        ? numbers
                : counts_.zeros[r] == beyond       ? zeros
                : counts_.not_numbers[r] == beyond ? not_numbers
                                                   : numbers;
}

FaultSearch::Sampled FaultSearch::sampled(std::int64_t row, std::int64_t seed) const {
  Sampled s;
  s.row = row;
  place_of(row, s.place);
  std::vector<double> given(static_cast<std::size_t>(result_.columns)), expected(given), allowed(given);
  result_.given(row, given.data());
  result_.expected(row, expected.data(), allowed.data());
  const FloatType type = float_type(result_.dtype);
  std::vector<bool> wrong(given.size());
  std::vector<std::int64_t> wrong_columns;
  for (std::size_t c = 0; c < given.size(); ++c) {
    wrong[c] = !evaluate(type, given[c], expected[c], allowed[c], std::isinf(allowed[c])).right;
    if (wrong[c]) wrong_columns.push_back(static_cast<std::int64_t>(c));
  }
  for (const std::int64_t n : sample_rows(std::ssize(wrong_columns), kColumns, seed + row))
    s.columns.push_back(wrong_columns[static_cast<std::size_t>(n)]);
  for (const std::int64_t c : sample_rows(result_.columns, kColumns, seed + row + 1)) s.columns.push_back(c);
  std::sort(s.columns.begin(), s.columns.end());
  s.columns.erase(std::unique(s.columns.begin(), s.columns.end()), s.columns.end());
  for (const std::int64_t c : s.columns) {
    s.given.push_back(given[static_cast<std::size_t>(c)]);
    s.expected.push_back(expected[static_cast<std::size_t>(c)]);
    s.beyond.push_back(wrong[static_cast<std::size_t>(c)]);
  }
  s.weight = counts_.beyond[static_cast<std::size_t>(row)];
  return s;
}

// Intersections of parts, and the rows of each.
struct FaultSearch::Cells {
  struct Cell {
    std::vector<std::int64_t> parts;
    std::int64_t rows = 0, elements = 0, seen = 0;
    std::vector<std::int64_t> chosen;  // of its rows
    std::size_t next = 0;              // of those
    double sampled = 0;                // weight

    // Whether the next row of the cell is chosen.
    bool takes_next() {
      const std::int64_t ordinal = seen++;
      if (next == chosen.size() || chosen[next] != ordinal) return false;
      while (next < chosen.size() && chosen[next] == ordinal) ++next;
      return true;
    }
  };
  const FaultSearch& search;
  std::vector<Cell> all = {};
  std::map<std::vector<std::int64_t>, std::size_t> known = {};
  std::vector<std::int64_t> parts = {};
  std::size_t last = 0;

  std::size_t of(std::int64_t row) {
    search.place_of(row, parts);
    for (std::size_t a = 0; a < parts.size(); ++a)
      if (!search.is_of_parts(a)) parts[a] = 0;
    if (last < all.size() && all[last].parts == parts) return last;  // rows next to each other
    const auto [at, is_new] = known.emplace(parts, all.size());
    if (is_new) all.push_back({parts, 0, 0, 0, {}, 0, 0});
    return last = at->second;
  }
};

// All cells, or `most` of them: each part of each axis in two, in an order that the seed determines.
std::vector<std::size_t> FaultSearch::choose_cells(const Cells& cells, Rows rows, std::size_t most,
                                                   std::int64_t seed) const {
  std::vector<std::size_t> order(cells.all.size()), chosen;
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
    return shuffled(static_cast<std::int64_t>(x) + seed) < shuffled(static_cast<std::int64_t>(y) + seed);
  });
  const auto part_of = [&](std::size_t n, std::size_t axis) {
    return static_cast<std::size_t>(cells.all[n].parts[axis]);
  };
  if (rows == Rows::within) {
    // Half of them from parts that have rows out of tolerance, too.
    const auto others = std::stable_partition(order.begin(), order.end(), [&](std::size_t n) {
      for (std::size_t a = 0; a < bad_.size(); ++a)
        if (is_of_parts(a) && !bad_[a][part_of(n, a)]) return false;
      return true;
    });
    const auto half = std::min<std::ptrdiff_t>(others - order.begin(), static_cast<std::ptrdiff_t>(most / 2));
    std::rotate(order.begin() + half, others, order.end());
  }
  std::vector<std::vector<int>> taken;
  for (std::size_t a = 0; a <= result_.axes.size(); ++a)
    taken.emplace_back(static_cast<std::size_t>(length_of(a)) + 1);
  for (const std::size_t n : order) {
    if (chosen.size() == most) break;
    bool is_wanted = order.size() <= most || rows == Rows::within;
    for (std::size_t a = 0; a < taken.size(); ++a)
      is_wanted = is_wanted || (is_of_parts(a) && taken[a][part_of(n, a)] < 2);
    if (!is_wanted) continue;
    chosen.push_back(n);
    for (std::size_t a = 0; a < taken.size(); ++a) ++taken[a][part_of(n, a)];
  }
  return chosen;
}

// At least `least` rows of each part of each axis, or of their intersections if these are at most `most`.
FaultSearch::Sample FaultSearch::choose(Rows rows, std::int64_t least, std::int64_t wanted, std::int64_t most,
                                        std::int64_t seed) const {
  Cells cells{*this};
  const auto counts = [&](std::int64_t row) { return is_beyond(row) == (rows == Rows::beyond); };
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    if (!counts(row)) continue;
    Cells::Cell& cell = cells.all[cells.of(row)];
    ++cell.rows;
    cell.elements += counts_.beyond[static_cast<std::size_t>(row)];
  }
  const std::vector<std::size_t> chosen =
      choose_cells(cells, rows, static_cast<std::size_t>(std::max<std::int64_t>(most / least, 2)), seed);
  const std::int64_t each = std::max(least, wanted / std::max<std::int64_t>(1, std::ssize(chosen)));
  for (const std::size_t n : chosen) cells.all[n].chosen = sample_rows(cells.all[n].rows, each - 2, seed);

  Sample sample;
  std::vector<std::size_t> from;
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    if (!counts(row)) continue;
    const std::size_t n = cells.of(row);
    if (!cells.all[n].takes_next()) continue;
    sample.push_back(sampled(row, seed));
    cells.all[n].sampled += sample.back().weight;
    from.push_back(n);
  }
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const Cells::Cell& cell = cells.all[from[i]];
    if (cell.sampled > 0) sample[i].weight *= static_cast<double>(cell.elements) / cell.sampled;
  }
  // One of each cell first, then a second one of each, and so on.
  std::vector<std::size_t> at(sample.size()), turn(sample.size()), turns(cells.all.size());
  std::iota(at.begin(), at.end(), std::size_t{0});
  std::sort(at.begin(), at.end(),
            [&](std::size_t x, std::size_t y) { return shuffled(sample[x].row) < shuffled(sample[y].row); });
  for (const std::size_t i : at) turn[i] = turns[from[i]]++;
  std::stable_sort(at.begin(), at.end(), [&](std::size_t x, std::size_t y) { return turn[x] < turn[y]; });
  Sample ordered;
  for (const std::size_t i : at) ordered.push_back(std::move(sample[i]));
  return ordered;
}

// Whether a row agrees with a prediction: of a row out of tolerance, some element out of tolerance must.
FaultSearch::Answer FaultSearch::answer(const FaultModel& model, const Sampled& s, Skipped skipped) const {
  const std::size_t columns = s.columns.size();
  bool is_bad = false, has_beyond = false;
  for (std::size_t c = 0; c < columns; ++c) {
    is_bad = is_bad || s.beyond[c];
    has_beyond = has_beyond || (s.beyond[c] && !skipped(s.given[c]));
  }
  if (is_bad && !has_beyond) return Answer::silent;
  std::vector<double> values(columns), allowed(columns);
  const FloatType type = float_type(result_.dtype);
  std::size_t looked = 0, wrong = 0, explained = 0;
  double before = 0, after = 0;  // squares of differences
  for (std::size_t begin = 0; begin < columns;) {
    const std::size_t end = model.by_columns && begin == 0 ? std::min(columns, kColumnsAtFirst) : columns;
    if (!model.values(s.row, std::span(s.columns).subspan(begin, end - begin), values.data() + begin,
                      allowed.data() + begin))
      return Answer::silent;
    for (std::size_t c = begin; c < end; ++c) {
      if (s.beyond[c] && skipped(s.given[c])) continue;
      ++looked;
      if (std::isinf(allowed[c]) || !evaluate(type, s.given[c], values[c], allowed[c]).right)
        ++wrong;
      else
        explained += s.beyond[c];
      const double was = s.given[c] - s.expected[c], is = s.given[c] - values[c];
      if (std::isfinite(was) && std::isfinite(is)) before += was * was, after += is * is;
    }
    if (static_cast<double>(wrong) > (1 - kMost) * static_cast<double>(columns)) return Answer::no;
    begin = end;
  }
  if (static_cast<double>(wrong) > (1 - kMost) * static_cast<double>(looked)) return Answer::no;
  const double most_left = model.is_subtle ? model.most_left : most_left_;
  const bool is_better = after <= most_left * most_left * before;
  return is_bad && (explained == 0 || !is_better) ? Answer::no : Answer::yes;
}

// The fraction of the rows within tolerance that the model contradicts, in parts with and without others.
FaultSearch::Contradicted FaultSearch::contradicted(const FaultModel& model, const Scope& scope) const {
  std::vector<char> wrong(within_.size());
  core::parallel_for(std::ssize(within_), row_nanoseconds_ * static_cast<double>(within_.size()),
                     [&](std::int64_t n) {
                       const auto i = static_cast<std::size_t>(n);
                       wrong[i] = answer(model, within_[i], {}) == Answer::no;
                     });
  struct {
    double all = 0, no = 0;
  } counts[2];
  for (std::size_t n = 0; n < within_.size(); ++n) {
    bool same_parts = true;
    for (std::size_t a = 0; a < result_.axes.size(); ++a) {
      const auto at = static_cast<std::size_t>(within_[n].place[a]);
      if (is_of_parts(a)) same_parts = same_parts && bad_[a][at];
      if (a < scope.parts.size() && !scope.parts[a].empty()) same_parts = same_parts && scope.parts[a][at];
    }
    ++counts[same_parts].all;
    counts[same_parts].no += wrong[n];
  }
  const auto share = [](const auto& count) { return count.all > 0 ? count.no / count.all : 0; };
  return {share(counts[1]), share(counts[0])};
}

// Of the rows that are left and in the scope; nothing more than `first` of them where none of those agrees.
void FaultSearch::try_rows(const FaultModel& model, const Sample& sample, const Scope& scope,
                           std::size_t first, Agreement& agreement) const {
  agreement.agree.assign(sample.size(), 0);
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < sample.size(); ++i)
    if (sample[i].left && scope.holds(sample[i].place)) rows.push_back(i);
  const auto try_range = [&](std::size_t begin, std::size_t end) {
    core::parallel_for(static_cast<std::int64_t>(end - begin),
                       row_nanoseconds_ * static_cast<double>(end - begin), [&](std::int64_t n) {
                         const std::size_t i = rows[begin + static_cast<std::size_t>(n)];
                         agreement.agree[i] = answer(model, sample[i], skipped_) == Answer::yes;
                       });
  };
  agreement.looked = std::min(first, rows.size());
  try_range(0, agreement.looked);
  agreement.whole = agreement.looked == rows.size();
  if (agreement.whole ||
      std::none_of(agreement.agree.begin(), agreement.agree.end(), [](char a) { return a; }))
    return;
  try_range(agreement.looked, rows.size());
  agreement.whole = true;
}

std::vector<FaultSearch::Share> FaultSearch::shares_of(std::size_t axis, const Scope& scope,
                                                       const Agreement& first,
                                                       const Agreement* second) const {
  std::vector<Share> shares(static_cast<std::size_t>(length_of(axis)) + 1);
  const auto add = [&](const Sample& sample, const Agreement& agreement) {
    for (std::size_t i = 0; i < sample.size(); ++i) {
      const Sampled& s = sample[i];
      if (!s.left || !scope.holds(s.place)) continue;
      Share& share = shares[static_cast<std::size_t>(s.place[axis])];
      ++share.rows;
      share.all += s.weight;
      if (agreement.agree[i] == 0) continue;
      ++share.rows_agreeing;
      share.numbers += s.place.back() == numbers;
      share.agreeing += s.weight;
      share.elements += static_cast<int>(std::count(s.beyond.begin(), s.beyond.end(), true));
    }
  };
  add(first_, first);
  if (second) add(second_, *second);
  return shares;
}

// Everywhere, but for the parts in which most rows do not agree.
FaultSearch::Scope FaultSearch::without_failing(const Agreement& first, const Agreement& second) const {
  Scope scope;
  for (;;) {
    std::size_t worst_axis = 0;
    std::vector<bool> worst;
    double most = 0;
    for (std::size_t a = 0; a <= result_.axes.size(); ++a) {
      if (!is_of_parts(a)) continue;
      const std::vector<Share> shares = shares_of(a, scope, first, &second);
      std::vector<bool> holds(shares.size());
      double failing = 0;
      bool some = false;
      for (std::size_t p = 0; p < shares.size(); ++p) {
        if (shares[p].rows == 0) continue;
        holds[p] = 2 * shares[p].rows_agreeing >= shares[p].rows;
        some = some || holds[p];
        if (!holds[p]) failing += shares[p].all - shares[p].agreeing;
      }
      if (some && failing > most) most = failing, worst_axis = a, worst = std::move(holds);
    }
    if (worst.empty()) return scope;
    scope.parts.resize(result_.axes.size() + 1);
    std::vector<bool>& flags = scope.parts[worst_axis];
    if (flags.empty()) flags.assign(worst.size(), true);
    for (std::size_t p = 0; p < worst.size(); ++p) flags[p] = flags[p] && worst[p];
  }
}

// The parts of an axis in which all rows agree, for the axis that explains most, and more than `explained`.
std::optional<FaultSearch::Scope> FaultSearch::scope_of(const Agreement& first, const Agreement* second,
                                                        const Scope& within, bool needs_numbers,
                                                        double& explained) const {
  std::optional<Scope> best;
  for (std::size_t a = 0; a <= result_.axes.size(); ++a) {
    if (!is_of_parts(a) || length_of(a) < 2) continue;
    if (!within.everywhere() && within.parts[a].empty()) continue;
    const std::vector<Share> shares = shares_of(a, within, first, second);
    std::vector<bool> holds(shares.size());
    double weight = 0;
    int elements = 0;
    bool has_numbers = false;
    for (std::size_t p = 0; p < shares.size(); ++p) {
      const Share& share = shares[p];
      if (share.rows_agreeing == 0 || share.rows_agreeing < kMost * share.rows) continue;
      holds[p] = true;
      weight += share.all;
      elements += share.elements;
      has_numbers = has_numbers || share.numbers > 0;
    }
    if (weight <= explained || elements < kFewestElements || (needs_numbers && !has_numbers)) continue;
    explained = weight;
    best.emplace();
    best->parts.resize(result_.axes.size() + 1);
    best->parts[a] = std::move(holds);
  }
  return best;
}

// Whether rows that agree within wide bounds are all off by more than a hundredth: ln 2 is near 0.7.
bool FaultSearch::is_off_by_factor(const FaultModel& model, const Sample& sample, const Agreement& agreement,
                                   const Scope& scope) const {
  double products = 0, squares = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const Sampled& s = sample[i];
    if (agreement.agree[i] == 0 || !scope.holds(s.place)) continue;
    std::vector<double> values(s.columns.size()), allowed(values);
    if (!model.values(s.row, s.columns, values.data(), allowed.data())) continue;
    for (std::size_t c = 0; c < values.size(); ++c) {
      if (!std::isfinite(s.given[c]) || !std::isfinite(values[c]) || !(allowed[c] > 0) ||
          std::isinf(allowed[c]) || skipped_(s.given[c]))
        continue;
      const double weight = 1 / (allowed[c] * allowed[c]);
      products += weight * s.given[c] * values[c];
      squares += weight * values[c] * values[c];
    }
  }
  if (!(squares > 0)) return false;
  constexpr double kMostOff = 0.01;
  return std::abs(products / squares - 1) > std::max(kMostOff, 6 / std::sqrt(3 * squares));
}

// Confirms it on the second sample, in the scope or wherever it holds; then explained rows are removed.
std::optional<Found> FaultSearch::accept(const FaultModel& model, const Agreement& first,
                                         std::optional<Scope> scope) {
  Agreement second;
  try_rows(model, second_, scope.value_or(Scope{}), kFirst, second);
  double explained = 0;
  scope = scope ? scope_of(first, &second, *scope, model.needs_numbers, explained)
                : without_failing(first, second);
  if (!scope) return std::nullopt;
  double agreeing = 0, all = 0;
  for (std::size_t i = 0; i < second_.size(); ++i) {
    if (!second_[i].left || !scope->holds(second_[i].place)) continue;
    all += second_[i].weight;
    agreeing += second.agree[i] != 0 ? second_[i].weight : 0;
  }
  if (!(agreeing > 0) || agreeing < kMost * all) return std::nullopt;
  if (is_off_by_factor(model, first_, first, *scope) || is_off_by_factor(model, second_, second, *scope))
    return std::nullopt;
  if (model.is_subtle) {
    int elements = 0;
    for (const Share& share : shares_of(result_.axes.size(), *scope, first, &second))
      elements += share.elements;
    if (elements < kFewestElementsOfSubtle) return std::nullopt;
  }

  // It holds in all parts, or in those alone that have rows which it explains, where others contradict it.
  Contradicted against = contradicted(model, *scope);
  if (scope->everywhere() && against.same_parts > 1 - kMost) {
    Scope parts;
    parts.parts.resize(result_.axes.size() + 1);
    for (std::size_t a = 0; a < result_.axes.size(); ++a)
      for (const Share& share : is_of_parts(a) ? shares_of(a, {}, first, &second) : std::vector<Share>())
        parts.parts[a].push_back(share.rows_agreeing > 0);
    const Contradicted in_parts = contradicted(model, parts);
    if (in_parts.same_parts <= 1 - kMost) scope = std::move(parts), against = in_parts;
  }
  const bool is_first = left_ > 0.999;
  auto flags = flags_of([&, place = std::vector<std::int64_t>()](std::int64_t row) mutable {
    if (!open_[static_cast<std::size_t>(row)]) return false;
    place_of(row, place);
    return scope->holds(place);
  });
  for (const auto& [sample, agreement] : {std::pair{&first_, &first}, {&second_, &second}})
    for (std::size_t i = 0; i < sample->size(); ++i)
      if (agreement->agree[i] != 0 && scope->holds((*sample)[i].place)) (*sample)[i].left = false;
  std::vector<std::int64_t> place;
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    if (!open_[static_cast<std::size_t>(row)]) continue;
    place_of(row, place);
    if (scope->holds(place)) open_[static_cast<std::size_t>(row)] = false;
  }
  const double share = left_ * agreeing / (agreeing + weight_left(second_));
  left_ -= share;
  // It holds in some parts, or in some rows of theirs, where it would change others that are right.
  const auto [same, others] = against;
  const bool is_all = is_first && scope->everywhere() && others == 0 && same <= 1 - kMost;
  // Parts without a sampled row are not named.
  for (std::size_t a = 0; a < flags.size(); ++a)
    for (std::size_t p = 0; is_of_parts(a) && p < flags[a].size(); ++p)
      flags[a][p] = flags[a][p] && sampled_parts_[a][p];
  accepted_.push_back({model, *scope, numbers, is_all, same > 1 - kMost});
  return Found{{model.kind, model.text, share},
               is_all ? "" : where(flags, same > 1 - kMost, model.names_axis),
               std::nullopt,
               accepted_.size() - 1};
}

double FaultSearch::weight_left(const Sample& sample) const {
  double sum = 0;
  for (const Sampled& s : sample) sum += s.left ? s.weight : 0;
  return sum;
}

bool FaultSearch::is_open() const {
  if (left_ > 1 - kMost) return true;
  for (std::size_t a = 0; a <= result_.axes.size(); ++a) {
    if (!is_of_parts(a)) continue;
    std::vector<int> all(static_cast<std::size_t>(length_of(a)) + 1), left(all);
    for (const Sample* sample : {&first_, &second_})
      for (const Sampled& s : *sample) {
        const auto at = static_cast<std::size_t>(s.place[a]);
        ++all[at];
        left[at] += s.left;
      }
    for (std::size_t p = 0; p < all.size(); ++p)
      if (2 * left[p] > all[p]) return true;
  }
  return false;
}

// The indices of each axis with rows that count; the last flag for rows without an index.
std::vector<std::vector<bool>> FaultSearch::flags_of(
    const std::function<bool(std::int64_t row)>& counts) const {
  std::vector<std::vector<bool>> flags;
  for (const RowAxis& axis : result_.axes) flags.emplace_back(static_cast<std::size_t>(axis.length) + 1);
  std::vector<std::int64_t> place;
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    if (!is_beyond(row) || !counts(row)) continue;
    place_of(row, place);
    for (std::size_t a = 0; a < flags.size(); ++a) flags[a][static_cast<std::size_t>(place[a])] = true;
  }
  return flags;
}

std::string FaultSearch::where(const std::vector<std::vector<bool>>& flags, bool positions,
                               std::optional<std::size_t> but) const {
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() ? " in " : ", ") + words; };
  for (std::size_t a = 0; a < flags.size(); ++a) {
    const RowAxis& axis = result_.axes[a];
    if (a == but || (axis.kind == RowAxis::Kind::position && !positions)) continue;
    const std::vector<bool> of_axis(flags[a].begin(), flags[a].end() - 1);
    const std::int64_t count = std::count(of_axis.begin(), of_axis.end(), true);
    if (count > 0 && count < axis.length)
      add(fmt::format("{} {}", count == 1 ? axis.name : axis.plural, ranges_of(of_axis, 4)));
    if (flags[a].back() && count < axis.length && !axis.none.empty()) add(axis.none);
  }
  return text;
}

// -inf is lse's value before a kernel writes it, as 0 is that of out.
const char* FaultSearch::text_of_not_numbers() const {
  for (const Sample* sample : {&first_, &second_})
    for (const Sampled& s : *sample)
      for (std::size_t c = 0; c < s.given.size(); ++c)
        if (s.left && s.beyond[c] && !std::isfinite(s.given[c]) &&
            s.given[c] != -std::numeric_limits<double>::infinity())
          return "elements are NaN or infinite";
  return "elements are -inf, as if never written";
}

std::optional<Found> FaultSearch::count_out(Contents contents) {
  const bool is_zeros = contents == zeros;
  bool& done = is_zeros ? skipped_.zeros : skipped_.not_numbers;
  const std::vector<std::uint32_t>& counts = is_zeros ? counts_.zeros : counts_.not_numbers;
  double elements = 0, beyond = 0, all = 0;
  for (std::size_t r = 0; r < open_.size(); ++r) {
    all += counts_.beyond[r];
    if (open_[r]) elements += counts[r], beyond += counts_.beyond[r];
  }
  if (done || elements == 0 || elements < 0.005 * beyond) return std::nullopt;
  const char* const text = is_zeros ? "elements are 0, as if never written" : text_of_not_numbers();
  done = true;
  std::string place =
      where(flags_of([&](std::int64_t row) {
              return open_[static_cast<std::size_t>(row)] && counts[static_cast<std::size_t>(row)] > 0;
            }),
            true, std::nullopt);
  const std::vector<bool>& columns = is_zeros ? counts_.zero_columns : counts_.not_number_columns;
  const auto count = std::count(columns.begin(), columns.end(), true);
  if (!result_.column.empty() && count < result_.columns && beyond == all)
    place += fmt::format("{} {} {}", place.empty() ? " in" : ",",
                         count == 1 ? result_.column : result_.columns_name, ranges_of(columns, 4));
  for (std::size_t r = 0; r < open_.size(); ++r)
    if (counts[r] == counts_.beyond[r]) open_[r] = false;
  for (Sample* sample : {&first_, &second_})
    for (Sampled& s : *sample) {
      std::size_t wrong = 0, skipped = 0;
      for (std::size_t c = 0; c < s.columns.size(); ++c)
        if (s.beyond[c]) ++wrong, skipped += skipped_(s.given[c]);
      s.weight *= 1 - static_cast<double>(skipped) / static_cast<double>(std::max<std::size_t>(wrong, 1));
      if (skipped == wrong) s.left = false;
    }
  // Less than half of the rows and columns that have some: single elements, which were written.
  std::int64_t rows = 0;
  for (std::size_t r = 0; r < open_.size(); ++r) rows += counts[r] > 0;
  const bool is_scattered = elements < 0.5 * static_cast<double>(rows) * static_cast<double>(count);
  const double share = std::min(left_, elements / all);
  left_ -= share;
  accepted_.push_back({std::nullopt, {}, contents, true, true});
  return Found{{is_zeros ? "unwritten" : "not_numbers",
                !is_scattered ? text
                : is_zeros    ? "single elements are 0"
                              : "single elements are NaN or infinite",
                share},
               place,
               std::nullopt,
               accepted_.size() - 1};
}

// Which columns of a row, all out of tolerance, an accepted model covers; false: none.
bool FaultSearch::covers(const Accepted& accepted, std::int64_t row, const std::vector<std::int64_t>& place,
                         std::span<const std::int64_t> columns, const std::vector<double>& given,
                         std::vector<char>& covered) const {
  covered.assign(columns.size(), 0);
  if (accepted.contents != numbers) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const double value = given[static_cast<std::size_t>(columns[c])];
      covered[c] = accepted.contents == zeros ? value == 0 : !std::isfinite(value);
    }
    return true;
  }
  if (!accepted.scope.holds(place)) return false;
  std::vector<double> values(columns.size()), allowed(columns.size());
  if (!accepted.model->values(row, columns, values.data(), allowed.data())) return false;
  const FloatType type = float_type(result_.dtype);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const double value = given[static_cast<std::size_t>(columns[c])];
    const bool is_near_zero = skipped_.zeros && value == 0 && values[c] != 0;  // one that was never written
    covered[c] =
        !is_near_zero && !std::isinf(allowed[c]) && evaluate(type, value, values[c], allowed[c]).right;
  }
  return true;
}

// f(loaded row, its number, column) of the flagged elements.
template <class F>
void FaultSearch::for_each_flagged(const std::vector<std::uint8_t>& elements, F&& f) const {
  Row it(result_.columns);
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    const auto flags =
        std::span(elements).subspan(static_cast<std::size_t>(row * result_.columns), it.value.size());
    if (std::none_of(flags.begin(), flags.end(), [](std::uint8_t flag) { return flag != 0; })) continue;
    it.load(result_, row);
    for (std::size_t c = 0; c < flags.size(); ++c)
      if (flags[c] != 0) f(it, row, c);
  }
}

// Replaces models by those of all rows where these take less time; returns the time of a row.
double FaultSearch::prepare_counting(const std::vector<Found>& found, std::int64_t rows) {
  constexpr double kWorthIt = 5e7;  // of one thread
  double nanoseconds = 0;
  for (const Found& f : found) {
    auto& model = accepted_[f.place].model;
    if (!model) continue;
    const double of_row = model->nanoseconds > 0 ? model->nanoseconds : row_nanoseconds_;
    if (model->of_all && of_row * static_cast<double>(rows) > kWorthIt)
      if (auto values = model->of_all()) {
        model->values = std::move(values);
        nanoseconds += 50 * static_cast<double>(result_.columns);
        continue;
      }
    nanoseconds += of_row;
  }
  return nanoseconds;
}

// What covers the elements out of tolerance of a row: the first that does, in this order.
void FaultSearch::count_row(std::int64_t row, const std::vector<Found>& found,
                            std::span<const std::size_t> order, Row& it, Counts& counts,
                            std::vector<std::uint8_t>& open) const {
  const FloatType type = float_type(result_.dtype);
  std::vector<std::int64_t> place, columns;
  std::vector<char> covered;
  it.load(result_, row);
  place_of(row, place);
  for (std::size_t c = 0; c < it.value.size(); ++c)
    if (!it.result_of(type, c).right) columns.push_back(static_cast<std::int64_t>(c));
  counts.elements += std::ssize(columns);
  for (const std::size_t f : order) {
    if (columns.empty()) break;
    if (!covers(accepted_[found[f].place], row, place, columns, it.value, covered)) continue;
    counts.looked[f] += std::ssize(columns);
    const auto all = std::count(covered.begin(), covered.end(), 1);
    if (all == 0) continue;
    counts.covered[f] += all;
    counts.rows[f].push_back(row);
    std::size_t kept = 0;
    for (std::size_t c = 0; c < columns.size(); ++c)
      if (covered[c] == 0)
        columns[kept++] = columns[c];
      else
        counts.near[f] += is_near(it, static_cast<std::size_t>(columns[c]));
    columns.resize(kept);
  }
  counts.left += std::ssize(columns);
  for (const std::int64_t column : columns) {
    if (!open.empty()) open[static_cast<std::size_t>(row * result_.columns + column)] = 1;
    counts.worst.see(result_, type, it, row, static_cast<std::size_t>(column));
  }
}

// Some of these rows, all or every n-th. `open`, unless it is empty, has flags of what nothing covers.
FaultSearch::Counts FaultSearch::count(const std::vector<Found>& found, const std::vector<std::int64_t>& bad,
                                       std::int64_t counted, double nanoseconds,
                                       std::vector<std::uint8_t>& open) const {
  constexpr std::int64_t kRows = 64;
  // Elements that are 0, NaN or infinite count for a model that predicts them, if there is one.
  std::vector<std::size_t> order(found.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(),
                        [&](std::size_t f) { return accepted_[found[f].place].contents == numbers; });
  std::vector<Counts> parts(static_cast<std::size_t>(core::ceil_div(counted, kRows)), Counts(found.size()));
  core::parallel_for(std::ssize(parts), nanoseconds * static_cast<double>(counted), [&](std::int64_t n) {
    Row it(result_.columns);
    for (std::int64_t i = n * kRows; i < std::min(counted, (n + 1) * kRows); ++i)
      count_row(bad[static_cast<std::size_t>(i * std::ssize(bad) / counted)], found, order, it,
                parts[static_cast<std::size_t>(n)], open);
  });
  Counts all(found.size());
  for (Counts& part : parts) {
    all.elements += part.elements;
    all.left += part.left;
    for (std::size_t f = 0; f < found.size(); ++f) {
      all.covered[f] += part.covered[f];
      all.looked[f] += part.looked[f];
      all.near[f] += part.near[f];
      all.rows[f].insert(all.rows[f].end(), part.rows[f].begin(), part.rows[f].end());
    }
    if (part.worst.bounds > all.worst.bounds) all.worst = std::move(part.worst);
  }
  return all;
}

// Few rows, or few elements of them, are chance while most are unexplained. A minority near the reference is
// chance while any part is unexplained: one number may describe what is wrong in a head, as that of a sink
// does, and of a hundred models with a number of their own some is as near.
bool FaultSearch::is_chance(const Counts& counts, std::size_t f) {
  constexpr double kChance = 0.01;
  constexpr std::ptrdiff_t kDecodeRows = 4;
  return (2 * counts.left > counts.elements &&
          static_cast<double>(counts.covered[f]) < kChance * static_cast<double>(counts.elements) &&
          (2 * counts.covered[f] < counts.looked[f] || std::ssize(counts.rows[f]) <= kDecodeRows)) ||
         is_minority_nearby(counts.covered[f], counts.near[f], counts.left, counts.elements);
}

// Explanations of the elements that no model covers, by values alone.
void FaultSearch::explain_by_values(std::vector<std::uint8_t> open, std::int64_t elements,
                                    Against::Unexplained& left,
                                    std::vector<Against::Explained>& explained) const {
  std::vector<std::uint8_t> covered = open;
  const ValueExplanations values = explain_rows(result_, open);
  if (values.explanations.empty()) return;
  std::transform(covered.begin(), covered.end(), open.begin(), covered.begin(), std::minus<>());
  std::int64_t near = 0;
  for_each_flagged(covered, [&](const Row& it, std::int64_t, std::size_t c) { near += is_near(it, c); });
  const std::int64_t all = std::count(covered.begin(), covered.end(), 1);
  if (is_minority_nearby(all, near, left.elements - all, elements)) return;
  for (const ValueExplanation& value : values.explanations) {
    const double share = static_cast<double>(value.elements) / static_cast<double>(elements);
    explained.push_back({{value.kind, value.text, share}, result_.name});
    left.elements -= value.elements;
  }
  WorstElement worst;
  const FloatType type = float_type(result_.dtype);
  for_each_flagged(
      open, [&](const Row& it, std::int64_t row, std::size_t c) { worst.see(result_, type, it, row, c); });
  left.worst = std::move(worst.element);
}

void FaultSearch::report(std::vector<Found> found, Against& against) {
  std::vector<std::int64_t> bad;
  for (std::int64_t row = 0; row < result_.rows; ++row)
    if (is_beyond(row)) bad.push_back(row);
  const std::int64_t all_rows = std::ssize(bad);
  const double nanoseconds = prepare_counting(found, all_rows);
  const std::int64_t counted =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(kCounting / std::max(nanoseconds, 1.0)),
                               std::min<std::int64_t>(all_rows, 64), all_rows);
  const bool are_values_tried = counted == all_rows && result_.rows * result_.columns <= kMostValues;
  std::vector<std::uint8_t> open(are_values_tried ? static_cast<std::size_t>(result_.rows * result_.columns)
                                                  : 0);
  Counts counts = count(found, bad, counted, nanoseconds, open);
  const auto share_of = [all = static_cast<double>(std::max<std::int64_t>(counts.elements, 1))](
                            std::int64_t elements) { return static_cast<double>(elements) / all; };
  Against::Unexplained left{result_.name, counts.left, 0, std::move(counts.worst.element)};
  std::vector<Against::Explained> explained;
  for (std::size_t f = 0; f < found.size(); ++f) {
    if (is_chance(counts, f)) left.elements += counts.covered[f];
    if (counts.covered[f] == 0 || is_chance(counts, f)) continue;
    const Accepted& accepted = accepted_[found[f].place];
    if (!accepted.is_all)
      found[f].where = where(flags_of([&](std::int64_t row) {
                               return std::binary_search(counts.rows[f].begin(), counts.rows[f].end(), row);
                             }),
                             accepted.tells_positions, accepted.model->names_axis);
    Explanation e = std::move(found[f].explanation);
    e.share_explained = share_of(counts.covered[f]);
    e.text += found[f].where;
    explained.push_back({std::move(e), result_.name});
  }
  if (are_values_tried && left.elements > 0)
    explain_by_values(std::move(open), counts.elements, left, explained);
  std::stable_sort(explained.begin(), explained.end(), [](const Explanation& a, const Explanation& b) {
    return a.share_explained > b.share_explained;
  });
  std::move(explained.begin(), explained.end(), std::back_inserter(against.explanations));
  left.share = share_of(left.elements);
  if (counted < all_rows) {
    const auto beyond = std::accumulate(counts_.beyond.begin(), counts_.beyond.end(), std::int64_t{0});
    left.elements = std::llround(left.share * static_cast<double>(beyond));
  }
  if (left.elements > 0) against.unexplained.push_back(std::move(left));
  against.wrong_rows += all_rows;
  against.counted_rows += counted;
}

// Some sampled rows of each part of an axis.
std::vector<std::vector<const FaultSearch::Sampled*>> FaultSearch::rows_by_part(std::size_t axis,
                                                                                std::size_t most) const {
  std::vector<std::vector<const Sampled*>> rows(static_cast<std::size_t>(result_.axes[axis].length));
  for (const Sample* sample : {&first_, &second_})
    for (const Sampled& s : *sample) {
      const auto at = static_cast<std::size_t>(s.place[axis]);
      if (s.left && at < rows.size() && rows[at].size() < most) rows[at].push_back(&s);
    }
  return rows;
}

// All candidates are tried for a few parts; for others first what was found for these: the same, the same
// distance, the inverse.
std::vector<std::int64_t> FaultSearch::partners(
    std::size_t axis, std::int64_t candidates,
    const std::function<FaultModel(std::int64_t candidate)>& model) const {
  constexpr std::int64_t kAtFirst = 8;  // parts
  const auto rows = rows_by_part(axis, 7);
  std::vector<std::int64_t> from(rows.size(), -1);
  const auto open = [&] {
    std::vector<std::size_t> parts;
    for (std::size_t part = 0; part < rows.size(); ++part)
      if (!rows[part].empty() && from[part] < 0) parts.push_back(part);
    return parts;
  };
  const std::vector<std::size_t> bad = open();
  if (bad.empty()) return from;
  const auto fits = [&](std::size_t part, std::int64_t candidate) {
    if (candidate == static_cast<std::int64_t>(part)) return false;
    const FaultModel it = model(candidate);
    bool yes = false;
    for (const Sampled* s : rows[part]) {
      const Answer found = answer(it, *s, {true, true});
      if (found == Answer::no) return false;
      yes = yes || found == Answer::yes;
    }
    return yes;
  };
  const FaultModel any = model(0);
  const double nanoseconds =
      (any.nanoseconds > 0 ? any.nanoseconds : row_nanoseconds_) * (any.by_columns ? 1.0 / 8 : 1);
  // Of each of these parts the first of its candidates that fits.
  const auto find = [&](const std::vector<std::size_t>& parts, double work, const auto& candidates_of) {
    core::parallel_for(std::ssize(parts), work, [&](std::int64_t n) {
      const std::size_t part = parts[static_cast<std::size_t>(n)];
      for (const std::int64_t candidate : candidates_of(part))
        if (fits(part, candidate)) {
          from[part] = candidate;
          return;
        }
    });
  };
  std::vector<std::int64_t> everyone(static_cast<std::size_t>(candidates));
  std::iota(everyone.begin(), everyone.end(), 0);
  double time = kNanoseconds;
  const auto try_all = [&](std::vector<std::size_t> parts) {
    const auto affordable =
        static_cast<std::size_t>(time / std::max(nanoseconds * static_cast<double>(candidates), 1.0));
    if (parts.size() > affordable) parts.resize(affordable);
    const double work = nanoseconds * static_cast<double>(parts.size()) * static_cast<double>(candidates);
    time -= work;
    find(
        parts, work, [&](std::size_t) -> const auto& { return everyone; });
  };
  std::vector<std::size_t> some;
  for (const std::int64_t n : sample_rows(std::ssize(bad), kAtFirst - 2))
    some.push_back(bad[static_cast<std::size_t>(n)]);
  try_all(some);
  const std::vector<std::vector<std::int64_t>> likely = likely_partners(from, bad, candidates);
  const std::vector<std::size_t> others = open();
  find(
      others,
      nanoseconds * 2 * kAtFirst * static_cast<double>(others.size()), [&](std::size_t part) -> const auto& {
        return likely[part];
      });
  std::vector<std::size_t> rest;
  for (const std::size_t part : open())
    if (std::find(some.begin(), some.end(), part) == some.end()) rest.push_back(part);
  try_all(rest);
  return from;
}

bool FaultSearch::is_enough_to_fit() const {
  std::int64_t rows = 0, elements = 0;
  for (const Sampled& s : first_) {
    if (!s.left) continue;
    ++rows;
    elements += std::count(s.beyond.begin(), s.beyond.end(), true);
  }
  return rows >= 2 && elements >= 8;
}

std::vector<std::int64_t> FaultSearch::some_rows(std::size_t most) const {
  std::vector<std::int64_t> rows;
  for (const Sampled& s : first_)
    if (s.left && s.place.back() == numbers && rows.size() < most) rows.push_back(s.row);
  return rows;
}

std::vector<std::vector<std::int64_t>> apart(const std::vector<std::int64_t>& from) {
  std::vector<std::int64_t> exchanged(from.size(), -1), others = from;
  for (std::size_t part = 0; part < from.size(); ++part) {
    std::size_t at = part;
    for (std::size_t n = 0; n < from.size() && from[at] >= 0; ++n) {
      at = static_cast<std::size_t>(from[at]);
      if (at >= from.size() || at == part) break;
    }
    if (at != part || from[part] < 0) continue;
    exchanged[part] = from[part];
    others[part] = -1;
  }
  std::vector<std::vector<std::int64_t>> all;
  for (auto* map : {&exchanged, &others})
    if (std::any_of(map->begin(), map->end(), [](std::int64_t c) { return c >= 0; }))
      all.push_back(std::move(*map));
  return all;
}

bool is_exchange(const std::vector<std::int64_t>& from) {
  std::vector<bool> taken(from.size());
  for (const std::int64_t c : from) {
    if (c < 0) continue;
    if (static_cast<std::size_t>(c) >= from.size() || taken[static_cast<std::size_t>(c)]) return false;
    taken[static_cast<std::size_t>(c)] = true;
  }
  for (std::size_t part = 0; part < from.size(); ++part)
    if (taken[part] != (from[part] >= 0)) return false;
  return true;
}

std::string text_of_partners(const std::vector<std::int64_t>& from, const std::string& one,
                             const std::string& many, const std::string& what) {
  constexpr std::size_t kMostNamed = 6;
  std::vector<std::string> words;
  // All of the same one, or all shifted by as many; where each part is, from one end to the other.
  std::vector<bool> flags(from.size());
  const bool is_whole = from.size() > 2 && std::find(from.begin(), from.end(), -1) == from.end();
  const std::int64_t turn = is_whole ? std::ssize(from) : std::numeric_limits<std::int64_t>::max();
  std::int64_t same = -1, step = 0;
  bool all_same = true, all_shifted = true;
  for (std::size_t part = 0; part < from.size(); ++part) {
    if (from[part] < 0) continue;
    const std::int64_t by = from[part] - static_cast<std::int64_t>(part);
    if (same < 0) same = from[part], step = by;
    all_same = all_same && from[part] == same;
    all_shifted = all_shifted && (by - step) % turn == 0;
    if (std::abs(by) < std::abs(step)) step = by;
    flags[part] = true;
  }
  const std::int64_t count = std::count(flags.begin(), flags.end(), true);
  if (count == 0) return "";
  if (count > 1 && all_same)
    return fmt::format("{} {} hold {} of {} {}", many, ranges_of(flags, 4), what, one, same);
  if (count > 1 && all_shifted)
    return fmt::format("{} {} hold {} of the {} {} {} them", many, ranges_of(flags, 4), what, one,
                       std::abs(step) == 1 ? "just" : fmt::format("{}", std::abs(step)),
                       step > 0 ? "after" : "before");
  for (std::size_t part = 0; part < from.size(); ++part) {
    const std::int64_t other = from[part];
    if (other < 0) continue;
    if (words.size() == kMostNamed) {
      words.emplace_back("...");
      break;
    }
    const bool mutual = static_cast<std::size_t>(other) < from.size() &&
                        from[static_cast<std::size_t>(other)] == static_cast<std::int64_t>(part);
    if (mutual && static_cast<std::size_t>(other) < part) continue;
    words.push_back(mutual ? fmt::format("{} {} and {} hold {} of each other", many, part, other, what)
                           : fmt::format("{} {} holds {} of {} {}", one, part, what, one, other));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

const FaultSearch::Agreement& FaultSearch::Tested::of(std::size_t h, std::size_t rows) {
  Agreement& agreement = agreements[h];
  if (!agreement.whole && agreement.looked < rows)
    search.try_rows(models[h], search.first_, {}, rows, agreement);
  return agreement;
}

// The model that explains nearly all that is left, and contradicts the fewest of the other rows.
std::optional<std::size_t> FaultSearch::best_everywhere(Tested& tested,
                                                        const std::vector<bool>& refuted) const {
  const double open = weight_left(first_);
  std::optional<std::size_t> best;
  double most = 0, against = 2;
  for (std::size_t h = 0; h < tested.models.size(); ++h) {
    if (refuted[h]) continue;
    const Agreement& agreement = tested.of(h, kFirst);
    double weight = 0;
    bool has_numbers = !tested.models[h].needs_numbers;
    for (std::size_t i = 0; i < first_.size(); ++i) {
      if (!first_[i].left || agreement.agree[i] == 0) continue;
      weight += first_[i].weight;
      has_numbers = has_numbers || first_[i].place.back() == numbers;
    }
    if (weight < kMost * open || !has_numbers) continue;
    const double contradictions = contradicted(tested.models[h], {}).same_parts;
    if (contradictions > against || (contradictions == against && weight <= most * 1.005)) continue;
    best = h;
    most = weight;
    against = contradictions;
    if (weight >= open && against == 0) break;
  }
  return best;
}

std::vector<Found> FaultSearch::run(const std::vector<FaultModel>& models) {
  std::vector<Found> all;
  Tested tested{*this, models, std::vector<Agreement>(models.size())};
  const auto is_accepted = [&](std::size_t h, const std::optional<Scope>& scope) {
    auto found = accept(models[h], tested.of(h, first_.size()), scope);
    if (!found) return false;
    found->model = h;
    all.push_back(std::move(*found));
    for (Agreement& agreement : tested.agreements)
      if (!agreement.whole) agreement.looked = 0;
    return true;
  };
  const auto is_counted_out = [&](Contents contents) {
    auto found = count_out(contents);
    if (!found) return false;
    all.push_back(std::move(*found));
    tested.agreements.assign(models.size(), {});
    return true;
  };
  std::vector<bool> refuted(models.size()), refuted_in_parts(models.size());
  while (is_open() && weight_left(first_) > 0) {
    if (const auto best = best_everywhere(tested, refuted)) {
      if (!is_accepted(*best, std::nullopt)) refuted[*best] = true;
      continue;
    }
    if (is_counted_out(zeros)) continue;
    // What explains some heads, entries or groups.
    const auto rows = static_cast<std::size_t>(
        std::clamp(kNanoseconds / (row_nanoseconds_ * static_cast<double>(models.size() + 1)),
                   static_cast<double>(kFirst), static_cast<double>(std::max(kFirst, parts_in_first_))));
    std::optional<Scope> scope;
    std::optional<std::size_t> best;
    double most = 0;
    for (std::size_t h = 0; h < models.size(); ++h) {
      if (refuted_in_parts[h]) continue;
      if (auto found = scope_of(tested.of(h, rows), nullptr, {}, models[h].needs_numbers, most))
        scope = std::move(found), best = h;
    }
    if (best) {
      if (!is_accepted(*best, scope)) refuted_in_parts[*best] = true;
      continue;
    }
    if (!is_counted_out(not_numbers)) break;
  }
  return all;
}

}  // namespace ejk::verify
