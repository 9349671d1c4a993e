// Routings: sets of experts counted by plain loops, ties by enumeration of all choices.
#include "ejk/program/routing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "io/support.hpp"
#include "support/arrays.hpp"
#include "support/counted_source.hpp"

using namespace ejk;

namespace {

using Set = std::set<std::int64_t>;

RoutingComparison routings(const Array& a, const Array& e, std::optional<std::int64_t> top_k = std::nullopt) {
  return compare_routing(*make_source(a.view(), "a"), *make_source(e.view(), "e"), top_k);
}

Array ids_of(Shape shape, const std::vector<double>& values, DType dtype = DType::int32) {
  return plain::array_of(dtype, std::move(shape), values);
}

// Every choice of k of these scores that is right: no other score is larger than one that is chosen.
std::vector<Set> right_choices(const std::vector<double>& scores, std::int64_t k) {
  std::vector<Set> all;
  for (unsigned bits = 0; bits < 1U << scores.size(); ++bits) {
    Set chosen;
    double least = INFINITY, other = -INFINITY;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const bool is_chosen = (bits >> i & 1) != 0;
      if (is_chosen) chosen.insert(static_cast<std::int64_t>(i)), least = std::min(least, scores[i]);
      if (!is_chosen) other = std::max(other, scores[i]);
    }
    if (std::ssize(chosen) == k && (chosen.size() == scores.size() || least >= other)) all.push_back(chosen);
  }
  return all;
}

std::string told(const RoutingComparison& found) { return to_json(describe(found), {"compare"}); }

}  // namespace

TEST_CASE("ids are sets: order does not count, -1 is no choice, and an expert twice is a fault") {
  const Array a = ids_of({5, 3}, {0, 1, 2, 5, 4, 3, 1, 2, -1, 7, 7, 1, -1, -1, -1}),
              e = ids_of({5, 3}, {2, 1, 0, 3, 4, 6, -1, 2, 1, 1, 7, -1, -1, -1, -1}, DType::int64);
  const RoutingComparison got = routings(a, e);
  CHECK_FALSE(got.close);
  CHECK(got.tokens == 5);
  CHECK(got.tokens_equal == 4);
  CHECK(got.choices == 3 + 3 + 2 + 2);
  CHECK(got.choices_equal == 3 + 2 + 2 + 2);
  CHECK(got.first_token == 1);
  CHECK(got.first_actual == std::vector<std::int64_t>{3, 4, 5});
  CHECK(got.first_expected == std::vector<std::int64_t>{3, 4, 6});
  CHECK(got.experts == 8);
  CHECK(got.actual.loads == std::vector<std::int64_t>{1, 3, 2, 1, 1, 1, 0, 1});
  CHECK(got.actual.duplicates == 1);
  CHECK(got.actual.first_duplicate == 3);
  CHECK(got.expected.duplicates == 0);
  CHECK(got.actual.unrouted == 1);
  // The fault alone makes it fail.
  CHECK_FALSE(routings(a, a).close);
  CHECK(routings(a, a).tokens_equal == 5);
  CHECK(routings(e, e).close);
}

