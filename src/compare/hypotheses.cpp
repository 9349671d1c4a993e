// Hypotheses of ejk/program/explain.hpp: how each is fitted to a sample of the differences, and what it predicts. A
// fit must be more than chance: a factor or an offset must exceed the tolerance well, and an index match
// another one in more places than any would by chance. The test on all elements is in value_search.cpp.
// tests: tests/compare/test_explain.cpp
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numbers>
#include <numeric>
#include <set>

#include "compare/float_type.hpp"
#include "compare/hypothesis.hpp"
#include "core/splitmix64.hpp"

namespace ejk::verify {

namespace {

using Samples = std::vector<const Sample*>;

constexpr double kMostlyHolds = 0.95;
constexpr std::size_t kFewestSamples = 8;       // of a fit
constexpr std::int64_t kMostIndices = 1 << 18;  // of an axis whose indices are matched one by one
constexpr std::int64_t kGrowAtOnce = 1 << 18;   // elements read at once to extend a box

Samples all_of(const Evidence& evidence) {
  Samples samples;
  for (const Sample& sample : evidence.samples) samples.push_back(&sample);
  return samples;
}

Samples some_of(const Evidence& evidence, std::size_t most) {
  const std::size_t n = evidence.samples.size();
  if (n <= most) return all_of(evidence);
  Samples samples;
  for (std::size_t i = 0; i < most; ++i) samples.push_back(&evidence.samples[core::splitmix64(i) % n]);
  return samples;
}

template <class Holds>
double fraction_that(const Samples& samples, Holds&& holds) {
  if (samples.empty()) return 0;
  return static_cast<double>(std::count_if(samples.begin(), samples.end(), holds)) /
         static_cast<double>(samples.size());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Unwritten elements are equal to any others that are.
bool is_evidence(double actual) { return std::isfinite(actual) && actual != 0; }

// A prediction must halve the difference of an element: agreement within a wide tolerance is no explanation.
bool is_nearer(double actual, double expected, double predicted, const Agreement& agree) {
  const double was = std::abs(actual - expected), is = std::abs(actual - predicted);
  return !(was > agree.atol + agree.rtol * std::abs(expected) && 2 * is > was);
}

}  // namespace

void mark_predicted(const ComparedLine& line, const Agreement& agree, const double* predicted) {
  agree.mark_differences(line.actual, predicted, line.n, line.holds);
  for (std::int64_t i = 0; i < line.n; ++i)
    line.holds[i] = static_cast<std::uint8_t>(
        (line.holds[i] ^ 1) & is_nearer(line.actual[i], line.expected[i], predicted[i], agree));
}

HypothesisPtr hypothesis_of(const Evidence& e, decltype(Hypothesis::evaluate) evaluate, std::string text) {
  return std::make_shared<Hypothesis>(Hypothesis{"", Scope(e.naming.shape.size()), std::move(evaluate),
                                                 [text = std::move(text)](const Scope&) { return text; }});
}

namespace {

// The same for elements from other lines: `flats` are their positions in the expected array.
void evaluate_moved(const ComparedLine& line, const Agreement& agree, const double* predicted,
                    const std::vector<std::int64_t>& flats) {
  if (agree.lines == nullptr) return mark_predicted(line, agree, predicted);
  for (std::int64_t i = 0; i < line.n; ++i) {
    const Agreement source_agree = agree.at_flat(flats[static_cast<std::size_t>(i)]);
    line.holds[i] = source_agree(line.actual[i], predicted[i]) &&
                    is_nearer(line.actual[i], line.expected[i], predicted[i], source_agree);
  }
}

// The same, with predict(expected element).
template <class Predict>
void evaluate_each(const ComparedLine& line, const Agreement& agree, Scratch& scratch, Predict predict) {
  scratch.values.resize(static_cast<std::size_t>(line.n));
  double* predicted = scratch.values.data();
  for (std::int64_t i = 0; i < line.n; ++i) predicted[i] = predict(line.expected[i]);
  mark_predicted(line, agree, predicted);
}

// Of samples, those that a hypothesis predicts anything for, and how many it predicts right.
struct Votes {
  Samples predicted;
  std::size_t correct = 0;

  // 0 where it predicts too few of them.
  double fraction(std::size_t least) const {
    return predicted.size() < std::max<std::size_t>(least, 1)
               ? 0
               : static_cast<double>(correct) / static_cast<double>(predicted.size());
  }
};

Votes votes_for(const Hypothesis& hypothesis, const Samples& samples) {
  Votes votes;
  Scratch scratch;
  for (const Sample* s : samples) {
    std::uint8_t in_scope = 0, holds = 0;
    hypothesis.evaluate(hypothesis.scope, {s->at, 1, &s->actual, &s->expected, &in_scope, &holds}, scratch);
    if (in_scope == 0) continue;
    votes.predicted.push_back(s);
    votes.correct += holds;
  }
  return votes;
}

// --- one number for all elements: a factor, an offset

enum class Constant { factor, offset };

double apply(Constant kind, double expected, double constant) {
  return kind == Constant::factor ? expected * constant : expected + constant;
}

// How many times the tolerance of the expected elements that of the results may be: their errors have the
// factor, too.
double scale_of(Constant kind, double constant) { return kind == Constant::factor ? std::abs(constant) : 1; }

Agreement scaled(Agreement agree, double scale) {
  agree.atol *= scale;
  return agree;
}

// a = c e, or a - e = c, fitted to samples.
struct ConstantFit {
  double c = 0;
  double deviation = 0;      // of c, from the tolerances
  double left = 0, all = 0;  // sums of squares in units of the tolerances: of the residuals, of a - e
  std::size_t elements = 0;

