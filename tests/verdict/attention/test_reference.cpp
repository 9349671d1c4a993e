// The reference is the definition, written as loops over all pairs.

#include "support/attention_loops.hpp"
#include "support/random_attention.hpp"
#include "support/reference_attention.hpp"

using namespace ejk;

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
    if (r->options.sinks)
      CHECK(plain::far_from(plain::doubles(gradients.dsinks.view()), expected.dsinks, 1e-11, 1e-11) == "");
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
