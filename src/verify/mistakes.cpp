// Two samples of the rows that are beyond their bound: one to find what holds, a larger one to confirm it. Cost: a
// mistake that fails on a dozen rows is given up, so about a dozen rows for each of them, and all sampled rows
// for the few that hold.
//
// tests: tests/verify/test_mistakes.cpp
#include "verify/mistakes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.hpp"
#include "core/splitmix64.hpp"
#include "verify/error_stats.hpp"
#include "verify/sample.hpp"

namespace ejk::verify {

namespace {

constexpr double kMost = 0.95;      // of rows, or of a row's elements, that have to agree
constexpr std::size_t kFirst = 12;  // rows by which a mistake is given up
constexpr std::int64_t kColumns = 32;

}  // namespace

MistakeSearch::MistakeSearch(const ResultRows& result, const RowCounts& counts, double row_nanoseconds)
    : result_(result), counts_(counts), row_nanoseconds_(row_nanoseconds) {
  const auto wanted = static_cast<std::int64_t>(std::clamp(3e8 / std::max(row_nanoseconds, 1.0), 16.0, 64.0));
  bad_ = flags_of(counts.beyond);
  first_ = choose(Rows::beyond, wanted, 1);
  second_ = choose(Rows::beyond, 4 * wanted, 2);
  within_ = choose(Rows::within, wanted / 2, 3);
}

// Rows of each part in equal number, so that none is left out because others have more.
MistakeSearch::Sample MistakeSearch::choose(Rows rows, std::int64_t wanted, std::int64_t seed) const {
  const auto axis = std::find_if(result_.axes.begin(), result_.axes.end(),
                                 [](const RowAxis& a) { return a.kind == RowAxis::Kind::part; });
  const auto a = static_cast<std::size_t>(axis - result_.axes.begin());
  const std::size_t strata = axis == result_.axes.end() ? 0 : static_cast<std::size_t>(axis->length);
  std::vector<std::int64_t> place(result_.axes.size());
  const auto stratum = [&](std::int64_t row) {
    result_.place(row, place.data());
    return strata == 0 || place[a] < 0 ? strata : static_cast<std::size_t>(place[a]);
  };
  struct Part {
    std::int64_t rows = 0, elements = 0, seen = 0;
    std::vector<std::int64_t> chosen;
    std::size_t next = 0;
    double sampled = 0;
  };
  std::vector<Part> parts(strata + 1);
  const auto counts = [&](std::int64_t row) {
    return (counts_.beyond[static_cast<std::size_t>(row)] > 0) == (rows == Rows::beyond);
  };
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    if (!counts(row)) continue;
    const std::size_t of = stratum(row);
    ++parts[of].rows;
    parts[of].elements += counts_.beyond[static_cast<std::size_t>(row)];
  }
  std::vector<std::size_t> bad;
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (parts[p].rows > 0) bad.push_back(p);
  const std::int64_t each = std::max<std::int64_t>(4, wanted / std::max<std::int64_t>(1, std::ssize(bad)));
  for (const std::int64_t n : sample_rows(std::ssize(bad), std::max<std::int64_t>(0, wanted - 2), seed)) {
    Part& part = parts[bad[static_cast<std::size_t>(n)]];
    part.chosen = sample_rows(part.rows, each - 2, seed);
  }
  Sample sample;
  std::vector<double> given(static_cast<std::size_t>(result_.columns)), expected(given), allowed(given);
  const FloatType type = float_type(result_.dtype);
  std::vector<std::size_t> stratum_of;
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    const std::uint32_t beyond = counts_.beyond[static_cast<std::size_t>(row)];
    if (!counts(row)) continue;
    const std::size_t p = stratum(row);
    Part& part = parts[p];
    const std::int64_t ordinal = part.seen++;
    if (part.next == part.chosen.size() || part.chosen[part.next] != ordinal) continue;
    while (part.next < part.chosen.size() && part.chosen[part.next] == ordinal) ++part.next;
    Sampled s;
    s.row = row;
    s.place = place;
    result_.given(row, given.data());
    result_.expected(row, expected.data(), allowed.data());
    std::vector<bool> wrong(given.size());
    std::vector<std::int64_t> wrong_columns;
    for (std::size_t c = 0; c < given.size(); ++c) {
      wrong[c] = !judge(type, given[c], expected[c], allowed[c], std::isinf(allowed[c])).right;
      if (wrong[c]) wrong_columns.push_back(static_cast<std::int64_t>(c));
    }
    for (const std::int64_t n : sample_rows(std::ssize(wrong_columns), kColumns, seed + row))
      s.columns.push_back(wrong_columns[static_cast<std::size_t>(n)]);
    for (const std::int64_t c : sample_rows(result_.columns, kColumns, seed + row + 1))
      s.columns.push_back(c);
    std::sort(s.columns.begin(), s.columns.end());
    s.columns.erase(std::unique(s.columns.begin(), s.columns.end()), s.columns.end());
    for (const std::int64_t c : s.columns) {
      s.given.push_back(given[static_cast<std::size_t>(c)]);
      s.expected.push_back(expected[static_cast<std::size_t>(c)]);
      s.beyond.push_back(wrong[static_cast<std::size_t>(c)]);
    }
    s.weight = beyond;
    part.sampled += beyond;
    stratum_of.push_back(p);
    sample.push_back(std::move(s));
  }
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const Part& part = parts[stratum_of[i]];
    if (part.sampled > 0) sample[i].weight *= static_cast<double>(part.elements) / part.sampled;
  }
  // The first dozen are of all parts.
  std::sort(sample.begin(), sample.end(), [](const Sampled& x, const Sampled& y) {
    const auto key = [](const Sampled& s) { return core::splitmix64(static_cast<std::uint64_t>(s.row)); };
    return key(x) < key(y);
  });
  return sample;
}