  // That of one element, relative to c.
  double relative_tolerance() const {
    return deviation * std::sqrt(3 * static_cast<double>(elements)) / std::abs(c);
  }
};

// y = c x, in units of the tolerance.
struct Term {
  double x, y, difference;
};

// The median of the best conditioned half of the terms, then least squares of those near it.
ConstantFit fit_terms(Constant kind, std::vector<Term> terms) {
  if (terms.empty()) return {};
  const auto half = terms.begin() + std::ssize(terms) / 2;
  std::nth_element(terms.begin(), half, terms.end(),
                   [](const Term& s, const Term& t) { return std::abs(s.x) > std::abs(t.x); });
  std::vector<double> ratios;
  for (auto term = terms.begin(); term <= half; ++term)
    if (term->x != 0) ratios.push_back(term->y / term->x);
  if (ratios.empty()) return {};
  ConstantFit fit{median(std::move(ratios))};
  for (int turn = 0; turn < 2; ++turn) {
    const double before = fit.c, scale = scale_of(kind, before);
    double products = 0, squares = 0;
    fit = {};
    for (const Term& term : terms) {
      const double residual = term.y - before * term.x;
      if (!(std::abs(residual) <= 4 * scale)) continue;
      products += term.x * term.y;
      squares += term.x * term.x;
      fit.left += residual * residual;
      fit.all += term.difference * term.difference;
      ++fit.elements;
    }
    if (!(squares > 0)) return {};
    fit.c = products / squares;
    fit.deviation = scale / std::sqrt(3 * squares);  // of errors distributed uniformly within the tolerance
  }
  return fit;
}

ConstantFit fit_to(Constant kind, const Samples& samples, const Agreement& agree) {
  std::vector<Term> terms;
  for (const Sample* s : samples) {
    if (!std::isfinite(s->actual) || !std::isfinite(s->expected)) continue;
    const Agreement here = agree.at(s->at);
    const double size = std::abs(s->expected), difference = s->actual - s->expected;
    const double tolerance =
        std::max(here.atol + here.rtol * size, 1e-12 * std::max(size, std::abs(s->actual)));
    if (!(tolerance > 0)) continue;
    if (kind == Constant::factor)
      terms.push_back({s->expected / tolerance, s->actual / tolerance, difference / tolerance});
    else
      terms.push_back({1 / tolerance, difference / tolerance, difference / tolerance});
  }
  return fit_terms(kind, std::move(terms));
}

}  // namespace

std::optional<FittedFactor> fit_factor(std::span<const double> actual, std::span<const double> expected,
                                       std::span<const double> allowed) {
  std::vector<Term> terms;
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (std::isfinite(actual[i]) && std::isfinite(expected[i]) && std::isfinite(allowed[i]) && allowed[i] > 0)
      terms.push_back(
          {expected[i] / allowed[i], actual[i] / allowed[i], (actual[i] - expected[i]) / allowed[i]});
  const ConstantFit fit = fit_terms(Constant::factor, std::move(terms));
  if (fit.elements < kFewestSamples) return std::nullopt;
  // Errors have the factor, too.
  return FittedFactor{fit.c, fit.deviation * std::min(1.0, std::abs(fit.c))};
}

namespace {

std::optional<ConstantFit> fit_one(Constant kind, const Samples& samples, const Agreement& agree) {
  const ConstantFit fit = fit_to(kind, samples, agree);
  const bool is_factor = kind == Constant::factor;
  if (fit.elements < kFewestSamples || !std::isfinite(fit.c) || (is_factor && std::abs(fit.c) < 1e-30) ||
      std::abs(fit.c - (is_factor ? 1 : 0)) <= 6 * fit.deviation || fit.left > fit.all / 16)
    return std::nullopt;
  const auto agrees = [&](const Sample& s, double expected) {
    return scaled(agree.at(s.at), scale_of(kind, fit.c))(s.actual, apply(kind, expected, fit.c));
  };
  const auto holds = [&](const Sample* s) { return agrees(*s, s->expected); };
  if (fraction_that(samples, holds) < kMostlyHolds) return std::nullopt;
  // Another expected element must not do as well: otherwise the actual ones have nothing to do with them.
  std::size_t others = 0, as_well = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double other = samples[(i + samples.size() / 2) % samples.size()]->expected;
    if (agree.at(samples[i]->at)(samples[i]->expected, other)) continue;
    ++others;
    as_well += agrees(*samples[i], other);
  }
  return others > 0 && 2 * as_well <= others ? std::optional(fit) : std::nullopt;
}

// The same, unless the other kind fits, too: nearly equal elements determine neither.
std::optional<ConstantFit> fit_constant(Constant kind, const Samples& samples, const Agreement& agree) {
  const auto fit = fit_one(kind, samples, agree);
  const Constant other = kind == Constant::factor ? Constant::offset : Constant::factor;
  return fit && !fit_one(other, samples, agree) ? fit : std::nullopt;
}

struct NamedFactor {
  double value;
  std::string name;
};

std::vector<NamedFactor> named_factors(const Shape& shape) {
  std::vector<NamedFactor> named{{std::numbers::ln2, "ln 2, as between logarithms to base e and 2"},
                                 {1 / std::numbers::ln2, "1 / ln 2, as between logarithms to base 2 and e"},
                                 {2, ""},
                                 {0.5, ""},
                                 {-1, "the sign"}};
  std::set<std::int64_t, std::greater<>> lengths;
  if (!shape.empty()) lengths.insert(shape.back());
  for (const std::int64_t length : shape) lengths.insert(length);
  for (const std::int64_t length : lengths) {
    if (length < 3) continue;
    const auto n = static_cast<double>(length);
    named.push_back({std::sqrt(n), fmt::format("√{}", length)});
    named.push_back({1 / std::sqrt(n), fmt::format("1 / √{}", length)});
    named.push_back({n, fmt::format("{}", length)});
    named.push_back({1 / n, fmt::format("1 / {}", length)});
  }
  return named;
}

HypothesisPtr constant_hypothesis(const Evidence& e, Constant kind, double constant, std::string text) {
  return hypothesis_of(
      e,
      [kind, constant, agree = e.agree](const Scope& scope, const ComparedLine& line, Scratch& scratch) {
        if (!scope.mark(line.at, line.n, line.in_scope)) return false;
        evaluate_each(line, scaled(agree.at(line.at), scale_of(kind, constant)), scratch,
                      [=](double expected) { return apply(kind, expected, constant); });
        return true;
      },
      std::move(text));
}

// The constant that has a name, or the fewest digits, among those that hold as often.
HypothesisPtr make_constant(const Evidence& e, Constant kind, const ConstantFit& fit,
                            const Samples& samples) {
  // Rounding differs between the results: it moves a constant by a fraction of their tolerance.
  const double apart =
      std::max(6 * fit.deviation / std::abs(fit.c), std::clamp(0.2 * fit.relative_tolerance(), 1e-4, 4e-3));
  const auto fraction_with = [&](double c) {
    return fraction_that(samples, [&](const Sample* s) {
      return scaled(e.agree.at(s->at), scale_of(kind, c))(s->actual, apply(kind, s->expected, c));
    });
  };
  const double fraction = fraction_with(fit.c);
  const auto does_as_well = [&](double c) {
    return std::abs(fit.c / c - 1) <= apart && fraction_with(c) >= fraction - 0.02;
  };
  std::vector<NamedFactor> candidates;
  if (kind == Constant::factor) candidates = named_factors(e.naming.shape);
  for (int digits = 1; digits < 6; ++digits)
    candidates.push_back({std::strtod(fmt::format("{:.{}g}", fit.c, digits).c_str(), nullptr), ""});
  const auto best = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const NamedFactor& named) { return does_as_well(named.value); });
  const double c = best == candidates.end() ? fit.c : best->value;
  const bool has_name = best != candidates.end() && !best->name.empty();
  return constant_hypothesis(
      e, kind, c,
      kind == Constant::offset
          ? fmt::format("{:.6g} too {}", std::abs(c), c > 0 ? "large" : "small")
          : fmt::format("{:.6g} times what it should be{}", c, has_name ? " (" + best->name + ")" : ""));
}

HypothesisPtr find_constant(const Evidence& e, Constant kind) {
  if (e.actual.source().dtype() == DType::boolean) return nullptr;
  const Samples samples = all_of(e);
  const auto fit = fit_constant(kind, samples, e.agree);
  return fit ? make_constant(e, kind, *fit, samples) : nullptr;
}

HypothesisPtr find_factor(const Evidence& e) { return find_constant(e, Constant::factor); }
HypothesisPtr find_offset(const Evidence& e) { return find_constant(e, Constant::offset); }

// --- constants of the parts of an axis: of its indices, or its groups or sequences

struct Part {
  ConstantFit fit;
  Samples samples;
};

// Those parts of an axis whose elements have a constant.
struct Partition {
  std::size_t axis = 0;
  const Naming::Run* run = nullptr;
  std::map<std::int64_t, Part> parts = {};
  std::size_t samples = 0;

  std::int64_t part_of(std::int64_t index) const {
    if (run == nullptr) return index;
    return std::upper_bound(run->offsets.begin(), run->offsets.end(), index) - run->offsets.begin() - 1;
  }
};

// The partition of an axis whose parts with a constant have the most samples.
Partition best_partition(const Evidence& e, Constant kind) {
  Partition best;
  const auto consider = [&](Partition partition) {
    std::map<std::int64_t, Samples> samples;
    for (const Sample& s : e.samples) samples[partition.part_of(s.at[partition.axis])].push_back(&s);
    for (auto& [number, some] : samples)
      if (const auto fit = fit_constant(kind, some, e.agree)) {
        partition.samples += some.size();
        partition.parts[number] = {*fit, std::move(some)};
      }
    if (partition.samples > best.samples) best = std::move(partition);
  };
  for (const Naming::Run& run : e.naming.runs) consider({run.axis, &run});
  for (std::size_t axis = 0; axis < e.naming.shape.size(); ++axis)
    if (e.naming.shape[axis] > 1 && e.naming.shape[axis] <= kMostIndices) consider({axis});
  return best;
}

