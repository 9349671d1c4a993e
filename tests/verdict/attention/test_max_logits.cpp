#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ejk/attention_check.hpp"
#include "support/attention_loops.hpp"

using namespace ejk;

namespace {

struct LargestScores {
  Array q, k, v;
  AttentionOptions options;

  LargestScores(DType dtype, std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    q = plain::random(dtype, {2, 20, 4, 16}, engine);
    k = plain::random(dtype, {2, 20, 2, 16}, engine);
    v = plain::random(dtype, {2, 20, 2, 8}, engine);
    options.max_logits = true;
    options.masks.push_back(head_masks({causal_mask(20, 20)}));
  }

  // Of the definition: a loop over all pairs, times a factor.
  std::vector<double> scores(double factor) const {
    plain::Heads qs = plain::heads_of(q, AttentionLayout::bshd),
                 ks = plain::heads_of(k, AttentionLayout::bshd);
    std::vector<double> most(4, -plain::kInfinity);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < 20; ++i)
          for (std::int64_t j = 0; j <= i; ++j) {
            double s = 0;
            for (std::int64_t d = 0; d < 16; ++d) s += qs.at(b, h, i, d) * ks.at(b, h / 2, j, d);
            double& of_head = most[static_cast<std::size_t>(h)];
            of_head = std::max(of_head, factor * s);
          }
    return most;
  }

  Against verdict(const std::vector<double>& given, Explain explain = Explain::yes) const {
    const Attention own = attention(q.view(), k.view(), v.view(), options);
    const AttentionArrays arrays{q.view(), k.view(), v.view(), {}};
    const AttentionPlan plan(types_of(arrays), options);
    Against against = compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                      {own.out.view(), own.lse.view()}, explain);
    CHECK(against.agrees());
    const Array largest = plain::array_of(DType::float32, {4}, given);
    compare_max_logits(plan, arrays, own.work.max_logits, largest.view(), against);
    return against;
  }
};

}  // namespace

TEST_CASE("the largest scores of heads are compared, and a scale that is left out is named") {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{2}}) {
      CAPTURE(name_of(dtype));
      const LargestScores p(dtype, seed);
      const Against right = p.verdict(p.scores(0.25));
      CHECK(right.agrees());
      CHECK(right.arrays.back().name == "max_logits");

      const Against unscaled = p.verdict(p.scores(1));
      CHECK(unscaled.beyond == 4);
      REQUIRE(unscaled.explanations.size() == 1);
      CHECK(unscaled.explanations[0].array == "max_logits");
      CHECK(unscaled.explanations[0].text == "the scale is left out");

      std::vector<double> off = p.scores(0.25);
      off[2] *= 1.001;
      const Against one_head = p.verdict(off);
      CHECK(one_head.beyond == 1);
      CHECK(one_head.explanations.empty());
      REQUIRE(one_head.unexplained.size() == 1);
      CHECK(one_head.unexplained[0].worst.index == Shape{2});
      off[1] = std::nan("");
      CHECK(p.verdict(off, Explain::no).beyond == 2);
    }
}

TEST_CASE("the largest score of a head without a pair is -inf, and no number is equal to it") {
  LargestScores p(DType::float32, 3);
  p.options.masks = {head_masks({causal_mask(20, 20, -20)})};
  const std::vector<double> none(4, -plain::kInfinity);
  CHECK(p.verdict(none).agrees());
  CHECK(p.verdict({-plain::kInfinity, 0, -1e30, plain::kInfinity}).beyond == 3);
}
