// The plain form: golden cases of both directions, and loops written out here.
#include "attention/reference.hpp"

#include "support/golden_attention.hpp"
#include "support/random_attention.hpp"

using namespace ejk;

namespace {

// Elements as (batch, heads, positions, elements), packed tokens as one batch entry.
struct Heads {
  Shape shape;
  std::vector<double> values;

  double& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    return values[static_cast<std::size_t>(((b * shape[1] + h) * shape[2] + i) * shape[3] + d)];
  }
};

Heads zeros(Shape shape) {
  const auto n = static_cast<std::size_t>(element_count(shape));
  return {std::move(shape), std::vector<double>(n)};
}

Heads heads_of(const Array& array, AttentionLayout layout) {
  const auto values = plain::doubles(array.view());
  Shape s = array.shape();
  if (layout == AttentionLayout::thd) s.insert(s.begin(), 1);
  if (layout == AttentionLayout::bhsd) return {s, values};
  Heads out = zeros({s[0], s[2], s[1], s[3]});
  std::size_t at = 0;
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t i = 0; i < s[1]; ++i)
      for (std::int64_t h = 0; h < s[2]; ++h)
        for (std::int64_t d = 0; d < s[3]; ++d) out.at(b, h, i, d) = values[at++];
  return out;
}

struct Expected {
  Heads out, lse, dq, dk, dv;  // lse: (B, H, Q, 1)
  Heads ds = {};               // (B, H, Q, K): of the bias
};

// Attention and its gradient by loops over all pairs, from the definition.
Expected by_loops(const plain::RandomAttention& c) {
  const AttentionLayout layout = c.options.layout;
  Heads q = heads_of(c.q, layout), k = heads_of(c.k, layout), v = heads_of(c.v, layout),
        dout = heads_of(c.dout, layout);
  const std::int64_t group = k.shape[1] == 0 ? 1 : c.heads / k.shape[1], size = q.shape[3],
                     values = v.shape[3];
  Expected r{zeros(dout.shape), zeros({c.batch, c.heads, c.q_length, 1}),
             zeros(q.shape),    zeros(k.shape),
             zeros(v.shape),    zeros({c.batch, c.heads, c.q_length, c.kv_length})};
  std::vector<double> s(static_cast<std::size_t>(c.kv_length)), slope(s.size());
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.q_length; ++i) {
        const std::int64_t g = h / group;
        double most = -plain::kInfinity, sum = 0;
        for (std::int64_t j = 0; j < c.kv_length; ++j) {
          const auto at = static_cast<std::size_t>(j);
          s[at] = -plain::kInfinity;
          if (!c.allowed(b, h, i, j)) continue;
          double x = 0;
          for (std::int64_t d = 0; d < size; ++d) x += q.at(b, h, i, d) * k.at(b, g, j, d);
          x *= c.scale;
          slope[at] = 1;
          if (c.softcap > 0) {
            slope[at] = 1 - std::pow(std::tanh(x / c.softcap), 2);
            x = c.softcap * std::tanh(x / c.softcap);
          }
          if (c.bias_at) x += c.bias_at(b, h, i, j);
          s[at] = x;
          most = std::max(most, x);
        }
        r.lse.at(b, h, i, 0) = -plain::kInfinity;
        if (most == -plain::kInfinity) continue;
        for (const double x : s) sum += std::exp(x - most);
        r.lse.at(b, h, i, 0) = most + std::log(sum);
        double delta = 0;
        for (std::int64_t d = 0; d < values; ++d) {
          double& out = r.out.at(b, h, i, d);
          for (std::int64_t j = 0; j < c.kv_length; ++j)
            out += std::exp(s[static_cast<std::size_t>(j)] - most) / sum * v.at(b, g, j, d);
          delta += out * dout.at(b, h, i, d);
        }
        for (std::int64_t j = 0; j < c.kv_length; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (s[at] == -plain::kInfinity) continue;
          const double p = std::exp(s[at] - most) / sum;
          double dp = 0;
          for (std::int64_t d = 0; d < values; ++d) {
            dp += dout.at(b, h, i, d) * v.at(b, g, j, d);
            r.dv.at(b, g, j, d) += p * dout.at(b, h, i, d);
          }
          r.ds.at(b, h, i, j) = p * (dp - delta);
          const double ds = p * (dp - delta) * slope[at] * c.scale;
          for (std::int64_t d = 0; d < size; ++d) {
            r.dq.at(b, h, i, d) += ds * k.at(b, g, j, d);
            r.dk.at(b, g, j, d) += ds * q.at(b, h, i, d);
          }
        }
      }
  return r;
}

}  // namespace

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

TEST_CASE("the plain form of attention and its gradient is that of loops over all pairs") {
  plain::Random random(1);
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    const AttentionLayout layout = r->options.layout;
    Expected expected = by_loops(*r);
    const Attention got = attn::reference_attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    const AttentionGradients gradients =
        attn::reference_attention_grad(r->q.view(), r->k.view(), r->v.view(), r->dout.view(), r->options);
    CHECK(plain::far_from(plain::doubles(got.lse.view()), expected.lse.values, 1e-12, 1e-12) == "");
    for (const auto& result :
         {std::tuple<const char*, const Array*, const Heads*>{"out", &got.out, &expected.out},
          {"dq", &gradients.dq, &expected.dq},
          {"dk", &gradients.dk, &expected.dk},
          {"dv", &gradients.dv, &expected.dv}}) {
      const char* const name = std::get<0>(result);
      CAPTURE(name);
      CHECK(plain::far_from(heads_of(*std::get<1>(result), layout).values, std::get<2>(result)->values, 1e-12,
                            1e-12) == "");
    }
    REQUIRE(gradients.dbias.has_value() == r->options.bias.has_value());
    if (!gradients.dbias) continue;
    Heads sums = zeros(r->bias.shape());
    for (std::int64_t b = 0; b < r->batch; ++b)
      for (std::int64_t h = 0; h < r->heads; ++h)
        for (std::int64_t i = 0; i < r->q_length; ++i)
          for (std::int64_t j = 0; j < r->kv_length; ++j) {
            const auto own = [&](std::int64_t at, std::size_t axis) {
              return sums.shape[axis] == 1 ? 0 : at;
            };
            sums.at(own(b, 0), own(h, 1), own(i, 2), own(j, 3)) += expected.ds.at(b, h, i, j);
          }
    CHECK(plain::far_from(plain::doubles(gradients.dbias->view()), sums.values, 1e-11, 1e-11) == "");
  }
}
