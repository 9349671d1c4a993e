// Routing: a counting sort of the choices by expert, and the best scores of each token. Cost: two passes over
// the ids; of logits O(experts log experts) a token, on several threads.
// tests: tests/matmul/test_route.cpp
#include "ejk/route.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/offsets.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kMostChoices = std::numeric_limits<std::int32_t>::max();

std::int64_t experts_of_token(const ArraySource& topk_ids) {
  return topk_ids.shape().size() > 1 ? topk_ids.shape().back() : 1;
}

void require_experts(std::int64_t experts) {
  if (experts < 0 || experts > kMostChoices)
    throw core::usage("there are {} experts; from 0 to {} are possible", experts, kMostChoices);
}

std::vector<std::int64_t> read_ids(const ArraySource& source, std::int64_t experts) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(element_count(source.shape())));
  std::vector<std::byte> raw;
  core::read_integer_box(source, Shape(source.shape().size(), 0), source.shape(), raw, ids.data());
  for (std::size_t f = 0; f < ids.size(); ++f)
    if (ids[f] < -1 || ids[f] >= experts)
      throw core::invalid(
          "element {} is {}; {}", to_string(core::index_of(source.shape(), static_cast<std::int64_t>(f))),
          ids[f], ids[f] < 0 ? "below -1, which is no expert" : fmt::format("there are {} experts", experts))
          .at(source.name());
  return ids;
}

// The eligible experts of a token, best first, and whether a tie decided.
class TokenRouter {
 public:
  TokenRouter(const RouterSettings& settings, std::span<const double> bias, std::int64_t experts)
      : settings_(settings),
        bias_(bias),
        scores_(static_cast<std::size_t>(experts)),
        by_choice_(scores_.size()),
        experts_(scores_.size()),
        groups_(static_cast<std::size_t>(settings.groups)),
        group_scores_(groups_.size()) {}

  bool route(const double* logits, std::int32_t* ids, double* weights) {
    score(logits);
    for (std::size_t e = 0; e < scores_.size(); ++e)
      by_choice_[e] = scores_[e] + (bias_.empty() ? 0 : bias_[e]);
    bool tied = settings_.groups > 1 && leave_out_groups();
    std::iota(experts_.begin(), experts_.end(), std::int32_t{0});
    const auto k = static_cast<std::size_t>(settings_.top_k);
    tied = best(experts_, by_choice_, k) || tied;
    double sum = 0;
    for (std::size_t i = 0; i < k; ++i) {
      ids[i] = experts_[i];
      weights[i] = scores_[static_cast<std::size_t>(experts_[i])];
      sum += weights[i];
    }
    if (settings_.renormalize && sum > 0)
      for (std::size_t i = 0; i < k; ++i) weights[i] /= sum;
    return tied;
  }

  // The weights of the experts `ids`, 0 for −1; `adds_bias`: with the bias, which selects experts only.
  void weigh(const double* logits, const std::int64_t* ids, bool adds_bias, double* weights) {
    score(logits);
    const auto k = static_cast<std::size_t>(settings_.top_k);
    double sum = 0;
    for (std::size_t i = 0; i < k; ++i) {
      const auto e = static_cast<std::size_t>(ids[i]);
      weights[i] = ids[i] < 0 ? 0 : scores_[e] + (adds_bias ? bias_[e] : 0);
      sum += weights[i];
    }
    if (settings_.renormalize && sum > 0)
      for (std::size_t i = 0; i < k; ++i) weights[i] /= sum;
  }

 private:
  void score(const double* logits) {
    const std::size_t n = scores_.size();
    if (settings_.score == RouterScore::sigmoid) {
      for (std::size_t e = 0; e < n; ++e) scores_[e] = 1 / (1 + std::exp(-logits[e]));
      return;
    }
    const double most = *std::max_element(logits, logits + n);
    double sum = 0;
    for (std::size_t e = 0; e < n; ++e) sum += scores_[e] = std::exp(logits[e] - most);
    for (double& score : scores_) score /= sum;
  }

  // The n best in front, the lower index first of equal ones; whether the next one is as good as the last.
  static bool best(std::vector<std::int32_t>& indices, const std::vector<double>& values, std::size_t n) {
    const auto value = [&](std::int32_t i) { return values[static_cast<std::size_t>(i)]; };
    const std::size_t sorted = std::min(n + 1, indices.size());
    std::partial_sort(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(sorted), indices.end(),
                      [&](std::int32_t x, std::int32_t y) {
                        return value(x) > value(y) || (value(x) == value(y) && x < y);
                      });
    return n > 0 && n < indices.size() && value(indices[n]) == value(indices[n - 1]) &&
           value(indices[n]) > -std::numeric_limits<double>::infinity();
  }

