// The plain form: golden cases of both directions.
#include "attention/reference.hpp"

#include "support/golden_attention.hpp"

using namespace ejk;

TEST_CASE("the plain form of attention gives the golden results") {
  int cases = 0;
  for (const golden::Case& c : golden::load("attention")) {
    CAPTURE(c.name);
    const AttentionOptions options = golden::attention_options(c);
    const auto compute = [&] {
      return attn::reference_attention(c.in.at("q").view(), c.in.at("k").view(), c.in.at("v").view(),
                                       options);
    };
    if (c.is_error) {
      CHECK_THROWS_AS(compute(), Error);
      continue;
    }
    ++cases;
    const Attention got = compute();
    CHECK(plain::far_from(plain::doubles(got.out.view()), golden::values_of(c.out, "out"), 1e-12, 1e-12) ==
          "");
    CHECK(plain::far_from(plain::doubles(got.lse.view()), golden::values_of(c.out, "lse"), 1e-12, 1e-12) ==
          "");
  }
  CHECK(cases > 30);
}

TEST_CASE("the plain form of attention's gradient gives the golden results") {
  int cases = 0;
  for (const golden::Case& c : golden::load("attention_grad")) {
    CAPTURE(c.name);
    const AttentionOptions options = golden::attention_options(c);
    const auto compute = [&] {
      return attn::reference_attention_grad(c.in.at("q").view(), c.in.at("k").view(), c.in.at("v").view(),
                                            c.in.at("dout").view(), options);
    };
    if (c.is_error) {
      CHECK_THROWS_AS(compute(), Error);
      continue;
    }
    ++cases;
    const AttentionGradients got = compute();
    for (const auto& result :
         {std::pair<const char*, const Array*>{"dq", &got.dq}, {"dk", &got.dk}, {"dv", &got.dv}}) {
      const char* const name = result.first;
      CAPTURE(name);
      CHECK(plain::far_from(plain::doubles(result.second->view()), golden::values_of(c.out, name), 1e-12,
                            1e-11) == "");
    }
  }
  CHECK(cases > 30);
}
