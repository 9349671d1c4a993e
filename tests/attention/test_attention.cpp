// Attention forward: golden cases through the library.
#include "ejk/attention.hpp"

#include "support/golden_attention.hpp"

using namespace ejk;

TEST_CASE("attention gives the golden results") {
  int cases = 0;
  for (const golden::Case& c : golden::load("attention")) {
    CAPTURE(c.name);
    AttentionOptions options = golden::attention_options(c);
    const ArrayView q = c.in.at("q").view(), k = c.in.at("k").view(), v = c.in.at("v").view();
    if (c.is_error) {
      CHECK_THROWS_AS(attention(q, k, v, options), Error);
      continue;
    }
    for (const auto& block : {std::optional<BlockShape>(), std::optional<BlockShape>({3, 5})}) {
      ++cases;
      options.block = block;
      const Attention got = attention(q, k, v, options);
      CHECK(got.out.dtype() == q.dtype);
      CHECK(got.lse.dtype() == golden::arithmetic_of(c));
      CHECK(golden::forward_difference(c, got.out, got.lse) == "");
    }
  }
  CHECK(cases > 60);
}
