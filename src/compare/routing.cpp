// Comparison of routings, token by token. The k-th largest score divides the experts: those above it must be
// chosen, of those equal to it some are. Two tied routings are the same if the experts that either must
// choose are among those that both may choose, and fit in k. Cost: reading both; some nanoseconds a score.
// tests: tests/compare/test_routing.cpp
#include "ejk/program/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "arrays/convert.hpp"
#include "compare/report_parts.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "ejk/threads.hpp"

namespace ejk {

namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kRoutingPiece = std::int64_t{1} << 15;  // elements of either side
// Of more experts reports do not give each one's load.
constexpr std::int64_t kMostLoads = 65'536;

struct Choice {
  Ids chosen;
  Ids must, may;  // where the token is tied: that every right choice has, that one may have
  bool is_tied = false;
  bool has_duplicate = false;
};

struct RoutingBuffers {
  std::vector<std::byte> raw;
  Ids ids;
  std::vector<double> scores, sorted;
};

// One of the two, read by pieces.
class Router {
 public:
  Router(const ArraySource& source, std::optional<std::int64_t> top_k) : source_(source) {
    const Shape& shape = source.shape();
    has_scores_ = is_float(source.dtype());
    if (!has_scores_ && !is_integer(source.dtype()))
      throw invalid(
          fmt::format("a routing is ids of integers or scores of floats, not {}", name_of(source.dtype())));
    if (shape.empty() || (has_scores_ && shape.size() < 2))
      throw invalid(fmt::format("{} must be {}, not of shape {}", has_scores_ ? "scores" : "ids",
                                has_scores_ ? "(tokens, experts)" : "(tokens, k)", to_string(shape)));
    width_ = shape.size() > 1 ? shape.back() : 1;
    tokens_ = element_count(std::span(shape).first(shape.size() - (shape.size() > 1 ? 1 : 0)));
    if (!has_scores_) return;
    if (!top_k)
      throw std::move(
          Error(Error::Kind::usage, "these are scores, and nothing says how many of them are chosen")
              .at(source.name()));
    k_ = *top_k;
    if (k_ > width_)
      throw std::move(core::usage("{} experts of {} are to be chosen", k_, width_).at(source.name()));
  }

  bool has_scores() const { return has_scores_; }
  std::int64_t width() const { return width_; }
  std::int64_t tokens() const { return tokens_; }
  const ArraySource& source() const { return source_; }

  // Tokens `begin` up to `end`.
  void read(std::int64_t begin, std::int64_t end, RoutingBuffers& buffers) const {
    const auto n = static_cast<std::size_t>((end - begin) * width_);
    buffers.ids.resize(has_scores_ ? 0 : n);
    buffers.scores.resize(has_scores_ ? n : 0);
    std::int64_t at = 0;
    core::for_each_box(
        source_.shape(), begin * width_, end * width_, [&](const Shape& start, const Shape& count) {
          const std::int64_t elements = element_count(count);
          if (has_scores_) {
            buffers.raw.resize(static_cast<std::size_t>(elements * size_of(source_.dtype())));
            source_.read(start, count, buffers.raw.data());
            arrays::convert_elements(source_.dtype(), buffers.raw.data(), DType::float64,
                                     reinterpret_cast<std::byte*>(buffers.scores.data() + at), elements);
          } else {
            core::read_integer_box(source_, start, count, buffers.raw, buffers.ids.data() + at);
          }
          at += elements;
        });
  }

  // The choice of token `begin` + i. `experts`: their number, if known.
  void choose(std::int64_t begin, std::int64_t i, std::optional<std::int64_t> experts,
              RoutingBuffers& buffers, Choice& choice) const {
    choice.chosen.clear(), choice.must.clear(), choice.may.clear();
    choice.is_tied = choice.has_duplicate = false;
    if (has_scores_)
      choose_by_score(begin, i, buffers, choice);
    else
      choose_by_id(begin, i, experts, buffers, choice);
  }

 private:
  Error invalid(std::string why) const {
    return std::move(
        Error(Error::Kind::input, std::move(why)).about(has_scores_ ? "scores" : "ids").at(source_.name()));
  }