TEST_CASE("random ids of several integer types are what plain sets say") {
  std::mt19937_64 random(5);
  for (const DType dtype : {DType::int8, DType::int16, DType::int32, DType::int64, DType::uint8})
    for (const auto& [tokens, k, other_k] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{20'000, 4, 4},
          {11'000, 8, 6},
          {1, 1, 1},
          {3, 0, 2},
          {0, 4, 4}}) {
      CAPTURE(name_of(dtype));
      const std::int64_t count = tokens;
      CAPTURE(count);
      std::vector<double> x, y;
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::vector<double> row;
        for (std::int64_t c = 0; c < std::max(k, other_k); ++c)
          row.push_back(static_cast<double>(random() % 64));
        for (std::int64_t c = 0; c < k; ++c) x.push_back(row[static_cast<std::size_t>(c)]);
        if (random() % 9 == 0) row[random() % row.size()] = static_cast<double>(random() % 64);
        std::shuffle(row.begin(), row.end(), random);
        for (std::int64_t c = 0; c < other_k; ++c) y.push_back(row[static_cast<std::size_t>(c)]);
      }
      const Array a = ids_of({tokens, k}, x, dtype), e = ids_of({tokens, other_k}, y, dtype);
      std::int64_t equal = 0, choices = 0, both = 0, first = -1;
      std::vector<std::int64_t> loads(64);
      for (std::int64_t t = 0; t < tokens; ++t) {
        Set p, q, common;
        for (std::int64_t c = 0; c < k; ++c)
          p.insert(static_cast<std::int64_t>(x[static_cast<std::size_t>(t * k + c)]));
        for (std::int64_t c = 0; c < other_k; ++c)
          q.insert(static_cast<std::int64_t>(y[static_cast<std::size_t>(t * other_k + c)]));
        std::set_intersection(p.begin(), p.end(), q.begin(), q.end(), std::inserter(common, common.end()));
        if (p == q) ++equal;
        if (p != q && first < 0) first = t;
        choices += static_cast<std::int64_t>(std::max(p.size(), q.size()));
        both += std::ssize(common);
        for (const std::int64_t expert : p) ++loads[static_cast<std::size_t>(expert)];
      }
      const RoutingComparison got = routings(a, e);
      CHECK(got.tokens == tokens);
      CHECK(got.tokens_equal == equal);
      CHECK(got.choices == choices);
      CHECK(got.choices_equal == both);
      CHECK(got.first_token.value_or(-1) == first);
      CHECK(got.ties == 0);
      loads.resize(static_cast<std::size_t>(got.experts));
      CHECK(got.actual.loads == loads);
      const plain::CountedSource in_order(a, ArrayAccess::Order::sequential);
      CHECK(told(compare_routing(in_order, *make_source(e.view()))) == told(got));
    }
}

TEST_CASE("tokens without choices agree, and their number costs nothing") {
  const std::int64_t many = std::int64_t{1} << 40;
  for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{3}, many}) {
    const Array none(DType::int32, {tokens, 0});
    const RoutingComparison got = routings(none, none);
    CHECK(got.close);
    CHECK(got.tokens == tokens);
    CHECK(got.tokens_equal == tokens);
    CHECK(got.actual.unrouted == tokens);
    CHECK(got.expected.unrouted == tokens);
    CHECK(got.choices == 0);
    CHECK(got.experts == 0);
  }
}

TEST_CASE("a tie accounts for a difference where some right choice is the same, of every float type") {
  std::mt19937_64 random(7);
  for (const DType dtype : plain::kFloats)
    for (std::int64_t k = 1; k <= 6; ++k)
      for (const bool is_of_ids : {false, true}) {
        CAPTURE(name_of(dtype));
        CAPTURE(k);
        constexpr std::int64_t kTokens = 300, kExperts = 6;
        std::vector<double> x, y;  // few values, so that many are equal
        for (std::int64_t i = 0; i < kTokens * kExperts; ++i) {
          x.push_back(static_cast<double>(random() % 4) - 1);
          y.push_back(random() % 8 == 0 ? static_cast<double>(random() % 4) - 1 : x.back());
        }
        std::vector<double> ids;
        std::int64_t equal = 0, tied = 0, ties = 0, first = -1;
        for (std::int64_t t = 0; t < kTokens; ++t) {
          const auto row = [&](const std::vector<double>& all) {
            return std::vector<double>(all.begin() + t * kExperts, all.begin() + (t + 1) * kExperts);
          };
          // The one with the smallest indices, which is least.
          const auto chosen = [](const std::vector<Set>& choices) {
            return *std::min_element(choices.begin(), choices.end());
          };
          const std::vector<Set> of_x = right_choices(row(x), k);
          std::vector<Set> of_y = right_choices(row(y), k);
          const bool x_ties = of_x.size() > 1, y_ties = of_y.size() > 1;
          if (is_of_ids) of_y = {of_y[random() % of_y.size()]};
          const Set p = chosen(of_x), q = chosen(of_y);
          ids.insert(ids.end(), q.begin(), q.end());
          ties += x_ties || (y_ties && !is_of_ids);
          if (p == q) {
            ++equal;
          } else if (std::any_of(of_x.begin(), of_x.end(), [&](const Set& s) {
                       return std::find(of_y.begin(), of_y.end(), s) != of_y.end();
                     })) {
            ++tied;
          } else if (first < 0) {
            first = t;
          }
        }
        const Array a = plain::array_of(dtype, {kTokens, kExperts}, x),
                    e = is_of_ids ? ids_of({kTokens, k}, ids)
                                  : plain::array_of(dtype, {kTokens, kExperts}, y);
        const RoutingComparison got = routings(a, e, k);
        CHECK(got.tokens_equal == equal);
        CHECK(got.tokens_tied == tied);
        CHECK(got.ties == ties);
        CHECK(got.first_token.value_or(-1) == first);
        CHECK(got.experts == kExperts);
        CHECK(got.close == (first < 0));
        const RoutingComparison back = routings(e, a, k);
        CHECK(back.tokens_tied == tied);
        CHECK(back.first_token == got.first_token);
      }
}

