// Routing against plain loops: rows of choices, and the best experts of logits.
#include "ejk/route.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

std::vector<std::int64_t> int32s(const Array& array) {
  std::vector<std::int64_t> all;
  for (const std::int32_t x : array.elements<std::int32_t>()) all.push_back(x);
  return all;
}

using Numbers = std::vector<std::int64_t>;

// Scores, and the experts that a plain sort of all (score, expert) puts first.
struct Routed {
  std::vector<std::int64_t> ids;
  std::vector<double> weights;
};

Routed plain_router(std::vector<double> logits, const RouterSettings& s, const std::vector<double>& bias) {
  const auto n = static_cast<std::int64_t>(logits.size());
  std::vector<double> scores(logits.size());
  double sum = 0;
  for (std::size_t e = 0; e < scores.size(); ++e) sum += std::exp(logits[e]);
  for (std::size_t e = 0; e < scores.size(); ++e)
    scores[e] = s.score == RouterScore::softmax ? std::exp(logits[e]) / sum : 1 / (1 + std::exp(-logits[e]));
  std::vector<double> by = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) by[e] += bias[e];
  const auto first = [](std::vector<std::pair<double, std::int64_t>> all, std::int64_t k) {
    std::sort(all.begin(), all.end(), [](auto x, auto y) {
      return x.first > y.first || (x.first == y.first && x.second < y.second);
    });
    std::vector<std::int64_t> best;
    for (std::int64_t i = 0; i < k; ++i) best.push_back(all[static_cast<std::size_t>(i)].second);
    return best;
  };
  const std::int64_t size = n / s.groups;
  std::vector<std::pair<double, std::int64_t>> groups, experts;
  for (std::int64_t g = 0; g < s.groups; ++g) {
    std::vector<double> of(by.begin() + g * size, by.begin() + (g + 1) * size);
    std::sort(of.rbegin(), of.rend());
    groups.emplace_back(bias.empty() || size < 2 ? of[0] : of[0] + of[1], g);
  }
  for (const std::int64_t g : first(groups, s.top_groups))
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e)
      experts.emplace_back(by[static_cast<std::size_t>(e)], e);
  Routed routed{first(experts, s.top_k), {}};
  double total = 0;
  for (const std::int64_t e : routed.ids) total += scores[static_cast<std::size_t>(e)];
  for (const std::int64_t e : routed.ids)
    routed.weights.push_back(scores[static_cast<std::size_t>(e)] / (s.renormalize ? total : 1));
  return routed;
}

}  // namespace

TEST_CASE("choices are sorted by expert, stably, and those of no expert come last") {
  const Array ids = plain::array_of(DType::int16, {4, 2}, {2, 0, -1, 2, 0, 1, 2, -1});
  const Route route = make_route(make_source(ids.view()), 4);
  CHECK(int32s(route.group_sizes) == Numbers{2, 1, 3, 0});
  CHECK(int32s(route.order) == Numbers{1, 4, 5, 0, 3, 6, 2, 7});
  CHECK(int32s(route.inverse) == Numbers{3, 0, 6, 4, 1, 2, 5, 7});
  CHECK(int32s(route.token) == Numbers{0, 2, 2, 0, 1, 3, 1, 3});
  CHECK(route.tokens == 4);
  CHECK(route.choices == 6);
}

TEST_CASE("random choices: rows are those of a stable sort, and inverse undoes the order") {
  std::mt19937_64 engine(2);
  for (int round = 0; round < 60; ++round) {
    const auto tokens = static_cast<std::int64_t>(engine() % 40), k = static_cast<std::int64_t>(engine() % 5),
               experts = static_cast<std::int64_t>(1 + engine() % 9);
    std::vector<double> ids(static_cast<std::size_t>(tokens * k));
    for (double& id : ids) id = static_cast<double>(engine() % static_cast<std::uint64_t>(experts + 1)) - 1;
    const Array array = plain::array_of(round % 2 == 0 ? DType::int32 : DType::int64, {tokens, k}, ids);
    const Route route = make_route(make_source(array.view()), experts);
    std::vector<std::int64_t> rows(ids.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::stable_sort(rows.begin(), rows.end(), [&](auto x, auto y) {
      const auto key = [&](std::int64_t f) {
        return ids[static_cast<std::size_t>(f)] < 0 ? 1e9 : ids[static_cast<std::size_t>(f)];
      };
      return key(x) < key(y);
    });
    CHECK(int32s(route.order) == rows);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      CHECK(int32s(route.inverse)[static_cast<std::size_t>(rows[r])] == static_cast<std::int64_t>(r));
      CHECK(int32s(route.token)[r] == rows[r] / k);
    }
    CHECK(route.tokens == tokens);
  }
}