  void choose_by_id(std::int64_t begin, std::int64_t i, std::optional<std::int64_t> experts,
                    RoutingBuffers& buffers, Choice& choice) const {
    for (std::int64_t c = 0; c < width_; ++c) {
      const std::int64_t id = buffers.ids[static_cast<std::size_t>(i * width_ + c)];
      if (id == -1) continue;
      if (id < 0 || id == std::numeric_limits<std::int64_t>::max() || (experts && id >= *experts))
        throw invalid(id < 0
                          ? fmt::format("choice {} of token {} is {}; an expert is 0 or more, and -1 is none",
                                        c, begin + i, id)
                          : fmt::format("choice {} of token {} is expert {}, and there are scores of {}", c,
                                        begin + i, id, *experts));
      choice.chosen.push_back(id);
    }
    std::sort(choice.chosen.begin(), choice.chosen.end());
    const auto end = std::unique(choice.chosen.begin(), choice.chosen.end());
    choice.has_duplicate = end != choice.chosen.end();
    choice.chosen.erase(end, choice.chosen.end());
  }

  void choose_by_score(std::int64_t begin, std::int64_t i, RoutingBuffers& buffers, Choice& choice) const {
    const std::span<const double> scores =
        std::span(buffers.scores)
            .subspan(static_cast<std::size_t>(i * width_), static_cast<std::size_t>(width_));
    for (std::size_t e = 0; e < scores.size(); ++e)
      if (std::isnan(scores[e]))
        throw invalid(fmt::format("the score of expert {} for token {} is NaN", e, begin + i));
    buffers.sorted.assign(scores.begin(), scores.end());
    const auto least = buffers.sorted.begin() + (k_ - 1);
    std::nth_element(buffers.sorted.begin(), least, buffers.sorted.end(), std::greater<>());
    const double threshold = *least;
    for (std::size_t e = 0; e < scores.size(); ++e) {
      if (scores[e] > threshold) choice.must.push_back(static_cast<std::int64_t>(e));
      if (scores[e] >= threshold) choice.may.push_back(static_cast<std::int64_t>(e));
    }
    choice.is_tied = std::ssize(choice.may) > k_;
    std::int64_t equal = k_ - std::ssize(choice.must);
    for (const std::int64_t e : choice.may)
      if (scores[static_cast<std::size_t>(e)] > threshold || equal-- > 0) choice.chosen.push_back(e);
  }

  const ArraySource& source_;
  bool has_scores_ = false;
  std::int64_t width_ = 0, tokens_ = 0, k_ = 0;
};

bool may_be_same(const Choice& a, const Choice& e) {
  if (a.chosen.size() != e.chosen.size()) return false;
  const Ids &must_a = a.is_tied ? a.must : a.chosen, &may_a = a.is_tied ? a.may : a.chosen;
  const Ids &must_e = e.is_tied ? e.must : e.chosen, &may_e = e.is_tied ? e.may : e.chosen;
  Ids must, may;
  std::set_union(must_a.begin(), must_a.end(), must_e.begin(), must_e.end(), std::back_inserter(must));
  std::set_intersection(may_a.begin(), may_a.end(), may_e.begin(), may_e.end(), std::back_inserter(may));
  return must.size() <= a.chosen.size() && a.chosen.size() <= may.size() &&
         std::includes(may.begin(), may.end(), must.begin(), must.end());
}

// The counts of a side, and the largest expert chosen.
struct RoutingCount : RoutingSide {
  std::int64_t largest = -1;

  void see(const Choice& choice, std::int64_t token) {
    choices += std::ssize(choice.chosen);
    unrouted += choice.chosen.empty();
    ties += choice.is_tied;
    if (choice.has_duplicate)
      ++duplicates, first_duplicate = std::min(first_duplicate.value_or(token), token);
    if (choice.chosen.empty()) return;
    largest = std::max(largest, choice.chosen.back());
    const std::int64_t wanted = std::min(choice.chosen.back(), kMostLoads - 1) + 1;
    if (std::ssize(loads) < wanted) loads.resize(static_cast<std::size_t>(wanted));
    for (const std::int64_t e : choice.chosen)
      if (e < kMostLoads) ++loads[static_cast<std::size_t>(e)];
  }
  void join(const RoutingCount& other) {
    choices += other.choices, unrouted += other.unrouted;
    ties += other.ties, duplicates += other.duplicates;
    largest = std::max(largest, other.largest);
    if (other.first_duplicate)
      first_duplicate = std::min(first_duplicate.value_or(INT64_MAX), *other.first_duplicate);
    if (loads.size() < other.loads.size()) loads.resize(other.loads.size());
    for (std::size_t e = 0; e < other.loads.size(); ++e) loads[e] += other.loads[e];
  }
};

struct RoutingPart {
  RoutingCount actual, expected;
  std::int64_t tokens_equal = 0, tokens_tied = 0, choices = 0, choices_equal = 0, ties = 0;
  std::int64_t first_token = INT64_MAX;
  Ids first_actual, first_expected;