// Index i of the axis has constants[i].
HypothesisPtr constants_hypothesis(const Evidence& e, Constant kind, std::size_t axis,
                                   std::vector<double> constants, std::string text) {
  return hypothesis_of(
      e,
      [kind, axis, constants = std::move(constants), agree = e.agree](const Scope& scope,
                                                                      const ComparedLine& line, Scratch&) {
        if (!scope.mark(line.at, line.n, line.in_scope)) return false;
        const Agreement here = agree.at(line.at);
        const std::int64_t first = line.at[axis], step = axis + 1 == line.at.size() ? 1 : 0;
        for (std::int64_t i = 0; i < line.n; ++i) {
          const double c = constants[static_cast<std::size_t>(first + i * step)];
          const double predicted = apply(kind, line.expected[i], c);
          const Agreement wider = scaled(here, scale_of(kind, c));
          line.holds[i] = wider(line.actual[i], predicted) &&
                          is_nearer(line.actual[i], line.expected[i], predicted, wider);
        }
        return true;
      },
      std::move(text));
}

HypothesisPtr find_constants_of_parts(const Evidence& e, Constant kind) {
  if (e.actual.source().dtype() == DType::boolean) return nullptr;
  const Partition partition = best_partition(e, kind);
  const auto& parts = partition.parts;
  if (parts.empty()) return nullptr;
  const Part& largest = std::max_element(parts.begin(), parts.end(), [](const auto& x, const auto& y) {
                          return x.second.samples.size() < y.second.samples.size();
                        })->second;
  const auto is_same = [&](const auto& part) {
    const ConstantFit &x = part.second.fit, &y = largest.fit;
    return std::abs(x.c - y.c) <= 6 * (x.deviation + y.deviation);
  };
  const bool differ =
      parts.size() >= 4 && 2 * std::count_if(parts.begin(), parts.end(), is_same) < std::ssize(parts) &&
      static_cast<double>(partition.samples) >= kMostlyHolds * static_cast<double>(e.samples.size());
  const std::size_t axis = partition.axis;
  std::vector<double> constants(static_cast<std::size_t>(e.naming.shape[axis]));
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < e.naming.shape[axis]; ++i) {
    const auto part = parts.find(partition.part_of(i));
    if (part == parts.end() || !(differ || is_same(*part))) continue;
    constants[static_cast<std::size_t>(i)] = part->second.fit.c;
    indices.push_back(i);
  }
  HypothesisPtr hypothesis;
  if (differ) {
    const std::string& name = e.naming.axes[axis];
    hypothesis = constants_hypothesis(e, kind, axis, std::move(constants),
                                      fmt::format("each {} has {} of its own",
                                                  partition.run               ? partition.run->name
                                                  : name.starts_with("axis ") ? "index of " + name
                                                                              : name,
                                                  kind == Constant::factor ? "a factor" : "an offset"));
    hypothesis->named_axes = {axis};
  } else {
    hypothesis = make_constant(e, kind, largest.fit, largest.samples);
  }
  hypothesis->scope.axes[axis] = ranges_of(indices);
  return hypothesis;
}

HypothesisPtr find_factors(const Evidence& e) { return find_constants_of_parts(e, Constant::factor); }
HypothesisPtr find_offsets(const Evidence& e) { return find_constants_of_parts(e, Constant::offset); }

// --- elements from other indices

struct Strip {
  std::int64_t first, step, length;
};

// The actual array holds elements of the expected one from elsewhere.
// Where the element at an index comes from, and those after it along the last axis.
using MovedSource = std::function<Strip(const Shape& at)>;

bool evaluate_moves(const Side& expected, const Agreement& agree, const MovedSource& source,
                    const Scope& scope, const ComparedLine& line, Scratch& scratch) {
  if (!scope.mark(line.at, line.n, line.in_scope)) return false;
  scratch.values.assign(static_cast<std::size_t>(line.n), 0);
  scratch.sources.assign(static_cast<std::size_t>(line.n), 0);
  bool any = false;
  Shape at = line.at;
  for (std::int64_t i = 0, n = 0; i < line.n; i += n, at.back() += n) {
    n = 1;
    if (line.in_scope[i] == 0) continue;
    const Strip strip = source(at);
    n = std::min(strip.length, line.n - i);
    if (strip.first < 0) {
      std::fill_n(line.in_scope + i, n, std::uint8_t{0});
    } else {
      any = true;
      expected.strided(strip.first, strip.step, n, scratch.raw, scratch.values.data() + i);
      for (std::int64_t j = 0; j < n; ++j)
        scratch.sources[static_cast<std::size_t>(i + j)] = strip.first + j * strip.step;
    }
  }
  if (any) evaluate_moved(line, agree, scratch.values.data(), scratch.sources);
  return any;
}

HypothesisPtr moved_hypothesis(const Evidence& e, MovedSource source, std::string text) {
  return hypothesis_of(
      e,
      [&expected = e.expected, agree = e.agree, source = std::move(source)](
          const Scope& scope, const ComparedLine& line, Scratch& scratch) {
        return evaluate_moves(expected, agree, source, scope, line, scratch);
      },
      std::move(text));
}

Shape element_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Index i of an axis holds the elements of index from(i); where that is i or negative there is no prediction.
using From = std::function<std::int64_t(std::int64_t)>;
MovedSource from_index(const Shape& shape, std::size_t axis, From from) {
  return
      [shape, axis, stride = element_strides(shape)[axis], from = std::move(from)](const Shape& at) -> Strip {
        constexpr std::int64_t kLongest = 4096;
        const std::size_t last = shape.size() - 1;
        const std::int64_t i = at[axis], j = from(i);
        const bool is_moved = j >= 0 && j != i;
        std::int64_t length = shape[last] - at[last];
        if (axis == last) {  // as long as consecutive indices come from consecutive ones
          length = 1;
          while (is_moved && i + length < shape[last] && length < kLongest && from(i + length) == j + length)
            ++length;
        }
        return {is_moved ? flat_index(shape, at) + (j - i) * stride : -1, 1, length};
      };
}

// The source of each moved index of an axis.
using Moves = std::map<std::int64_t, std::int64_t>;

std::vector<std::int64_t> keys_of(const Moves& from) {
  std::vector<std::int64_t> keys;
  for (const auto& [i, j] : from) keys.push_back(i);
  return keys;
}

struct Description {
  std::string kind, text;
};

// Moves of indices of an axis, and how they are described.
class MoveDescriber {
 public:
  MoveDescriber(const Moves& from, std::size_t axis, const Naming& naming)
      : from_(from), axis_(axis), naming_(naming), length_(naming.shape[axis]) {}

  Description describe() const {
    for (const auto& rule : {&MoveDescriber::exchange, &MoveDescriber::shift, &MoveDescriber::repetition})
      if (auto description = (this->*rule)()) return *std::move(description);
    std::string pairs;
    for (std::size_t n = 0; const auto& [i, j] : from_)
      if (n++ < kListed) pairs += fmt::format("{}{} holds {}", n == 1 ? "" : ", ", i, j);
    return {"permuted", fmt::format("{} indices of {} hold what belongs to others: {}{}", from_.size(),
                                    naming_.axes[axis_], pairs, from_.size() > kListed ? ", ..." : "")};
  }

 private:
  static constexpr std::size_t kListed = 4;

  template <class Test>
  bool all(Test&& test) const {
    return std::all_of(from_.begin(), from_.end(), test);
  }
  std::string part(const std::vector<IndexRange>& ranges) const { return naming_.part(axis_, ranges); }
  std::string any() const { return any_index(naming_.axes[axis_]); }