// Whether a row agrees with what it would be: of one beyond its bound some element has to that is.
MistakeSearch::Answer MistakeSearch::answer(const Mistake& mistake, const Sampled& s, Zeros zeros) const {
  std::vector<double> values(s.columns.size()), allowed(s.columns.size());
  if (!mistake.values(s.row, s.columns, values.data(), allowed.data())) return Answer::silent;
  const FloatType type = float_type(result_.dtype);
  std::size_t looked = 0, wrong = 0, beyond = 0, explained = 0;
  for (std::size_t c = 0; c < values.size(); ++c) {
    if (zeros == Zeros::skip && s.beyond[c] && s.given[c] == 0) continue;
    ++looked;
    beyond += s.beyond[c];
    if (std::isinf(allowed[c]) || !judge(type, s.given[c], values[c], allowed[c]).right)
      ++wrong;
    else
      explained += s.beyond[c];
  }
  const bool is_beyond = std::find(s.beyond.begin(), s.beyond.end(), true) != s.beyond.end();
  if (is_beyond && beyond == 0) return Answer::silent;
  if (static_cast<double>(wrong) > (1 - kMost) * static_cast<double>(looked)) return Answer::no;
  return is_beyond && explained == 0 ? Answer::no : Answer::yes;
}

// The share of the rows within their bound that it would put beyond it: of parts that have others beyond, and of
// parts that have not.
MistakeSearch::Contradicted MistakeSearch::contradicted(const Mistake& mistake, const Scope& scope) const {
  std::vector<char> wrong(within_.size());
  core::parallel_for(
      std::ssize(within_), row_nanoseconds_ * static_cast<double>(within_.size()), [&](std::int64_t n) {
        const Sampled& s = within_[static_cast<std::size_t>(n)];
        wrong[static_cast<std::size_t>(n)] = scope.holds(s) && answer(mistake, s, Zeros::count) == Answer::no;
      });
  struct {
    double all = 0, no = 0;
  } counts[2];
  for (std::size_t n = 0; n < within_.size(); ++n) {
    if (!scope.holds(within_[n])) continue;
    bool same_parts = true;
    for (std::size_t a = 0; a < bad_.size(); ++a) {
      const std::int64_t at = within_[n].place[a];
      if (result_.axes[a].kind == RowAxis::Kind::part)
        same_parts = same_parts && at >= 0 && bad_[a][static_cast<std::size_t>(at)];
    }
    ++counts[same_parts].all;
    counts[same_parts].no += wrong[n];
  }
  const auto share = [](const auto& count) { return count.all > 0 ? count.no / count.all : 0; };
  return {share(counts[1]), share(counts[0])};
}

// Of the rows that are left and in the scope; nothing more than `first` of them where none of those agrees.
std::vector<char> MistakeSearch::agreement(const Mistake& mistake, const Sample& sample, const Scope& scope,
                                           std::size_t first) const {
  std::vector<char> agree(sample.size());
  std::vector<std::size_t> looked;
  for (std::size_t i = 0; i < sample.size(); ++i)
    if (sample[i].left && scope.holds(sample[i])) looked.push_back(i);
  const auto look = [&](std::size_t begin, std::size_t end) {
    core::parallel_for(static_cast<std::int64_t>(end - begin),
                       row_nanoseconds_ * static_cast<double>(end - begin), [&](std::int64_t n) {
                         const std::size_t i = looked[begin + static_cast<std::size_t>(n)];
                         agree[i] = answer(mistake, sample[i], zeros_) == Answer::yes;
                       });
  };
  const std::size_t some = std::min(first, looked.size());
  look(0, some);
  if (std::none_of(agree.begin(), agree.end(), [](char a) { return a != 0; })) return agree;
  look(some, looked.size());
  return agree;
}