  RoutingBuffers actual_room, expected_room;
  Choice a, e;

  void see(std::int64_t token) {
    actual.see(a, token);
    expected.see(e, token);
    ties += a.is_tied || e.is_tied;
    choices += std::max(std::ssize(a.chosen), std::ssize(e.chosen));
    if (a.chosen == e.chosen) {
      ++tokens_equal;
      choices_equal += std::ssize(a.chosen);
      return;
    }
    for (const std::int64_t expert : a.chosen)
      choices_equal += std::binary_search(e.chosen.begin(), e.chosen.end(), expert);
    if ((a.is_tied || e.is_tied) && may_be_same(a, e)) {
      ++tokens_tied;
    } else if (token < first_token) {
      first_token = token;
      first_actual = a.chosen, first_expected = e.chosen;
    }
  }
  void join(RoutingPart& other) {
    actual.join(other.actual);
    expected.join(other.expected);
    tokens_equal += other.tokens_equal, tokens_tied += other.tokens_tied;
    choices += other.choices, choices_equal += other.choices_equal;
    ties += other.ties;
    if (other.first_token >= first_token) return;
    first_token = other.first_token;
    first_actual = std::move(other.first_actual), first_expected = std::move(other.first_expected);
  }
};

}  // namespace

RoutingComparison compare_routing(const ArraySource& actual, const ArraySource& expected,
                                  std::optional<std::int64_t> top_k,
                                  const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (top_k && *top_k < 1) throw core::usage("{} experts of a token; there is at least 1", *top_k);
  const Router a(actual, top_k), e(expected, top_k);
  if (top_k && !a.has_scores() && !e.has_scores())
    throw Error(Error::Kind::usage, "both are ids, which need no number of choices");
  RoutingComparison result;
  const auto set_type = [](RoutingSide& side, const Router& router) {
    side.dtype = router.source().dtype();
    side.shape = router.source().shape();
    side.has_scores = router.has_scores();
  };
  set_type(result.actual, a), set_type(result.expected, e);
  result.same_shape =
      a.tokens() == e.tokens() && !(a.has_scores() && e.has_scores() && a.width() != e.width());
  if (!result.same_shape) return result;
  result.tokens = a.tokens();

  std::optional<std::int64_t> experts;
  if (a.has_scores()) experts = a.width();
  if (e.has_scores()) experts = e.width();
  const std::int64_t width = std::max<std::int64_t>(1, std::max(a.width(), e.width()));
  const std::int64_t step = std::max<std::int64_t>(1, kRoutingPiece / width);
  const bool has_choices = a.width() > 0 || e.width() > 0;  // else there may be any number of tokens
  const std::int64_t pieces = has_choices ? core::ceil_div(result.tokens, step) : 0;
  const bool in_order = !actual.random_access() || !expected.random_access();
  const int threads =
      in_order
          ? 1
          : core::threads_for(pieces, 4.0 * static_cast<double>(result.tokens * (a.width() + e.width())));
  core::Progress done(progress, result.tokens);
  RoutingPart all;
  core::parallel_reduce(
      pieces, threads, [] { return RoutingPart(); },
      [&](RoutingPart& part, std::int64_t piece) {
        const std::int64_t begin = piece * step, end = std::min(result.tokens, begin + step);
        a.read(begin, end, part.actual_room);
        e.read(begin, end, part.expected_room);
        for (std::int64_t i = 0; i < end - begin; ++i) {
          a.choose(begin, i, experts, part.actual_room, part.a);
          e.choose(begin, i, experts, part.expected_room, part.e);
          part.see(begin + i);
        }
        done.add(end - begin);
      },
      [&](RoutingPart& part) { all.join(part); });
  if (!has_choices) all.tokens_equal = all.actual.unrouted = all.expected.unrouted = result.tokens;
  result.tokens_equal = all.tokens_equal, result.tokens_tied = all.tokens_tied;
  result.choices = all.choices, result.choices_equal = all.choices_equal;
  result.ties = all.ties;
  result.experts = experts.value_or(std::max(all.actual.largest, all.expected.largest) + 1);
  if (all.first_token != INT64_MAX) {
    result.first_token = all.first_token;
    result.first_actual = std::move(all.first_actual), result.first_expected = std::move(all.first_expected);
  }
  for (RoutingCount* count : {&all.actual, &all.expected})
    count->loads.resize(static_cast<std::size_t>(result.experts <= kMostLoads ? result.experts : 0));
  result.actual = std::move(all.actual), result.expected = std::move(all.expected);
  set_type(result.actual, a), set_type(result.expected, e);
  result.close = result.tokens_equal + result.tokens_tied == result.tokens && result.actual.duplicates == 0 &&
                 result.expected.duplicates == 0;
  return result;
}