  std::optional<Description> exchange() const {
    if (!all([&](const auto& p) { return from_.contains(p.second) && from_.at(p.second) == p.first; }))
      return std::nullopt;
    std::vector<std::int64_t> lower, upper;
    for (const auto& [i, j] : from_)
      if (i < j) lower.push_back(i), upper.push_back(j);
    const auto first = ranges_of(lower), second = ranges_of(upper);
    if (first.size() == 1 && second.size() == 1)
      return Description{"exchanged", fmt::format("{} and {} are exchanged", part(first), part(second))};
    std::string pairs;
    for (std::size_t k = 0; k < std::min(lower.size(), kListed); ++k)
      pairs += fmt::format("{}{} and {}", k == 0 ? "" : ", ", lower[k], upper[k]);
    if (lower.size() > kListed) pairs += fmt::format(" and {} more", lower.size() - kListed);
    return Description{"exchanged",
                       fmt::format("indices of {} are exchanged in pairs: {}", naming_.axes[axis_], pairs)};
  }

  std::optional<Description> shift() const {
    const auto moved = static_cast<std::int64_t>(from_.size());
    const std::int64_t step = from_.begin()->second - from_.begin()->first;
    if (moved <= 2 || !all([&](const auto& p) { return (p.second - p.first - step) % length_ == 0; }))
      return std::nullopt;
    const auto text = [&](std::int64_t by, const std::string& where) {
      return Description{"shifted", fmt::format("{} holds what belongs to i {} {}{}", any(),
                                                by < 0 ? "-" : "+", std::abs(by), where)};
    };
    const auto indices = ranges_of(keys_of(from_));
    if (!all([&](const auto& p) { return p.second - p.first == step; })) {
      const std::int64_t up = (step % length_ + length_) % length_;
      return text(2 * up > length_ ? up - length_ : up, fmt::format(" modulo {}", length_));
    }
    if (std::abs(step) >= moved && indices.size() == 1)  // from elsewhere
      return Description{"repeated", fmt::format("{} hold what belongs to {}", part(indices),
                                                 part({{indices[0].begin + step, indices[0].end + step}}))};
    return text(step, moved + std::abs(step) >= length_ ? "" : ", for " + part(indices));
  }

  std::optional<Description> repetition() const {
    // Heads of keys are repeated in one of two orders, and are few. One index follows no order.
    for (std::int64_t size = 2; from_.size() > 1 && size < std::min<std::int64_t>(length_, 257); ++size) {
      const auto is_rule = [&](auto&& rule) {
        std::int64_t fixed = 0;
        for (std::int64_t i = 0; i < length_; ++i) fixed += rule(i) == i;
        return std::ssize(from_) + fixed == length_ &&
               all([&](const auto& p) { return p.second == rule(p.first); });
      };
      for (const auto& [is_such, name] : {std::pair{is_rule([&](std::int64_t i) { return i / size; }), "/"},
                                          {is_rule([&](std::int64_t i) { return i % size; }), "mod"}})
        if (is_such)
          return Description{"repeated", fmt::format("{} holds what belongs to i {} {}", any(), name, size)};
    }
    if (!all([&](const auto& p) { return !from_.contains(p.second); })) return std::nullopt;
    std::map<std::int64_t, std::vector<std::int64_t>> copies;  // by source
    for (const auto& [i, j] : from_) copies[j].push_back(i);
    std::string text;
    for (std::size_t n = 0; const auto& [j, at] : copies)
      if (n++ < kListed)
        text += fmt::format("{}{} {} what belongs to {}", n == 1 ? "" : "; ", part(ranges_of(at)),
                            at.size() == 1 ? "holds" : "hold", part({{j, j + 1}}));
    if (copies.size() > kListed) text += fmt::format(" and {} more", copies.size() - kListed);
    return Description{"repeated", text};
  }

  const Moves& from_;
  std::size_t axis_;
  const Naming& naming_;
  std::int64_t length_;
};

HypothesisPtr matched_hypothesis(const Evidence& e, std::size_t axis, Moves from) {
  std::vector<std::int64_t> sources(static_cast<std::size_t>(e.naming.shape[axis]), -1);
  for (const auto& [i, j] : from) sources[static_cast<std::size_t>(i)] = j;
  const auto source_of = [sources = std::move(sources)](std::int64_t i) {
    return sources[static_cast<std::size_t>(i)];
  };
  HypothesisPtr hypothesis = moved_hypothesis(e, from_index(e.naming.shape, axis, source_of), "");
  hypothesis->kind = MoveDescriber(from, axis, e.naming).describe().kind;
  hypothesis->scope.axes[axis] = ranges_of(keys_of(from));
  hypothesis->named_axes = {axis};
  hypothesis->text = [axis, &naming = e.naming, from = std::move(from)](const Scope& scope) {
    Moves moves = from;
    std::erase_if(moves, [&](const auto& move) { return !scope.contains(axis, move.first); });
    return MoveDescriber(moves.empty() ? from : moves, axis, naming).describe().text;
  };
  return hypothesis;
}

struct CrossLines {
  std::vector<std::vector<double>> actual, expected;
  std::vector<std::vector<double>> atol;  // of each element; empty: that of all
};

CrossLines read_across(const Evidence& e, std::size_t axis, std::size_t most) {
  CrossLines lines;
  std::set<Shape> seen;
  std::vector<std::byte> raw;
  Shape count(e.naming.shape.size(), 1);
  count[axis] = e.naming.shape[axis];
  const auto length = static_cast<std::size_t>(count[axis]);
  for (const Sample* s : some_of(e, 16 * most)) {
    Shape at = s->at;
    at[axis] = 0;
    if (!seen.insert(at).second) continue;
    lines.actual.emplace_back(length);
    e.actual.read(at, count, raw, lines.actual.back().data());
    lines.expected.emplace_back(length);
    e.expected.read(at, count, raw, lines.expected.back().data());
    if (e.agree.lines != nullptr) {
      lines.atol.emplace_back(length);
      for (std::size_t i = 0; i < length; ++i) {
        at[axis] = static_cast<std::int64_t>(i);
        lines.atol.back()[i] = e.agree.at(at).atol;
      }
    }
    if (lines.actual.size() == most) break;
  }
  return lines;
}