double MistakeSearch::weight_of(const Sample& sample, const std::vector<char>& agree,
                                const Scope& scope) const {
  double sum = 0;
  for (std::size_t i = 0; i < sample.size(); ++i)
    if (sample[i].left && scope.holds(sample[i]) && (agree.empty() || agree[i] != 0)) sum += sample[i].weight;
  return sum;
}

double MistakeSearch::left() const {
  double all = 0, left = 0;
  for (const Sampled& s : second_) all += s.weight, left += s.left ? s.weight : 0;
  return all > 0 ? written_ * left / all : 0;
}

double MistakeSearch::leave_out(const Mistake& mistake) {
  const double before = left();
  for (Sample* sample : {&first_, &second_}) {
    const auto agree = agreement(mistake, *sample, {}, sample->size());
    for (std::size_t i = 0; i < agree.size(); ++i)
      if (agree[i] != 0) (*sample)[i].left = false;
  }
  return before - left();
}

// Confirms it on the second sample, and leaves out what it explains.
bool MistakeSearch::holds(const Mistake& mistake, const Scope& scope) {
  const auto agree = agreement(mistake, second_, scope, kFirst);
  if (weight_of(second_, agree, scope) < kMost * weight_of(second_, {}, scope)) return false;
  for (std::size_t i = 0; i < agree.size(); ++i)
    if (agree[i] != 0) second_[i].left = false;
  return true;
}

// The parts of an axis in which all rows agree; nothing where there are none.
std::optional<MistakeSearch::Scope> MistakeSearch::scope_of(const std::vector<char>& agree,
                                                            double& explained) const {
  std::optional<Scope> best;
  for (std::size_t a = 0; a < result_.axes.size(); ++a) {
    const RowAxis& axis = result_.axes[a];
    if (axis.kind != RowAxis::Kind::part || axis.length < 2) continue;
    struct Part {
      int agreeing = 0, all = 0;
      double weight = 0;
    };
    std::vector<Part> parts(static_cast<std::size_t>(axis.length));
    for (std::size_t i = 0; i < first_.size(); ++i) {
      if (!first_[i].left || first_[i].place[a] < 0) continue;
      Part& part = parts[static_cast<std::size_t>(first_[i].place[a])];
      ++part.all;
      part.agreeing += agree[i] != 0;
      part.weight += first_[i].weight;
    }
    Scope scope{a, std::vector<bool>(parts.size())};
    double weight = 0;
    for (std::size_t p = 0; p < parts.size(); ++p)
      if (parts[p].agreeing > 0 && parts[p].agreeing >= kMost * parts[p].all)
        scope.parts[p] = true, weight += parts[p].weight;
    if (weight > explained) explained = weight, best = std::move(scope);
  }
  return best;
}

// The indices of each axis with rows that count something.
std::vector<std::vector<bool>> MistakeSearch::flags_of(const std::vector<std::uint32_t>& counts) const {
  std::vector<std::vector<bool>> flags;
  for (const RowAxis& axis : result_.axes) flags.emplace_back(static_cast<std::size_t>(axis.length));
  std::vector<std::int64_t> place(result_.axes.size());
  for (std::int64_t row = 0; row < result_.rows; ++row) {
    if (counts[static_cast<std::size_t>(row)] == 0) continue;
    result_.place(row, place.data());
    for (std::size_t a = 0; a < flags.size(); ++a)
      if (place[a] >= 0) flags[a][static_cast<std::size_t>(place[a])] = true;
  }
  return flags;
}

// " in head 3, queries 8-15": axes of which some indices are flagged and others are not.
std::string MistakeSearch::where(const std::vector<std::vector<bool>>& flags, bool positions) const {
  std::string text;
  for (std::size_t a = 0; a < flags.size(); ++a) {
    const RowAxis& axis = result_.axes[a];
    if (axis.kind == RowAxis::Kind::position && !positions) continue;
    const std::int64_t count = std::count(flags[a].begin(), flags[a].end(), true);
    if (count == 0 || count == axis.length) continue;
    text += fmt::format("{} {} {}", text.empty() ? " in" : ",", count == 1 ? axis.name : axis.plural,
                        ranges_of(flags[a], 4));
  }
  return text;
}