  bool leave_out_groups() {
    const std::size_t size = scores_.size() / groups_.size();
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      double first = -std::numeric_limits<double>::infinity(), second = first;
      for (std::size_t e = g * size; e < (g + 1) * size; ++e) {
        if (by_choice_[e] > first)
          second = first, first = by_choice_[e];
        else
          second = std::max(second, by_choice_[e]);
      }
      group_scores_[g] = bias_.empty() || size < 2 ? first : first + second;
    }
    std::iota(groups_.begin(), groups_.end(), std::int32_t{0});
    const bool tied = best(groups_, group_scores_, static_cast<std::size_t>(settings_.top_groups));
    for (auto g = groups_.begin() + settings_.top_groups; g != groups_.end(); ++g)
      std::fill_n(by_choice_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(*g) * size), size,
                  -std::numeric_limits<double>::infinity());
    return tied;
  }

  const RouterSettings& settings_;
  std::span<const double> bias_;
  std::vector<double> scores_, by_choice_;
  std::vector<std::int32_t> experts_, groups_;
  std::vector<double> group_scores_;
};

void require_router(const RouterSettings& settings, std::int64_t experts) {
  const auto require = [](bool holds, const std::string& why) {
    if (!holds) throw core::usage("{}", why);
  };
  require(settings.groups >= 1 && experts % std::max<std::int64_t>(settings.groups, 1) == 0,
          fmt::format("{} experts are not in {} groups of equal size", experts, settings.groups));
  require(settings.top_groups >= 1 && settings.top_groups <= settings.groups,
          fmt::format("{} of {} groups cannot be eligible", settings.top_groups, settings.groups));
  const std::int64_t eligible = experts / settings.groups * settings.top_groups;
  require(settings.top_k >= 1 && settings.top_k <= eligible,
          fmt::format("{} of {} eligible experts cannot be chosen", settings.top_k, eligible));
  require(is_float(settings.dtype),
          fmt::format("weights are of a float type, not {}", name_of(settings.dtype)));
}

void require_logits(const ArraySource& logits) {
  if (!is_float(logits.dtype()) || logits.shape().size() != 2)
    throw core::invalid("it is {} {}; logits are (tokens, experts) of a float type", name_of(logits.dtype()),
                        to_string(logits.shape()))
        .at(logits.name());
}

constexpr std::int64_t kTokens = 64;

// Calls f(first token, tokens, their logits) in parallel.
template <class F>
void for_each_piece(const ArraySource& logits, F&& f) {
  const std::int64_t tokens = logits.shape()[0], experts = logits.shape()[1];
  const auto resident = logits.random_access() ? nullptr : make_source(read_all(logits), logits.name());
  const ArraySource& source = resident ? *resident : logits;
  core::parallel_for(
      core::ceil_div(tokens, kTokens), 64 * static_cast<double>(tokens) * static_cast<double>(experts),
      [&](std::int64_t piece) {
        const std::int64_t first = piece * kTokens, n = std::min(kTokens, tokens - first);
        std::vector<std::byte> raw(static_cast<std::size_t>(n * experts * size_of(logits.dtype())));
        std::vector<double> numbers(static_cast<std::size_t>(n * experts));
        source.read(Shape{first, 0}, Shape{n, experts}, raw.data());
        core::load(logits.dtype(), raw.data(), size_of(logits.dtype()), n * experts, numbers.data());
        for (std::int64_t i = 0; i < n * experts; ++i)
          if (std::isnan(numbers[static_cast<std::size_t>(i)]))
            throw core::invalid("element {} is NaN", to_string(Shape{first + i / experts, i % experts}))
                .at(logits.name());
        f(first, n, numbers.data());
      });
}

std::vector<double> bias_of(const ArraySource& bias, std::int64_t experts) {
  if (bias.shape() != Shape{experts} || !is_float(bias.dtype()))
    throw core::invalid("it is {} {}; a bias is ({},) of a float type", name_of(bias.dtype()),
                        to_string(bias.shape()), experts)
        .at(bias.name());
  const Array all = read_all(bias);
  std::vector<double> numbers(static_cast<std::size_t>(experts));
  core::load(bias.dtype(), all.data(), size_of(bias.dtype()), experts, numbers.data());
  for (std::size_t e = 0; e < numbers.size(); ++e)
    if (std::isnan(numbers[e])) throw core::invalid("element {} is NaN", e).at(bias.name());
  return numbers;
}