// The source of each index, by a vote of lines: values of `actual` are searched among the sorted `expected`.
Moves match_indices(const CrossLines& lines, const Agreement& agree) {
  const std::size_t n = lines.actual.front().size();
  // A value with too many similar ones is no evidence; the limit is higher where few differ.
  std::size_t differing = 1;
  for (std::size_t p = 0; p < lines.actual.size(); ++p)
    for (std::size_t i = 0; i < n; ++i) differing += !agree(lines.actual[p][i], lines.expected[p][i]);
  constexpr std::size_t kVotes = 1 << 24;
  const std::size_t most_alike =
      std::max(std::clamp<std::size_t>(n / 32, 32, 128), std::min(n / 8, kVotes / differing));
  std::vector<std::vector<std::pair<double, std::int64_t>>> sorted;
  for (const auto& line : lines.expected) {
    auto& pairs = sorted.emplace_back();
    for (std::size_t j = 0; j < n; ++j)
      if (std::isfinite(line[j])) pairs.emplace_back(line[j], static_cast<std::int64_t>(j));
    std::sort(pairs.begin(), pairs.end());
  }
  Moves from;
  std::vector<std::size_t> votes(n);  // of each index; those in `voted` are not 0
  std::vector<std::int64_t> voted, alike;
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::int64_t j : voted) votes[static_cast<std::size_t>(j)] = 0;
    voted.clear();
    std::size_t voters = 0;
    double alike_shares = 0;  // of all indices, those with such a value: how likely chance is
    for (std::size_t p = 0; p < sorted.size(); ++p) {
      const double a = lines.actual[p][i];
      if (!is_evidence(a) || agree(a, lines.expected[p][i])) continue;
      const double reach = 2 * (agree.atol + agree.rtol * std::abs(a));
      auto at = std::lower_bound(sorted[p].begin(), sorted[p].end(),
                                 std::pair(a - reach, std::numeric_limits<std::int64_t>::min()));
      alike.clear();
      for (; at != sorted[p].end() && at->first <= a + reach && alike.size() <= most_alike; ++at)
        if (lines.atol.empty()
                ? agree(a, at->first)
                : std::abs(a - at->first) <= lines.atol[p][static_cast<std::size_t>(at->second)])
          alike.push_back(at->second);
      ++voters;
      // Other indices with such a value; a tenth where there are none.
      alike_shares += std::max(0.1, static_cast<double>(alike.size()) - 1) / static_cast<double>(n);
      if (alike.size() > most_alike) continue;
      for (const std::int64_t j : alike)
        if (votes[static_cast<std::size_t>(j)]++ == 0) voted.push_back(j);
    }
    if (voters < 3 || voted.empty()) continue;
    const auto votes_for = [&](std::int64_t j) { return votes[static_cast<std::size_t>(j)]; };
    const std::int64_t best =
        *std::max_element(voted.begin(), voted.end(), [&](std::int64_t x, std::int64_t y) {
          return votes_for(x) < votes_for(y) || (votes_for(x) == votes_for(y) && x > y);
        });
    const auto wanted = static_cast<double>(voters), got = static_cast<double>(votes_for(best));
    const double by_chance = std::min(alike_shares / wanted, 1.0);
    const double log_chance =
        std::log(static_cast<double>(n)) + (wanted - got) * std::log(wanted + 1) + got * std::log(by_chance);
    const bool is_enough = got >= 0.5 * wanted && log_chance < std::log(1e-6);
    if (is_enough) from[static_cast<std::int64_t>(i)] = best;
  }
  return from;
}

// Lines include differences that are explained already. Removes indices without an unexplained sample.
void keep_what_is_left(Moves& from, const Evidence& e, std::size_t axis) {
  std::set<std::int64_t> left;
  for (const Sample& s : e.samples) left.insert(s.at[axis]);
  if (e.samples.size() < 20 * left.size()) return;
  std::erase_if(from, [&](const auto& move) { return !left.contains(move.first); });
}

// If nearly all have one shift, cyclic or not, removes the others.
void keep_one_step(Moves& from, std::int64_t length) {
  const auto step = [length](const auto& move) { return (move.second - move.first + length) % length; };
  std::map<std::int64_t, std::size_t> steps;
  for (const auto& move : from) ++steps[step(move)];
  const auto most = std::max_element(steps.begin(), steps.end(),
                                     [](const auto& x, const auto& y) { return x.second < y.second; });
  if (most == steps.end() || 10 * most->second < 9 * from.size()) return;
  std::erase_if(from, [&](const auto& move) { return step(move) != most->first; });
}

double fraction_moved(const Evidence& e, std::size_t axis, const From& from, const Samples& samples) {
  const HypothesisPtr moved = moved_hypothesis(e, from_index(e.naming.shape, axis, from), "");
  const Votes votes = votes_for(*moved, samples);
  std::set<std::int64_t> indices;
  for (const Sample* s : votes.predicted) indices.insert(s->at[axis]);
  if (indices.size() < 3) return 0;  // of one index, any rule that has its source would do
  return votes.fraction(std::max(kFewestSamples, samples.size() / 2));
}

// If all matched indices have one shift that predicts nearly all samples, it is extended to unmatched
// indices.
void complete_step(Moves& from, const Evidence& e, std::size_t axis) {
  const std::int64_t length = e.naming.shape[axis];
  if (from.size() < 3) return;
  const auto step = [length](const auto& move) { return (move.second - move.first + length) % length; };
  const auto rule = [by = step(*from.begin()), length](std::int64_t i) { return (i + by) % length; };
  const auto follows = [&](const auto& move) { return move.second == rule(move.first); };
  if (!std::all_of(from.begin(), from.end(), follows) ||
      fraction_moved(e, axis, rule, some_of(e, 512)) < kMostlyHolds)
    return;
  std::set<std::int64_t> left;
  for (const Sample& s : e.samples) left.insert(s.at[axis]);
  if (e.samples.size() < 20 * left.size()) return;  // others may not be among the samples
  // At the end, where a circular shift wraps, the samples must show it.
  const std::int64_t shorter = 2 * rule(0) > length ? rule(0) - length : rule(0);
  const auto is_inside = [&](std::int64_t i) { return i + shorter >= 0 && i + shorter < length; };
  Samples at_the_end;
  for (const Sample& s : e.samples)
    if (!is_inside(s.at[axis])) at_the_end.push_back(&s);
  const HypothesisPtr moved = moved_hypothesis(e, from_index(e.naming.shape, axis, rule), "");
  const bool is_circle = votes_for(*moved, at_the_end).fraction(1) >= kMostlyHolds;
  for (const std::int64_t i : left)
    if (is_circle || is_inside(i)) from.emplace(i, rule(i));
}

std::int64_t matched_lines(std::int64_t length) {
  return std::clamp<std::int64_t>((1 << 22) / length, 8, 24);
}

HypothesisPtr find_moved(const Evidence& e, std::size_t axis) {
  const std::int64_t length = e.naming.shape[axis];
  if (length < 2 || length > kMostIndices || element_count(e.naming.shape) / length < 4) return nullptr;
  const CrossLines lines = read_across(e, axis, static_cast<std::size_t>(matched_lines(length)));
  if (lines.actual.size() < 3) return nullptr;
  Moves from = match_indices(lines, e.agree);
  keep_what_is_left(from, e, axis);
  keep_one_step(from, length);
  complete_step(from, e, axis);
  if (from.empty()) return nullptr;
  return matched_hypothesis(e, axis, std::move(from));
}

// Values that agree with any others prove nothing.
bool is_by_chance(const Evidence& e, std::size_t axis, const Samples& samples) {
  const std::int64_t length = e.naming.shape[axis];
  return fraction_moved(
             e, axis, [length](std::int64_t i) { return (i + length / 2 + 1) % length; }, samples) > 0.5;
}

// By a few indices, of axes of any length.
HypothesisPtr find_shifted(const Evidence& e, std::size_t axis) {
  const std::int64_t length = e.naming.shape[axis];
  if (length < 4) return nullptr;
  for (std::int64_t size = 1; size <= std::min<std::int64_t>(16, length / 2); ++size)
    for (const std::int64_t step : {size, -size})
      if (auto shifted = moved_by(
              e, axis, [=](std::int64_t i) { return i + step < length ? i + step : -1; },
              fmt::format("{} holds what belongs to i {} {}", any_index(e.naming.axes[axis]),
                          step < 0 ? "-" : "+", size)))
        return shifted;
  return nullptr;
}

// --- axes in another order

// The actual array holds, in C order, the elements of expected.transpose(axes).
MovedSource from_transposed(const Shape& shape, const std::vector<std::size_t>& axes) {
  Shape transposed;
  for (const std::size_t axis : axes) transposed.push_back(shape[axis]);
  return [=, strides = element_strides(shape)](const Shape& at) {
    std::int64_t flat = flat_index(shape, at);
    Strip strip{0, strides[axes.back()], transposed.back() - flat % transposed.back()};
    for (std::size_t d = axes.size(); d-- > 0; flat /= transposed[d])
      strip.first += flat % transposed[d] * strides[axes[d]];
    return strip;
  };
}