// Elements that are 0 where another number belongs, which no mistake in a computation makes them.
std::optional<Found> MistakeSearch::unwritten() {
  double zeros = 0, beyond = 0;
  for (std::size_t r = 0; r < counts_.beyond.size(); ++r)
    zeros += counts_.zeros[r], beyond += counts_.beyond[r];
  if (zeros_ == Zeros::skip || zeros < 0.005 * beyond) return std::nullopt;
  zeros_ = Zeros::skip;
  for (Sample* sample : {&first_, &second_})
    for (Sampled& s : *sample) {
      std::size_t wrong = 0, zero = 0;
      for (std::size_t c = 0; c < s.columns.size(); ++c)
        if (s.beyond[c]) ++wrong, zero += s.given[c] == 0;
      s.weight *= 1 - static_cast<double>(zero) / static_cast<double>(std::max<std::size_t>(wrong, 1));
      if (zero == wrong) s.left = false;
    }
  written_ = 1 - zeros / beyond;
  std::string place = where(flags_of(counts_.zeros), true);
  const std::vector<bool>& columns = counts_.zero_columns;
  const auto count = std::count(columns.begin(), columns.end(), true);
  if (!result_.column.empty() && count < result_.columns)
    place += fmt::format("{} {} {}", place.empty() ? " in" : ",",
                         count == 1 ? result_.column : result_.columns_name, ranges_of(columns, 4));
  return Found{{"unwritten", "0 stands there, as if never written", zeros / beyond}, place, std::nullopt};
}

std::vector<std::int64_t> MistakeSearch::partners(
    std::size_t axis, std::int64_t candidates,
    const std::function<Mistake(std::int64_t candidate)>& mistake) const {
  constexpr double kNanoseconds = 1e10;  // in all
  constexpr std::size_t kRows = 3;       // of each part
  const auto parts = static_cast<std::size_t>(result_.axes[axis].length);
  std::vector<std::vector<const Sampled*>> rows(parts);
  std::vector<std::size_t> bad;
  for (const Sampled& s : first_) {
    if (!s.left || s.place[axis] < 0) continue;
    auto& of = rows[static_cast<std::size_t>(s.place[axis])];
    if (of.size() < kRows) of.push_back(&s);
    if (of.size() == 1) bad.push_back(static_cast<std::size_t>(s.place[axis]));
  }
  std::vector<std::int64_t> from(parts, -1);
  const double work = row_nanoseconds_ * static_cast<double>(bad.size()) * static_cast<double>(candidates);
  if (work > kNanoseconds) return from;
  core::parallel_for(std::ssize(bad), work, [&](std::int64_t n) {
    const std::size_t part = bad[static_cast<std::size_t>(n)];
    for (std::int64_t c = 0; c < candidates; ++c) {
      if (c == static_cast<std::int64_t>(part)) continue;
      const Mistake it = mistake(c);
      int yes = 0, no = 0;
      for (const Sampled* s : rows[part]) {
        const Answer said = answer(it, *s, Zeros::skip);
        yes += said == Answer::yes;
        no += said == Answer::no;
        if (no > 0) break;
      }
      if (yes == 0 || no > 0) continue;
      from[part] = c;
      return;
    }
  });
  return from;
}

bool MistakeSearch::is_enough_to_fit() const {
  std::int64_t rows = 0, elements = 0;
  for (const Sampled& s : first_) {
    if (!s.left) continue;
    ++rows;
    elements += std::count(s.beyond.begin(), s.beyond.end(), true);
  }
  return rows >= 2 && elements >= 8;
}