TEST_CASE("experts of logits: either score, bias, groups, renormalised, on any number of threads") {
  std::mt19937_64 engine(4);
  for (const std::int64_t groups : {1, 4})
    for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid})
      for (const bool biased : {false, true}) {
        const std::int64_t tokens = 300, experts = 16;
        const Array logits = plain::random(DType::float32, {tokens, experts}, engine);
        const Array bias = plain::random(DType::float32, {experts}, engine);
        RouterSettings settings;
        settings.top_k = 3;
        settings.score = score;
        settings.groups = groups, settings.top_groups = groups == 1 ? 1 : 2;
        settings.renormalize = biased;
        if (biased) settings.bias = make_source(bias.view());
        settings.dtype = DType::float64;
        const RoutedTokens routed = choose_experts(*make_source(logits.view()), settings);
        const auto all = plain::doubles(logits.view()), extra = plain::doubles(bias.view());
        std::int64_t wrong = 0;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const Routed expected = plain_router({all.begin() + t * experts, all.begin() + (t + 1) * experts},
                                               settings, biased ? extra : std::vector<double>());
          for (std::size_t i = 0; i < 3; ++i) {
            const auto at = static_cast<std::size_t>(t * 3) + i;
            wrong += routed.topk_ids.elements<std::int32_t>()[at] != expected.ids[i];
            wrong += std::abs(routed.topk_weights.elements<double>()[at] - expected.weights[i]) > 1e-12;
          }
        }
        CHECK(wrong == 0);
        CHECK(routed.ties == 0);
        for (const int threads : {1, 2, 7}) {
          const Threads scope(threads);
          CHECK(plain::same_bytes(choose_experts(*make_source(logits.view()), settings).topk_weights,
                                  routed.topk_weights));
        }
      }
}

TEST_CASE("equal scores go to the lower expert, and are counted") {
  const Array logits = plain::array_of(DType::bfloat16, {3, 4}, {1, 3, 3, 3, 5, 4, 4, 0, 1, 1, 1, 1});
  const RoutedTokens routed = choose_experts(*make_source(logits.view()), {.top_k = 2});
  CHECK(int32s(routed.topk_ids) == Numbers{1, 2, 0, 1, 0, 1});
  CHECK(routed.ties == 3);
}

TEST_CASE("what is wrong with ids, logits and settings is named") {
  const auto why = [](const Array& ids, std::int64_t experts) {
    return plain::failure_and_hint([&] { make_route(make_source(ids.view(), "ids"), experts); });
  };
  CHECK(why(plain::array_of(DType::int32, {2, 2}, {0, 1, 2, 1}), 2) ==
        "ids: element (1, 0) is 2; there are 2 experts");
  CHECK(why(plain::array_of(DType::int32, {2}, {0, -2}), 2) ==
        "ids: element (1,) is -2; below -1, which is no expert");
  CHECK(why(plain::array_of(DType::float32, {2}, {0, 1}), 2) ==
        "ids: it is float32 (2,); ids of experts are integers (tokens, k)");
  const Array logits = plain::array_of(DType::float32, {1, 4}, {0, 1, std::nan(""), 2});
  const auto refused = [&](const RouterSettings& settings) {
    return plain::failure_and_hint([&] { choose_experts(*make_source(logits.view(), "l"), settings); });
  };
  CHECK(refused({.top_k = 2}) == "l: element (0, 2) is NaN");
  CHECK(refused({.top_k = 5}) == "5 of 4 eligible experts cannot be chosen");
  CHECK(refused({.top_k = 2, .groups = 3}) == "4 experts are not in 3 groups of equal size");
  CHECK(refused({.top_k = 3, .groups = 4, .top_groups = 2}) == "3 of 2 eligible experts cannot be chosen");
}