// The elements of the actual array are the buffer of the expected one, interpreted as an array of the
// transposed shape and transposed back.
MovedSource from_view(const Shape& shape, const std::vector<std::size_t>& axes) {
  Shape transposed;
  for (const std::size_t axis : axes) transposed.push_back(shape[axis]);
  return [=, strides = element_strides(transposed)](const Shape& at) {
    const std::size_t last = axes.size() - 1;
    Strip strip{0, 0, shape[last] - at[last]};
    for (std::size_t d = 0; d <= last; ++d) {
      strip.first += at[axes[d]] * strides[d];
      if (axes[d] == last) strip.step = strides[d];
    }
    return strip;
  };
}

HypothesisPtr find_transposed(const Evidence& e) {
  const Shape& shape = e.naming.shape;
  const std::size_t rank = shape.size();
  Samples samples = some_of(e, 512);
  std::erase_if(samples, [](const Sample* s) { return !is_evidence(s->actual); });
  if (samples.size() < 2 * kFewestSamples) return nullptr;
  std::vector<std::vector<std::size_t>> orders;
  std::vector<std::size_t> plain(rank);
  std::iota(plain.begin(), plain.end(), 0);
  for (std::size_t p = 0; p < rank; ++p)
    for (std::size_t q = p + 1; q < rank; ++q) {
      if (shape[p] == 1 || shape[q] == 1) continue;
      orders.push_back(plain);
      std::swap(orders.back()[p], orders.back()[q]);
    }
  if (rank > 2) orders.emplace_back(plain.rbegin(), plain.rend());
  // Values that agree with any others prove nothing.
  double by_chance = 0;
  for (std::size_t i = 0; i < samples.size(); ++i)
    by_chance += e.agree(samples[i]->actual, samples[(i + samples.size() / 2) % samples.size()]->expected);
  if (by_chance > 0.5 * static_cast<double>(samples.size())) return nullptr;
  // Elements between those that differ, too.
  std::vector<Sample> between;
  for (std::size_t n = 0; n < 512; ++n) {
    Shape at(rank);
    for (std::size_t d = 0; d < rank; ++d)
      at[d] = samples[core::splitmix64(n * rank + d) % samples.size()]->at[d];
    between.push_back({at, e.actual.element(at), e.expected.element(at)});
  }
  Samples others;
  for (const Sample& s : between) others.push_back(&s);
  for (const auto& order : orders) {
    std::string names;
    for (const std::size_t axis : order) names += (names.empty() ? "" : ", ") + e.naming.axes[axis];
    for (const auto& [source, what] : {std::pair{from_transposed(shape, order), "it holds its elements"},
                                       {from_view(shape, order), "its elements were taken to be"}}) {
      auto hypothesis = moved_hypothesis(e, source, fmt::format("{} in the order ({})", what, names));
      if (votes_for(*hypothesis, samples).fraction(1) >= kMostlyHolds &&
          votes_for(*hypothesis, others).fraction(1) >= 0.9)
        return hypothesis;
    }
  }
  return nullptr;
}

// --- boxes that hold one value

struct Box {
  Shape begin, end;

  bool contains(const Shape& at) const {
    for (std::size_t d = 0; d < at.size(); ++d)
      if (at[d] < begin[d] || at[d] >= end[d]) return false;
    return true;
  }
  Shape count() const {
    Shape count;
    for (std::size_t d = 0; d < begin.size(); ++d) count.push_back(end[d] - begin[d]);
    return count;
  }
  std::int64_t volume() const { return element_count(count()); }
};

bool same(double x, double y) { return x == y || (x != x && y != y); }

bool evaluate_boxes(const std::vector<Box>& boxes, double value, const ComparedLine& line) {
  const std::size_t last = line.at.size() - 1;
  bool any = false;
  for (const Box& box : boxes) {
    bool in = true;
    for (std::size_t d = 0; d < last && in; ++d) in = line.at[d] >= box.begin[d] && line.at[d] < box.end[d];
    if (!in) continue;
    const std::int64_t begin = std::max<std::int64_t>(0, box.begin[last] - line.at[last]);
    const std::int64_t end = std::min(line.n, box.end[last] - line.at[last]);
    for (std::int64_t i = begin; i < end; ++i) {
      line.in_scope[i] = 1;
      line.holds[i] = same(line.actual[i], value) && !same(line.expected[i], value);
      // Elements with this value in both are no evidence.
      if (same(line.actual[i], value) && line.holds[i] == 0) line.in_scope[i] = 0;
    }
    any = any || begin < end;
  }
  return any;
}

// Makes a box of one value as large as it can be, axis by axis, the last first.
class Grower {
 public:
  Grower(const Side& side, double value)
      : side_(side), value_(value), budget_(element_count(side.shape()) + kGrowAtOnce) {}

  /// It has read more than any few boxes can have.
  bool is_exhausted() const { return budget_ < 0; }
  void spend(std::int64_t elements) { budget_ -= elements; }

  Box grow(const Shape& at) {
    Box box{at, at};
    for (std::int64_t& end : box.end) ++end;
    for (std::size_t d = at.size(); d-- > 0;) {
      box.end[d] = reach(box, d, box.end[d], side_.shape()[d], 1);
      box.begin[d] = reach(box, d, box.begin[d], 0, -1);
    }
    return box;
  }

 private:
  // How far it goes from `from` towards `to`.
  std::int64_t reach(const Box& box, std::size_t axis, std::int64_t from, std::int64_t to,
                     std::int64_t step) {
    const std::int64_t face = box.volume() / (box.end[axis] - box.begin[axis]);
    std::int64_t at_once = 1;
    while (from != to && !is_exhausted()) {
      const std::int64_t some = std::min(at_once, std::abs(to - from));
      Shape start = box.begin, count = box.count();
      start[axis] = step > 0 ? from : from - some;
      count[axis] = some;
      if (!is_one_value(start, count)) {
        if (some == 1) return from;
        at_once = std::max<std::int64_t>(1, some / 2);
        continue;
      }
      from += step * some;
      at_once = std::min(2 * some, std::max<std::int64_t>(1, kGrowAtOnce / face));
    }
    return from;
  }

  bool is_one_value(Shape start, Shape count) {
    // A large face is read in parts of its first axis.
    const std::int64_t n = element_count(count);
    if (n > kGrowAtOnce) {
      for (std::size_t d = 0; d < count.size(); ++d) {
        if (count[d] == 1) continue;
        const std::int64_t half = count[d] / 2;
        Shape lower = count;
        lower[d] = half;
        if (!is_one_value(start, lower)) return false;
        start[d] += half;
        count[d] -= half;
        return is_one_value(start, count);
      }
    }
    budget_ -= n;
    values_.resize(static_cast<std::size_t>(n));
    side_.read(start, count, raw_, values_.data());
    return std::all_of(values_.begin(), values_.end(), [&](double x) { return same(x, value_); });
  }

  const Side& side_;
  double value_;
  std::int64_t budget_;  // elements that may be read yet
  std::vector<std::byte> raw_;
  std::vector<double> values_;
};

// The part of each axis, and "tile (3, 1) of 64 x 64" where it is cut along two of them.
std::string name_of(const Box& box, const Naming& naming) {
  const std::size_t rank = box.begin.size();
  Scope scope(rank);
  std::vector<std::size_t> cut;  // axes with more than one index and not all
  for (std::size_t d = 0; d < rank; ++d) {
    if (box.begin[d] == 0 && box.end[d] == naming.shape[d]) continue;
    scope.axes[d] = {{box.begin[d], box.end[d]}};
    if (box.end[d] - box.begin[d] > 1) cut.push_back(d);
  }
  std::string text = naming.part(scope);
  if (text.empty()) text = "everything";
  if (cut.size() != 2) return text;
  // Of the size of the box, or cut short by the end of the axis.
  const auto size = [&](std::size_t d) { return box.end[d] - box.begin[d]; };
  if (box.begin[cut[0]] % size(cut[0]) != 0 || box.begin[cut[1]] % size(cut[1]) != 0) return text;
  return text + fmt::format(" (tile ({}, {}) of {} x {})", box.begin[cut[0]] / size(cut[0]),
                            box.begin[cut[1]] / size(cut[1]), size(cut[0]), size(cut[1]));
}