std::optional<Mistake> MistakeSearch::factor() const {
  if (!is_enough_to_fit()) return std::nullopt;
  constexpr double kLn2 = 0.69314718055994530942;
  std::vector<double> factors;
  for (const Sampled& s : first_)
    for (std::size_t c = 0; s.left && c < s.given.size(); ++c) {
      const double factor = s.given[c] / s.expected[c];
      if (s.beyond[c] && factor != 0 && std::isfinite(factor)) factors.push_back(factor);
    }
  if (factors.empty()) return std::nullopt;
  const auto middle = factors.begin() + static_cast<std::ptrdiff_t>(factors.size() / 2);
  std::nth_element(factors.begin(), middle, factors.end());
  double factor = *middle;
  std::string name = fmt::format("{:.6g}", factor);
  for (const auto& [value, text] :
       {std::pair{2.0, "2"}, {0.5, "1/2"}, {kLn2, "ln 2"}, {1 / kLn2, "1/ln 2"}, {-1.0, "-1"}})
    if (std::abs(factor / value - 1) < 1e-2 && std::abs(value - 1) > 1e-2) factor = value, name = text;
  return Mistake{"factor", fmt::format("it is {} times what it should be", name),
                 [this, factor](std::int64_t row, std::span<const std::int64_t> columns, double* values,
                                double* allowed) {
                   std::vector<double> all(static_cast<std::size_t>(result_.columns)), may(all);
                   result_.expected(row, all.data(), may.data());
                   for (std::size_t c = 0; c < columns.size(); ++c) {
                     const auto at = static_cast<std::size_t>(columns[c]);
                     values[c] = factor * all[at];
                     allowed[c] = std::max(1.0, std::abs(factor)) * may[at];
                   }
                   return true;
                 }};
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
  constexpr std::size_t kTold = 6;
  std::vector<std::string> words;
  // All of the same one, or all shifted by as many.
  std::vector<bool> flags(from.size());
  std::int64_t same = -1, step = 0;
  bool all_same = true, all_shifted = true;
  for (std::size_t part = 0; part < from.size(); ++part) {
    if (from[part] < 0) continue;
    const std::int64_t by = from[part] - static_cast<std::int64_t>(part);
    if (same < 0) same = from[part], step = by;
    all_same = all_same && from[part] == same;
    all_shifted = all_shifted && by == step;
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
    if (words.size() == kTold) {
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

std::vector<Found> MistakeSearch::run(const std::vector<Mistake>& mistakes) {
  std::vector<Found> all;
  std::vector<std::vector<char>> agree(mistakes.size());
  const auto explained_by = [&](std::size_t h) -> const std::vector<char>& {
    if (agree[h].empty()) agree[h] = agreement(mistakes[h], first_, {}, kFirst);
    return agree[h];
  };
  const auto accept = [&](std::size_t h, const Scope& scope) {
    const Mistake& it = mistakes[h];
    const double before = left();
    // Everywhere is where rows are beyond their bound and not explained yet.
    auto flags = bad_;
    if (!scope.parts.empty()) {
      for (auto& axis : flags) axis.assign(axis.size(), false);
      flags[scope.axis] = scope.parts;
    } else if (before < 0.999 * written_) {
      for (auto& axis : flags) axis.assign(axis.size(), false);
      for (const Sample* sample : {&first_, &second_})
        for (const Sampled& s : *sample)
          for (std::size_t a = 0; s.left && a < flags.size(); ++a)
            if (s.place[a] >= 0) flags[a][static_cast<std::size_t>(s.place[a])] = true;
    }
    if (!holds(it, scope)) return false;
    for (std::size_t i = 0; i < first_.size(); ++i)
      if (agree[h][i] != 0 && scope.holds(first_[i])) first_[i].left = false;
    // It holds in some parts, or in some rows of theirs, where it would change others that are right.
    const auto [same, others] = contradicted(it, {});
    const bool said = it.says_where ||
                      (scope.parts.empty() && before >= 0.999 * written_ && others == 0 && same <= 1 - kMost);
    all.push_back({{it.kind, it.text, before - left()},
                   said ? "" : where(flags, scope.parts.empty() && same > 1 - kMost),
                   h});
    return true;
  };
  std::vector<bool> refuted(mistakes.size());
  while (left() > 1 - kMost) {
    const double open = weight_of(first_, {}, {});
    if (!(open > 0)) break;
    // What explains all that is left.
    std::optional<std::size_t> best;
    double most = 0, against = 2;
    for (std::size_t h = 0; h < mistakes.size(); ++h) {
      if (refuted[h]) continue;
      const double weight = weight_of(first_, explained_by(h), {});
      if (weight < kMost * open) continue;
      // What would put other rows beyond their bound is less likely.
      const double contradictions = contradicted(mistakes[h], {}).same_parts;
      if (contradictions > against || (contradictions == against && weight <= most * 1.005)) continue;
      best = h;
      most = weight;
      against = contradictions;
      if (weight >= open && against == 0) break;
    }
    if (best) {
      if (!accept(*best, {})) refuted[*best] = true;
      continue;
    }
    if (const auto zeros = unwritten()) {
      all.push_back(*zeros);
      agree.assign(mistakes.size(), {});
      continue;
    }
    // What explains some heads, entries or groups.
    std::optional<Scope> scope;
    most = 0;
    for (std::size_t h = 0; h < mistakes.size(); ++h) {
      if (refuted[h]) continue;
      if (auto found = scope_of(explained_by(h), most)) scope = std::move(found), best = h;
    }
    if (!best) break;
    if (!accept(*best, *scope)) refuted[*best] = true;
  }
  return all;
}

}  // namespace ejk::verify