std::int64_t routing_bytes(const ArraySource& actual, const ArraySource& expected) {
  std::int64_t bytes = 2 * 8 * kMostLoads;
  for (const ArraySource* source : {&actual, &expected}) {
    const std::int64_t width = source->shape().empty() ? 1 : source->shape().back();
    bytes +=
        std::min(element_count(source->shape()), std::max(kRoutingPiece, width)) * (2 * 8) + width * 4 * 8;
  }
  return (threads() + 1) * bytes;
}

Report describe(const RoutingComparison& comparison) {
  const RoutingComparison& c = comparison;
  Report report;
  report.add("close", "agree, but for ties", c.close)
      .add("actual_shape", "shape, actual", c.actual.shape)
      .add("expected_shape", "shape, expected", c.expected.shape);
  const auto known = [&](auto value) { return c.same_shape ? ReportValue(value) : ReportValue(); };
  const auto list = [&](const Ids& ids) { return c.first_token ? ReportValue(ids) : ReportValue(); };
  report.add("tokens", "tokens", known(c.tokens), Unit::count)
      .add("tokens_equal", "with the same experts", share_of(c.tokens_equal, c.tokens), Unit::share)
      .add("choices_equal", "choices that agree", share_of(c.choices_equal, c.choices), Unit::share)
      .add("ties", "tokens that are tied", known(c.ties), Unit::count)
      .add("tokens_tied", "that differ by a tie alone", known(c.tokens_tied), Unit::count)
      .add("first_token", "first that differs", verify::value_or_null(c.first_token))
      .add("first_actual", "its experts, actual", list(c.first_actual))
      .add("first_expected", "its experts, expected", list(c.first_expected))
      .add("experts", "experts", known(c.experts), Unit::count);
  if (!c.same_shape) {
    report.add(Remark{"The numbers of tokens or of experts differ, so that no token was compared."});
    return report;
  }
  Table sides{"sides",
              "both routings",
              {{"side", ""},
               {"from", "from"},
               {"choices", "choices"},
               {"unrouted_tokens", "without"},
               {"ties", "tied"},
               {"duplicate_tokens", "twice"},
               {"first_duplicate", "first twice"},
               {"max_over_mean", "largest / mean"}},
              {}};
  const auto add_side = [&](const char* name, const RoutingSide& side) {
    const std::int64_t largest =
        side.loads.empty() ? 0 : *std::max_element(side.loads.begin(), side.loads.end());
    const bool has_loads = !side.loads.empty() && side.choices > 0;
    sides.rows.push_back(
        {std::string(name), std::string(side.has_scores ? "scores" : "ids"), side.choices, side.unrouted,
         side.ties, side.duplicates, verify::value_or_null(side.first_duplicate),
         has_loads ? ReportValue(static_cast<double>(largest) * static_cast<double>(c.experts) /
                                 static_cast<double>(side.choices))
                   : ReportValue()});
  };
  add_side("actual", c.actual);
  add_side("expected", c.expected);
  report.add(std::move(sides));
  Table loads{"loads",
              "how often each expert is chosen",
              {{"expert", "expert"}, {"actual", "actual"}, {"expected", "expected"}, {"difference", "more"}},
              {}};
  if (c.experts <= kMostLoads) {
    for (std::size_t e = 0; e < c.actual.loads.size(); ++e)
      loads.rows.push_back({static_cast<std::int64_t>(e), c.actual.loads[e], c.expected.loads[e],
                            c.actual.loads[e] - c.expected.loads[e]});
  } else {
    report.warnings.push_back(
        fmt::format("there are {} experts; of more than {} loads are not listed", c.experts, kMostLoads));
  }
  report.add(std::move(loads));
  for (const auto& [name, side] : {std::pair("actual", &c.actual), std::pair("expected", &c.expected)})
    if (side->duplicates > 0)
      report.warnings.push_back(fmt::format("{}: tokens with an expert twice: {}; the first is token {}",
                                            name, side->duplicates, *side->first_duplicate));
  return report;
}

}  // namespace ejk