std::string text_of_boxes(const std::vector<Box>& boxes, double value, const Naming& naming) {
  std::string text = name_of(boxes[0], naming);
  for (std::size_t b = 1; b < std::min<std::size_t>(boxes.size(), 3); ++b)
    text += "; " + name_of(boxes[b], naming);
  if (boxes.size() > 3) text += fmt::format("; and {} more", boxes.size() - 3);
  text += boxes.size() > 1 ? " hold" : " holds";
  return text + (value == 0 || value != value ? fmt::format(" only {:g}: never written", std::abs(value))
                                              : fmt::format(" only {:.6g}: filled, or never written", value));
}

// A box of one value, cut to where it differs; nothing where it differs in too few places to be what is
// wrong.
std::optional<Box> differing_part(const Evidence& e, const Box& box, double value) {
  Box part{box.end, box.begin};
  std::int64_t differing = 0, far = 0;
  double least_there = std::numeric_limits<double>::infinity(), most_there = -least_there;
  std::vector<std::byte> raw;
  Shape at = box.begin, count = box.count();
  std::vector<double> line(static_cast<std::size_t>(count.back()));
  do {
    e.expected.line(at, count.back(), raw, line.data());
    for (std::size_t i = 0; i < line.size(); ++i) {
      const double there = line[i];
      if (same(there, value) || e.agree(value, there)) continue;
      ++differing;
      far += std::isinf(value) ||
             !(std::abs(value - there) <= 0.25 * std::max(std::abs(value), std::abs(there)));
      least_there = std::min(least_there, there);
      most_there = std::max(most_there, there);
      Shape index = at;
      index.back() += static_cast<std::int64_t>(i);
      for (std::size_t d = 0; d < at.size(); ++d) {
        part.begin[d] = std::min(part.begin[d], index[d]);
        part.end[d] = std::max(part.end[d], index[d] + 1);
      }
    }
  } while (next_line(at, box.begin, count));
  if (differing < static_cast<std::int64_t>(kFewestSamples)) return std::nullopt;
  // Of another number: one that is near is rounded, and where one is expected everywhere it is a factor or an
  // offset.
  if (value != 0 && value == value && (2 * far < differing || least_there == most_there)) return std::nullopt;
  // Results may be 0 here and there; that they are another number by themselves is rarer.
  const double least = value == 0 || value != value ? 0.3 : 0.9;
  if (static_cast<double>(differing) < least * static_cast<double>(part.volume())) return std::nullopt;
  return part;
}

bool overlap(const Box& x, const Box& y) {
  for (std::size_t d = 0; d < x.begin.size(); ++d)
    if (x.end[d] <= y.begin[d] || y.end[d] <= x.begin[d]) return false;
  return true;
}

HypothesisPtr find_unwritten(const Evidence& e) {
  // The values that many of the elements have.
  std::map<std::uint64_t, std::size_t> counts;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto bits_of = [](double x) { return std::bit_cast<std::uint64_t>(x != x ? kNan : x + 0.0); };
  for (const Sample& s : e.samples) ++counts[bits_of(s.actual)];
  std::vector<std::pair<std::size_t, std::uint64_t>> values;
  for (const auto& [bits, count] : counts)
    if (count >= std::max(kFewestSamples, e.samples.size() / 100)) values.emplace_back(count, bits);
  std::sort(values.rbegin(), values.rend());
  for (std::size_t v = 0; v < std::min<std::size_t>(values.size(), 2); ++v) {
    const auto value = std::bit_cast<double>(values[v].second);
    Grower grower(e.actual, value);
    std::vector<Box> boxes;
    std::size_t rejected = 0, in_boxes = 0, with_value = 0;
    bool is_ragged = false;  // boxes that overlap are parts of another form
    for (const Sample& s : e.samples) {
      if (!same(s.actual, value)) continue;
      ++with_value;
      const auto contains = [&](const Box& box) { return box.contains(s.at); };
      if (std::any_of(boxes.begin(), boxes.end(), contains)) {
        ++in_boxes;
        continue;
      }
      if (boxes.size() == 512 || rejected > 16 || is_ragged || grower.is_exhausted()) continue;
      const Box grown = grower.grow(s.at);
      grower.spend(grown.volume());
      const auto box = differing_part(e, grown, value);
      if (!box) {
        ++rejected;
        continue;
      }
      ++in_boxes;
      is_ragged =
          std::any_of(boxes.begin(), boxes.end(), [&](const Box& other) { return overlap(*box, other); });
      boxes.push_back(*box);
    }
    if (boxes.empty() || is_ragged || 10 * in_boxes < 9 * with_value) continue;
    std::sort(boxes.begin(), boxes.end(), [](const Box& x, const Box& y) { return x.begin < y.begin; });
    std::string text = text_of_boxes(boxes, value, e.naming);
    const auto evaluate = [value, boxes = std::move(boxes)](const Scope&, const ComparedLine& line,
                                                            Scratch&) {
      return evaluate_boxes(boxes, value, line);
    };
    HypothesisPtr hypothesis = hypothesis_of(e, evaluate, std::move(text));
    for (std::size_t d = 0; d < e.naming.shape.size(); ++d) hypothesis->named_axes.push_back(d);
    return hypothesis;
  }
  return nullptr;
}

// --- rounding

// `a` is a number of the type, and the nearest one of `e`, or the one before it towards 0.
bool is_rounded(const FloatType& type, bool cut_off, double a, double e) {
  if (!std::isfinite(a) || !std::isfinite(e) || std::abs(a) >= type.overflow ||
      std::remainder(a, type.spacing_at(a)) != 0)
    return false;
  const double apart = std::abs(a - e), spacing = type.spacing_at(e);
  return cut_off ? apart < spacing && std::abs(a) <= std::abs(e) : apart <= 0.501 * spacing;
}

HypothesisPtr find_rounded(const Evidence& e) {
  const DType dtype = e.actual.source().dtype();
  if (dtype != DType::float32 && dtype != DType::float64) return nullptr;
  const Samples samples = all_of(e);
  if (samples.size() < kFewestSamples) return nullptr;
  std::vector<DType> narrower{DType::float16, DType::bfloat16, DType::float8_e4m3fn, DType::float8_e5m2};
  if (dtype == DType::float64) narrower.insert(narrower.begin(), DType::float32);
  for (const DType narrow : narrower)
    for (const bool cut_off : {false, true}) {
      auto hypothesis = hypothesis_of(
          e,
          [type = float_type(narrow), cut_off](const Scope& scope, const ComparedLine& line, Scratch&) {
            if (!scope.mark(line.at, line.n, line.in_scope)) return false;
            for (std::int64_t i = 0; i < line.n; ++i)
              line.holds[i] = is_rounded(type, cut_off, line.actual[i], line.expected[i]);
            return true;
          },
          fmt::format(
              "{} to {}{}", cut_off ? "cut off" : "rounded", ejk::name_of(narrow),
              narrow == DType::float16 ? ", or to another type with 10 bits of fraction (tf32)" : ""));
      if (votes_for(*hypothesis, samples).fraction(1) >= kMostlyHolds) return hypothesis;
    }
  return nullptr;
}

}  // namespace

std::string any_index(const std::string& axis) {
  return axis.starts_with("axis ") ? "index i of " + axis : axis + " i";
}

Agreement scaled_by(const Agreement& agree, double factor) {
  return scaled(agree, std::max(1.0, std::abs(factor)));
}