TEST_CASE("combine_experts is a plain loop over choices, in every float type, of strided rows") {
  std::mt19937 random(4);
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64})
    for (const std::int64_t k : {1, 2, 5})
      for (const bool has_weights : {false, true}) {
        const std::int64_t tokens = 37, experts = 6, columns = 11, choices = tokens * k;
        std::vector<double> ids(static_cast<std::size_t>(choices)), y(ids.size() * 11), weights(ids.size());
        for (double& id : ids) id = static_cast<double>(random() % 7) - 1;  // -1 is no expert
        for (double& x : y) x = static_cast<double>(random() % 129) / 16 - 4;
        for (double& w : weights) w = static_cast<double>(random() % 256) / 256;
        const Array id_array = plain::array_of(DType::int32, {tokens, k}, ids);
        const Route route = make_route(make_source(id_array.view()), experts);
        const plain::Laid rows(plain::array_of(dtype, {choices, columns}, y), static_cast<int>(k % 4));
        CombineSettings settings{.top_k = k, .rows = route.choices, .dtype = DType::float64};
        const Array weight_array = plain::array_of(DType::float32, {tokens, k}, weights);
        if (has_weights) settings.weights = make_source(weight_array.view());
        CAPTURE(name_of(dtype));
        CAPTURE(k);
        std::vector<double> expected(static_cast<std::size_t>(tokens * columns), 0);
        const auto inverse = int32s(route.inverse);
        for (std::int64_t f = 0; f < choices; ++f)
          for (std::int64_t c = 0; c < columns; ++c)
            if (ids[static_cast<std::size_t>(f)] >= 0)
              expected[static_cast<std::size_t>(f / k * columns + c)] +=
                  (has_weights ? weights[static_cast<std::size_t>(f)] : 1) *
                  y[static_cast<std::size_t>(inverse[static_cast<std::size_t>(f)] * columns + c)];
        const Array out = combine_experts(rows.view(), make_source(route.inverse.view()), settings);
        REQUIRE(out.shape() == Shape{tokens, columns});
        CHECK(plain::doubles(out.view()) == expected);  // exact: few bits
        settings.dtype.reset();
        const Array rounded = combine_experts(rows.view(), make_source(route.inverse.view()), settings);
        CHECK(rounded.dtype() == dtype);
        CHECK(plain::doubles(rounded.view()) ==
              plain::doubles(plain::array_of(dtype, {tokens, columns}, expected).view()));
      }
}

TEST_CASE("rows of no expert are not read, and wrong arguments of combine_experts are named") {
  const Array y = plain::array_of(DType::float32, {2, 1}, {3, 4});
  const auto inverse = [](const std::vector<double>& rows) {
    return make_source(plain::array_of(DType::int64, {std::ssize(rows)}, rows), "inverse");
  };
  const auto error = [&](const CombineSettings& settings, const std::vector<double>& rows) {
    return plain::failure_and_hint([&] { (void)combine_experts(y.view(), inverse(rows), settings); });
  };
  // Row 5 would be past the end.
  const Array out = combine_experts(y.view(), inverse({1, 5, 0, 1}), {.top_k = 2, .rows = 2});
  CHECK(plain::doubles(out.view()) == std::vector<double>{4, 7});
  CHECK(error({.top_k = 2}, {1, 5}) == "inverse: element 1 is 5; there are 2 rows");
  CHECK(error({.top_k = 2, .rows = 2}, {1, -1}) == "inverse: element 1 is -1; there are 2 rows");
  CHECK(error({.top_k = 2}, {1, 0, 1}) == "inverse: it has 3 choices, which are not 2 of each token");
  CHECK(error({.top_k = 0}, {1}) == "a token has 0 choices");
  const auto weights = make_source(plain::array_of(DType::float32, {2, 2}, {1, 1, 1, 1}), "weights");
  CHECK(error({.weights = weights}, {1, 0}) == "weights: it has the shape (2, 2), and there are 2 choices");
  CHECK(combine_experts(Array(DType::float32, {0, 3}).view(), inverse({}), {}).shape() == Shape{0, 3});
}
