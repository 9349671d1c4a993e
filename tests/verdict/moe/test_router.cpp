// The weights of another router: right ones in every type, and known faults.
#include <doctest/doctest.h>

#include <random>

#include "ejk/matmul_check.hpp"
#include "support/arrays.hpp"

using namespace ejk;

TEST_CASE("weights of a router are right in every type, and those with the bias are named") {
  for (const std::uint64_t seed : {1U, 2U}) {
    std::mt19937_64 engine(seed);
    const Array logits = plain::random(DType::float32, {90, 16}, engine),
                bias = plain::random(DType::float32, {16}, engine);
    const auto source = make_source(logits.view(), "logits");
    for (const bool renormalize : {false, true})
      for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid})
        for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
          CAPTURE(name_of(type));
          RouterSettings settings;
          settings.top_k = 4;
          settings.score = score;
          settings.renormalize = renormalize;
          settings.bias = make_source(bias.view(), "bias");
          settings.dtype = type;
          const RoutedTokens right = choose_experts(*source, settings);
          const auto ids = make_source(right.topk_ids.view(), "ids");
          const auto judged = [&](const Array& weights) {
            return compare_weights(*source, settings, *ids, weights.view(), Explain::yes);
          };
          CHECK(judged(right.topk_weights).agrees());
          const std::vector<OtherWeights> others = wrong_weights_of_choices(*source, settings, *ids);
          REQUIRE(others.size() == 3);
          for (const OtherWeights& other : others) {
            const Array wrong = plain::array_of(type, {90, 4}, plain::doubles(other.weights.view()));
            const Against against = judged(wrong);
            CHECK_FALSE(against.agrees());
            REQUIRE(against.explanations.size() == 1);
            CHECK(against.explanations[0].text == other.text);
            CHECK(against.explanations[0].share_explained > 0.99);
          }
        }
  }
}