HypothesisPtr times_factor(const Evidence& e, double factor, std::string text) {
  return constant_hypothesis(e, Constant::factor, factor, std::move(text));
}

HypothesisPtr moved_by(const Evidence& e, std::size_t axis, From from, std::string text) {
  const Samples samples = some_of(e, 512);
  if (samples.size() < 2 * kFewestSamples || fraction_moved(e, axis, from, samples) < kMostlyHolds ||
      is_by_chance(e, axis, samples))
    return nullptr;
  return moved_hypothesis(e, from_index(e.naming.shape, axis, std::move(from)), std::move(text));
}

// --- scopes and names

bool Scope::contains(std::size_t axis, std::int64_t index) const {
  const std::vector<IndexRange>& ranges = axes[axis];
  if (ranges.empty()) return true;
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), index,
                       [](std::int64_t i, const IndexRange& range) { return i < range.begin; });
  return after != ranges.begin() && index < std::prev(after)->end;
}

bool Scope::meets(std::size_t axis, std::int64_t begin, std::int64_t end) const {
  const std::vector<IndexRange>& ranges = axes[axis];
  if (ranges.empty()) return true;
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                      [](std::int64_t i, const IndexRange& range) { return i < range.end; });
  return after != ranges.end() && after->begin < end;
}

bool Scope::mark(const Shape& at, std::int64_t n, std::uint8_t* in_scope) const {
  const std::size_t last = at.size() - 1;
  for (std::size_t d = 0; d < last; ++d)
    if (!contains(d, at[d])) return false;
  if (axes[last].empty()) {
    std::fill_n(in_scope, n, std::uint8_t{1});
    return true;
  }
  bool any = false;
  for (const IndexRange& range : axes[last]) {
    const std::int64_t begin = std::max(range.begin - at[last], std::int64_t{0});
    const std::int64_t end = std::min(range.end - at[last], n);
    if (begin >= end) continue;
    std::fill(in_scope + begin, in_scope + end, std::uint8_t{1});
    any = true;
  }
  return any;
}

std::vector<IndexRange> ranges_of(const std::vector<std::int64_t>& indices) {
  std::vector<IndexRange> ranges;
  for (const std::int64_t i : indices) {
    if (!ranges.empty() && ranges.back().end == i)
      ++ranges.back().end;
    else
      ranges.push_back({i, i + 1});
  }
  return ranges;
}

std::int64_t indices_in(const std::vector<IndexRange>& ranges) {
  std::int64_t indices = 0;
  for (const IndexRange& range : ranges) indices += range.count();
  return indices;
}

std::string Naming::indices(const std::vector<IndexRange>& ranges) {
  constexpr std::size_t kListed = 4;
  std::string text;
  for (std::size_t r = 0; r < ranges.size() && r < kListed; ++r) {
    const auto [begin, end] = ranges[r];
    if (r > 0) text += r + 1 == ranges.size() ? " and " : ", ";
    text += end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{} to {}", begin, end - 1);
  }
  if (ranges.size() > kListed) text += fmt::format(" and {} more", ranges.size() - kListed);
  return text;
}

std::string Naming::part(std::size_t axis, const std::vector<IndexRange>& ranges) const {
  for (const Run& run : runs) {
    if (run.axis != axis || ranges.size() != 1) continue;
    const auto [begin, end] = ranges[0];
    const auto next = std::upper_bound(run.offsets.begin(), run.offsets.end(), begin);
    if (next == run.offsets.begin() || next == run.offsets.end() || end > *next) continue;
    const std::int64_t index = next - run.offsets.begin() - 1, from = *std::prev(next), to = *next;
    std::string name = fmt::format("{} {}", run.name, index);
    if (begin == from && end == to) return name;
    if (end == to)
      return fmt::format("the last {} of {} ({} {})", end - begin, name, axes[axis], indices(ranges));
    if (begin == from)
      return fmt::format("the first {} of {} ({} {})", end - begin, name, axes[axis], indices(ranges));
  }
  // "head 3", but "axis 0 at 3".
  return fmt::format("{}{} {}", axes[axis], axes[axis].starts_with("axis ") ? " at" : "", indices(ranges));
}

std::string Naming::part(const Scope& scope, const std::vector<std::size_t>& named) const {
  std::string text;
  for (std::size_t d = 0; d < scope.axes.size(); ++d) {
    const std::vector<IndexRange>& ranges = scope.axes[d];
    if (std::find(named.begin(), named.end(), d) != named.end()) continue;
    if (ranges.empty() || (ranges.size() == 1 && ranges[0].begin == 0 && ranges[0].end == shape[d])) continue;
    text += (text.empty() ? "" : ", ") + part(d, ranges);
  }
  return text;
}

std::int64_t fitting_bytes(const Shape& shape) {
  // Of matched lines both sides and one sorted; of an index its match, in a tree and in a list.
  constexpr std::int64_t kOfElement = 2 * 8 + 16, kOfIndex = 64 + 8;
  std::int64_t bytes = kGrowAtOnce * 2 * 8;
  for (const std::int64_t length : shape)
    if (length > 0 && length <= kMostIndices)
      bytes = std::max(bytes,
                       std::min(matched_lines(length), element_count(shape) / length) * length * kOfElement +
                           length * kOfIndex);
  return std::min(bytes, element_count(shape) * (kOfElement + kOfIndex));
}

std::span<const HypothesisKind> hypothesis_kinds() {
  static constexpr HypothesisKind kKinds[] = {
      // vllm-project/vllm#7210
      {"fnuz", find_fnuz},
      // tile-ai/tilelang#2748
      {"e8m0-int8", find_e8m0_as_int8},
      // NVIDIA/TransformerEngine#477 (reciprocals), unslothai/unsloth#6978 (left out)
      {"misused-scales", find_misused_scales, nullptr, true},
      // ROCm/composable_kernel#526, flagos-ai/FlagGems#424
      {"factor", find_factor},
      // ROCm/rocm-libraries#12227
      {"offset", find_offset},
      // Comfy-Org/comfy-kitchen#41 (neighbours), kekzl/imp#567 (halves of a block)
      {"nibbles", find_nibbles, nullptr, true},
      // the rows of gpt-oss' gate and up projections: ROCm/aiter#3871, vllm-project/vllm#29273
      {"interleaved-rows", nullptr, find_interleaved, true},
      // BobMcDear/attorch#14, onnx/onnx#7274, ikawrakow/ik_llama.cpp#2437
      {"exchanged, repeated, shifted, permuted", nullptr, find_moved, true, kMostIndices},
      // local-inference-lab/b12x#388
      {"subnormal-scales", find_subnormal_scales, nullptr, true},
      // NVIDIA/cutlass#3394, vllm-project/vllm#50085
      {"scales, scale-layout", find_block_scales, nullptr, true},
      // pytorch/pytorch#130059, flashinfer-ai/flashinfer#4979
      {"factor", find_factors},
      // ml-explore/mlx#4353
      {"scale-step", find_scale_step, nullptr, true},
      // ml-explore/mlx#4353, vllm-project/vllm#43557
      {"cut-off", find_cut_off, nullptr, true},
      // ROCm/rocm-libraries#12227
      {"offset", find_offsets},
      // Dao-AILab/flash-attention#2552
      {"shifted", nullptr, find_shifted, true},
      // unslothai/unsloth-zoo#849, huggingface/transformers#47031, jsbaan/transformer-from-scratch#6
      {"transposed", find_transposed, nullptr, true},
      // Avarok-Cybersecurity/atlas#474, Dao-AILab/flash-attention#1778
      {"unwritten", find_unwritten, nullptr, true},
      // triton-lang/triton#1671, tenstorrent/tt-metal#19882
      {"rounding", find_rounded},
  };
  return kKinds;
}

}  // namespace ejk::verify