// The weights of some choices (tokens, k), float64, by several settings.
class ChoiceWeights {
 public:
  ChoiceWeights(const ArraySource& logits, const ArraySource& topk_ids, const RouterSettings& settings)
      : logits_(logits) {
    require_logits(logits);
    const std::int64_t tokens = logits.shape()[0], experts = logits.shape()[1], k = settings.top_k;
    if (topk_ids.shape() != Shape{tokens, k} || !is_integer(topk_ids.dtype()))
      throw core::invalid("it is {} {}; ids are ({}, {}) of an integer type", name_of(topk_ids.dtype()),
                          to_string(topk_ids.shape()), tokens, k)
          .at(topk_ids.name());
    ids_ = read_ids(topk_ids, experts);
    if (settings.bias) bias_ = bias_of(*settings.bias, experts);
  }

  Array by(const RouterSettings& settings, bool adds_bias) const {
    const std::int64_t experts = logits_.shape()[1], k = settings.top_k;
    Array all(DType::float64, {logits_.shape()[0], k});
    for_each_piece(logits_, [&](std::int64_t first, std::int64_t n, const double* numbers) {
      TokenRouter router(settings, bias_, experts);
      for (std::int64_t t = 0; t < n; ++t)
        router.weigh(numbers + t * experts, ids_.data() + (first + t) * k, adds_bias,
                     all.elements<double>().data() + (first + t) * k);
    });
    return all;
  }

 private:
  const ArraySource& logits_;
  std::vector<std::int64_t> ids_;
  std::vector<double> bias_;
};

}  // namespace

std::string_view name_of(RouterScore score) { return score == RouterScore::softmax ? "softmax" : "sigmoid"; }

Route make_route(const IntegerArray& topk_ids, std::int64_t experts) {
  const ArraySource& source = *topk_ids;
  require_experts(experts);
  if (!is_integer(source.dtype()) || source.shape().empty())
    throw core::invalid("it is {} {}; ids of experts are integers (tokens, k)", name_of(source.dtype()),
                        to_string(source.shape()))
        .at(source.name());
  const std::int64_t n = element_count(source.shape()), k = experts_of_token(source);
  if (n > kMostChoices) throw core::invalid("{} choices are more than int32 counts", n).at(source.name());
  const std::vector<std::int64_t> ids = read_ids(source, experts);

  Route route{Array(DType::int32, {experts}), Array(DType::int32, {n}), Array(DType::int32, {n}),
              Array(DType::int32, {n})};
  route.tokens = k == 0 ? element_count(std::span(source.shape()).first(source.shape().size() - 1)) : n / k;
  const auto sizes = route.group_sizes.elements<std::int32_t>();
  std::fill(sizes.begin(), sizes.end(), 0);
  for (const std::int64_t id : ids)
    if (id >= 0) ++sizes[static_cast<std::size_t>(id)], ++route.choices;
  // The next row of each expert; the last one is that of no expert.
  std::vector<std::int64_t> next(static_cast<std::size_t>(experts) + 1, 0);
  for (std::size_t e = 0; e < sizes.size(); ++e) next[e + 1] = next[e] + sizes[e];
  const auto order = route.order.elements<std::int32_t>(), inverse = route.inverse.elements<std::int32_t>(),
             token = route.token.elements<std::int32_t>();
  for (std::size_t f = 0; f < ids.size(); ++f) {
    const auto row =
        static_cast<std::size_t>(next[ids[f] < 0 ? sizes.size() : static_cast<std::size_t>(ids[f])]++);
    order[row] = static_cast<std::int32_t>(f);
    inverse[f] = static_cast<std::int32_t>(row);
    token[row] = static_cast<std::int32_t>(static_cast<std::int64_t>(f) / k);
  }
  return route;
}

std::int64_t route_bytes(const ArraySource& topk_ids, std::int64_t experts) {
  const std::int64_t n = element_count(topk_ids.shape());
  return n * (8 + size_of(topk_ids.dtype()) + 3 * 4) + experts * 12;
}