TEST_CASE("zeros of either sign are equal scores, and infinities are scores") {
  const Array a = plain::array_of(DType::float32, {1, 3}, {0, -0.0, -INFINITY}),
              e = plain::array_of(DType::float32, {1, 3}, {-1, INFINITY, -INFINITY});
  const RoutingComparison got = routings(a, e, 1);
  CHECK(got.close);
  CHECK(got.tokens_tied == 1);
  CHECK(got.actual.ties == 1);
  CHECK(got.expected.ties == 0);
}

TEST_CASE("more axes in front are tokens, and one axis of ids is one expert each") {
  const Array flat = ids_of({4}, {3, 1, 0, 2}), one = ids_of({4, 1}, {3, 1, 0, 2}),
              two = ids_of({2, 2, 1}, {3, 1, 2, 2});
  CHECK(routings(flat, one).close);
  CHECK(routings(flat, two).first_token == 2);
}

TEST_CASE("routings of other numbers of tokens, or scores of other numbers of experts, are not the same") {
  const Array a = ids_of({2, 1}, {0, 1}), e = ids_of({3, 1}, {0, 1, 2});
  const RoutingComparison got = routings(a, e);
  CHECK_FALSE(got.close);
  CHECK_FALSE(got.same_shape);
  CHECK(test::contains(told(got), R"("tokens_equal":null)"));
  const Array s = plain::filled(DType::float32, {2, 3}, 1), t = plain::filled(DType::float32, {2, 4}, 1);
  CHECK_FALSE(routings(s, t, 2).same_shape);
}

TEST_CASE("of very many experts loads are not listed") {
  const Array a = ids_of({2, 1}, {0, 70'000});
  const RoutingComparison got = routings(a, a);
  CHECK(got.close);
  CHECK(got.experts == 70'001);
  CHECK(got.actual.loads.empty());
  CHECK(test::contains(told(got), "70001 experts"));
}

TEST_CASE("errors name the array, the token and what is wrong") {
  const Array ids = ids_of({2, 2}, {0, 1, 2, 3}), negative = ids_of({2, 2}, {0, 1, 2, -5}),
              scores = plain::filled(DType::bfloat16, {2, 3}, 1),
              flag = plain::filled(DType::boolean, {2, 2}, 1), flat = plain::filled(DType::float32, {2}, 1);
  Array nan = plain::filled(DType::float16, {2, 3}, 1);
  nan.elements<float16>()[4] = float16(NAN);
  using Kind = Error::Kind;
  const auto says = [](Kind kind, const Array& a, const Array& e, std::optional<std::int64_t> k,
                       const char* part) {
    CHECK(test::contains(test::error_of(kind, [&] { routings(a, e, k); }), part));
  };
  says(Kind::input, negative, ids, std::nullopt, "a: choice 1 of token 1 is -5");
  says(Kind::input, scores, nan, 2, "e: the score of expert 1 for token 1 is NaN");
  says(Kind::input, scores, ids, 2, "e: choice 1 of token 1 is expert 3, and there are scores of 3");
  says(Kind::input, flag, ids, std::nullopt, "a: a routing is ids of integers or scores of floats, not bool");
  says(Kind::input, flat, ids, 1, "a: scores must be (tokens, experts), not of shape (2,)");
  says(Kind::usage, scores, ids, std::nullopt, "a: these are scores");
  says(Kind::usage, scores, ids, 4, "a: 4 experts of 3");
  says(Kind::usage, ids, ids, 2, "both are ids");
  says(Kind::usage, scores, ids, 0, "at least 1");
}
