// The gradient of attention: golden cases through the library.
#include "support/golden_attention.hpp"

using namespace ejk;

TEST_CASE("attention_grad gives the golden results") {
  int cases = 0;
  for (const golden::Case& c : golden::load("attention_grad")) {
    CAPTURE(c.name);
    AttentionOptions options = golden::attention_options(c);
    const ArrayView q = c.in.at("q").view(), k = c.in.at("k").view(), v = c.in.at("v").view(),
                    dout = c.in.at("dout").view();
    if (c.is_error) {
      CHECK_THROWS_AS(attention_grad(q, k, v, dout, options), Error);
      continue;
    }
    for (const auto& block : {std::optional<BlockShape>(), std::optional<BlockShape>({3, 5})}) {
      ++cases;
      options.block = block;
      const AttentionGradients got = attention_grad(q, k, v, dout, options);
      CHECK(golden::gradient_difference(c, got.dq, got.dk, got.dv) == "");
      // What a forward pass has left gives the same bits.
      const Attention forward = attention(q, k, v, options, golden::arithmetic_of(c));
      const AttentionGradients again = attention_grad(q, k, v, dout, options, std::nullopt,
                                                      AttentionSaved{forward.out.view(), forward.lse.view()});
      CHECK(plain::same_bytes(again.dq, got.dq));
      CHECK(plain::same_bytes(again.dk, got.dk));
      CHECK(plain::same_bytes(again.dv, got.dv));
      if (c.name == "large_logits") continue;  // an lse that did not round as the scores do is no match
      const AttentionSaved saved{c.out.at("out").view(), c.out.at("lse").view()};
      const AttentionGradients exact = attention_grad(q, k, v, dout, options, std::nullopt, saved);
      CHECK(golden::gradient_difference(c, exact.dq, exact.dk, exact.dv) == "");
    }
  }
  CHECK(cases > 60);
}
