// The plain form: golden cases of both directions, and loops written out here.

#include "support/attention_loops.hpp"
#include "support/golden_attention.hpp"
#include "support/random_attention.hpp"
#include "support/reference_attention.hpp"

using namespace ejk;

TEST_CASE("the plain form of attention gives the golden results") {
  int cases = 0;
  for (const golden::Case& c : golden::load("attention")) {
    CAPTURE(c.name);
    const AttentionOptions options = golden::attention_options(c);
    const auto compute = [&] {
      return plain::reference_attention(c.in.at("q").view(), c.in.at("k").view(), c.in.at("v").view(),
                                        options);
    };
    if (c.is_error) {
      CHECK_THROWS_AS(compute(), Error);
      continue;
    }
    ++cases;
    const auto got = compute();
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
      return plain::reference_attention_grad(c.in.at("q").view(), c.in.at("k").view(), c.in.at("v").view(),
                                             c.in.at("dout").view(), options);
    };
    if (c.is_error) {
      CHECK_THROWS_AS(compute(), Error);
      continue;
    }
    ++cases;
    const auto got = compute();
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

TEST_CASE("the plain form of attention and its gradient is that of loops over all pairs") {
  plain::Random random(1);
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    const AttentionLayout layout = r->options.layout;
    plain::Expected expected = plain::by_loops(*r);
    const auto got = plain::reference_attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    const auto gradients =
        plain::reference_attention_grad(r->q.view(), r->k.view(), r->v.view(), r->dout.view(), r->options);
    CHECK(plain::far_from(plain::doubles(got.lse.view()), expected.lse.values, 1e-12, 1e-12) == "");
    for (const auto& result :
         {std::tuple<const char*, const Array*, const plain::Heads*>{"out", &got.out, &expected.out},
          {"dq", &gradients.dq, &expected.dq},
          {"dk", &gradients.dk, &expected.dk},
          {"dv", &gradients.dv, &expected.dv}}) {
      const char* const name = std::get<0>(result);
      CAPTURE(name);
      CHECK(plain::far_from(plain::heads_of(*std::get<1>(result), layout).values, std::get<2>(result)->values,
                            1e-12, 1e-12) == "");
    }
    if (!r->options.bias) continue;
    plain::Heads sums = plain::zeros(r->bias.shape());
    for (std::int64_t b = 0; b < r->batch; ++b)
      for (std::int64_t h = 0; h < r->heads; ++h)
        for (std::int64_t i = 0; i < r->q_length; ++i)
          for (std::int64_t j = 0; j < r->kv_length; ++j) {
            const auto own = [&](std::int64_t at, std::size_t axis) {
              return sums.shape[axis] == 1 ? 0 : at;
            };
            sums.at(own(b, 0), own(h, 1), own(i, 2), own(j, 3)) += expected.ds.at(b, h, i, j);
          }
    CHECK(plain::far_from(plain::doubles(gradients.dbias.view()), sums.values, 1e-11, 1e-11) == "");
  }
}