RoutedTokens choose_experts(const ArraySource& logits, const RouterSettings& settings,
                            const std::function<void(std::int64_t, std::int64_t)>& progress) {
  require_logits(logits);
  const std::int64_t tokens = logits.shape()[0], experts = logits.shape()[1], k = settings.top_k;
  require_experts(experts);
  require_router(settings, experts);
  const std::vector<double> bias = settings.bias ? bias_of(*settings.bias, experts) : std::vector<double>();
  RoutedTokens routed{Array(DType::int32, {tokens, k}), Array(settings.dtype, {tokens, k})};
  std::atomic<std::int64_t> ties = 0, done = 0;
  for_each_piece(logits, [&](std::int64_t first, std::int64_t n, const double* numbers) {
    std::vector<double> weights(static_cast<std::size_t>(n * k));
    TokenRouter router(settings, bias, experts);
    std::int64_t tied = 0;
    for (std::int64_t t = 0; t < n; ++t)
      tied += router.route(numbers + t * experts,
                           routed.topk_ids.elements<std::int32_t>().data() + (first + t) * k,
                           weights.data() + t * k);
    core::store(settings.dtype, weights.data(), n * k,
                routed.topk_weights.data() + first * k * size_of(settings.dtype));
    ties += tied;
    done += n;
    if (progress && first % (64 * kTokens) == 0) progress(done, tokens);
  });
  routed.ties = ties;
  return routed;
}

Array weights_of_choices(const ArraySource& logits, const RouterSettings& settings,
                         const ArraySource& topk_ids) {
  return ChoiceWeights(logits, topk_ids, settings).by(settings, false);
}

std::vector<OtherWeights> wrong_weights_of_choices(const ArraySource& logits, const RouterSettings& settings,
                                                   const ArraySource& topk_ids) {
  const ChoiceWeights weights(logits, topk_ids, settings);
  std::vector<OtherWeights> all;
  // huggingface/transformers#39581, MetaX-MACA/vLLM-metax#284
  if (settings.bias) all.push_back({"the weights are those with the bias", weights.by(settings, true)});
  // pytorch/torchtitan#1448
  RouterSettings changed = settings;
  changed.renormalize = !settings.renormalize;
  all.push_back({settings.renormalize ? "the weights of a token are not renormalised to 1"
                                      : "the weights of a token are renormalised to 1",
                 weights.by(changed, false)});
  changed = settings;
  changed.score = settings.score == RouterScore::softmax ? RouterScore::sigmoid : RouterScore::softmax;
  all.push_back({fmt::format("the weights are those of {} scores", name_of(changed.score)),
                 weights.by(changed, false)});
  return all;
}

Report describe(const Route& route, std::int64_t ranks) {
  const auto sizes = route.group_sizes.elements<std::int32_t>();
  const auto experts = std::ssize(sizes);
  if (ranks < 1 || experts % ranks != 0)
    throw core::usage("{} experts are not on {} ranks, as many on each", experts, ranks);
  const std::int64_t n = route.order.size();
  Report report;
  report.add("tokens", "tokens", route.tokens, Unit::count)
      .add("experts", "experts", experts, Unit::count)
      .add("choices", "rows", route.choices, Unit::count)
      .add("no_expert", "choices of no expert", n - route.choices, Unit::count);
  const auto loads_of = [&](std::int64_t parts, const char* prefix, const char* of) {
    std::int64_t largest = 0, most = 0, empty = 0;
    for (std::int64_t p = 0; p < parts; ++p) {
      std::int64_t load = 0;
      for (std::int64_t e = p * (experts / parts); e < (p + 1) * (experts / parts); ++e)
        load += sizes[static_cast<std::size_t>(e)];
      if (load > most) most = load, largest = p;
      empty += load == 0;
    }
    const double mean = parts == 0 ? 0 : static_cast<double>(route.choices) / static_cast<double>(parts);
    report.add(fmt::format("empty_{}s", prefix), fmt::format("{}s without rows", of), empty, Unit::count)
        .add(fmt::format("largest_{}", prefix), fmt::format("rows of the largest {}", of), most, Unit::rows)
        .add(fmt::format("largest_{}_index", prefix), "which is", largest)
        .add(fmt::format("{}_max_over_mean", prefix), "largest over mean",
             ratio(static_cast<double>(most), mean));
  };
  loads_of(experts, "expert", "expert");
  if (ranks > 1) {
    report.add("ranks", "ranks", ranks, Unit::count);
    loads_of(ranks, "rank", "rank");
  }
  return report;
}

}  // namespace ejk
