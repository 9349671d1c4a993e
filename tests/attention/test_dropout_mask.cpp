// Attention with dropout by a given mask: plain loops, bounds and ranks.
#include <cmath>
#include <utility>

#include "ejk/attention_check.hpp"
#include "support/attention_loops.hpp"
#include "support/failure.hpp"
#include "verdict/attention/against.hpp"

using namespace ejk;

namespace dropout_mask {

namespace {

using Row = std::vector<double>;
using Given = std::vector<std::optional<ArrayView>>;

struct Results {
  Array out, lse;
  AttentionGradients gradients;
};
Results results_of(const plain::RandomAttention& r) {
  const ArrayView q = r.q.view(), k = r.k.view(), v = r.v.view();
  Attention made = attention(q, k, v, r.options);
  return {std::move(made.out), std::move(made.lse), attention_grad(q, k, v, r.dout.view(), r.options)};
}

// Those of loops, of the results' types.
struct Expected {
  Array out, lse, dq, dk, dv;

  Expected(const plain::RandomAttention& r, const Results& like) {
    const plain::Expected e = plain::by_loops(r);
    const auto array = [&](const Array& of, const plain::Heads& heads) {
      return plain::array_of(of.dtype(), of.shape(), heads, r.options.layout);
    };
    out = array(like.out, e.out);
    lse = plain::array_of(like.lse.dtype(), like.lse.shape(), e.lse.values);
    dq = array(like.gradients.dq, e.dq);
    dk = array(like.gradients.dk, e.dk);
    dv = array(like.gradients.dv, e.dv);
  }
};

AttentionArrays arrays_of(const plain::RandomAttention& r, bool gradients) {
  AttentionArrays arrays{r.q.view(), r.k.view(), r.v.view(), r.options.bias};
  if (gradients) arrays.dout = r.dout.view();
  arrays.dropout = r.options.dropout;
  return arrays;
}

}  // namespace

TEST_CASE("results with dropout are those of loops, and within the bounds of every type") {
  plain::Random random(120);
  int compared = 0;
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    if (!plain::add_dropout(*r, random)) continue;
    ++compared;
    const double factor = 1 / r->options.keep_probability;
    const Results got = results_of(*r);
    plain::Expected expected = plain::by_loops(*r);
    Row values = r->values(r->v);
    for (double& value : values) value *= factor;
    const auto heads = [&](const Array& array) { return plain::heads_of(array, r->options.layout).values; };
    const auto floors = plain::floors(r->scale, r->v.shape().back(), r->values(r->q), r->values(r->k), values,
                                      r->values(r->dout));
    const auto check = [&](const char* name, const Array& array, const Row& right, double floor) {
      CAPTURE(name);
      const double least = array.dtype() == DType::float16 ? 0x1p-25 : 0;
      CHECK(plain::far_from(heads(array), right,
                            (1e-4 * plain::most_of(right) + 2 * floor) * plain::finer(r->arithmetic) + least,
                            plain::rounding_of(array.dtype())) == "");
    };
    CHECK(plain::far_from(heads(got.out), expected.out.values,
                          4e-6 * plain::finer(r->arithmetic) * plain::most_of(values) + 0x1p-25,
                          2e-5 + plain::rounding_of(got.out.dtype())) == "");
    CHECK(plain::lse_far_from(got.lse, expected.lse.values, r->arithmetic) == "");
    check("dq", got.gradients.dq, expected.dq.values, floors.dq);
    check("dk", got.gradients.dk, expected.dk.values, floors.dk);
    check("dv", got.gradients.dv, expected.dv.values, factor * floors.dv);

    // --check, and the comparison of the loops' results.
    const ArrayView q = r->q.view(), k = r->k.view(), v = r->v.view(), dout = r->dout.view();
    const AttentionGradients& g = got.gradients;
    const auto view_of = [](const std::optional<Array>& array) {
      return array ? std::optional(array->view()) : std::nullopt;
    };
    CHECK(check_attention(q, k, v, r->options, got.out.view(), got.lse.view()).passed());
    CHECK(check_attention_grad(q, k, v, dout, r->options, g.dq.view(), g.dk.view(), g.dv.view(),
                               view_of(g.dbias), view_of(g.dsinks))
              .passed());
    const Expected right(*r, got);
    std::vector<ArrayView> own{g.dq.view(), g.dk.view(), g.dv.view()};
    Given given{right.dq.view(), right.dk.view(), right.dv.view()};
    if (g.dbias) own.push_back(g.dbias->view()), given.emplace_back();
    if (g.dsinks) own.push_back(g.dsinks->view()), given.emplace_back();
    const attn::Plan forward(types_of(arrays_of(*r, false)), r->options),
        backward(types_of(arrays_of(*r, true)), r->options);
    for (const double effort : {attn::kCheckEffort, 0.5}) {
      CAPTURE(effort);
      CHECK(attn::compare(forward, arrays_of(*r, false), {got.out.view(), got.lse.view()},
                          {right.out.view(), right.lse.view()}, {DType::float32}, Explain::no, effort)
                .agrees());
      CHECK(attn::compare(backward, arrays_of(*r, true), own, given, {DType::float32}, Explain::no, effort)
                .agrees());
    }
    // What a forward pass has left.
    AttentionOptions exactly = r->options;
    exactly.dtype = r->arithmetic;
    const Attention saved = attention(q, k, v, exactly);
    const AttentionGradients again =
        attention_grad(q, k, v, dout, r->options, AttentionSaved{saved.out.view(), saved.lse.view()});
    CHECK(plain::same_bytes(again.dq, g.dq));
    CHECK(plain::same_bytes(again.dk, g.dk));
    CHECK(plain::same_bytes(again.dv, g.dv));
  }
  CHECK(compared > 150);
}

TEST_CASE("dropout over several tiles, of few and many queries, is that of the reference") {
  plain::Random random(121);
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t queries : {3, 12, 300}) {
      CAPTURE(name_of(type));
      CAPTURE(queries);
      const auto made = [&](std::int64_t length, std::int64_t heads) {
        return plain::random(type, {1, length, heads, 64}, random);
      };
      const Array q = made(queries, 4), k = made(700, 2), v = made(700, 2), dout = made(queries, 4);
      Row bits(static_cast<std::size_t>(4 * queries * 700));
      for (double& bit : bits) bit = plain::between(random, 0, 9) < 8;
      const Array kept = plain::array_of(DType::boolean, {1, 4, queries, 700}, bits);
      AttentionOptions options;
      options.dropout = kept.view();
      options.keep_probability = 0.8;
      options.masks.push_back(head_masks({causal_mask(queries, 700, 700 - queries)}));
      const Attention a = attention(q.view(), k.view(), v.view(), options);
      CHECK(check_attention(q.view(), k.view(), v.view(), options, a.out.view(), a.lse.view()).passed());
      const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
      CHECK(check_attention_grad(q.view(), k.view(), v.view(), dout.view(), options, g.dq.view(), g.dk.view(),
                                 g.dv.view())
                .passed());
      // Not those without dropout, nor with weights that are not divided.
      AttentionOptions other = options;
      other.keep_probability = 1;
      CHECK_FALSE(check_attention(q.view(), k.view(), v.view(), other, a.out.view(), a.lse.view()).passed());
      CHECK_FALSE(check_attention_grad(q.view(), k.view(), v.view(), dout.view(), other, g.dq.view(),
                                       g.dk.view(), g.dv.view())
                      .passed());
    }
}

TEST_CASE("values of dropped pairs have no influence, NaN included") {
  plain::Random random(122);
  for (const std::int64_t queries : {5, 60}) {  // of the decode path, and of tiles
    const auto made = [&](std::int64_t length) {
      return plain::random(DType::float32, {1, length, 2, 8}, random);
    };
    const Array q = made(queries), k = made(70), dout = made(queries);
    Array v = made(70), clean = Array::copy_of(v.view());
    Row bits(static_cast<std::size_t>(2 * queries * 70), 1);
    for (std::int64_t row = 0; row < 2 * queries; ++row) bits[static_cast<std::size_t>(row * 70 + 33)] = 0;
    const Array kept = plain::array_of(DType::boolean, {1, 2, queries, 70}, bits);
    for (std::size_t d = 0; d < 16; ++d)
      v.elements<float>()[33 * 16 + d] = d % 2 == 0 ? std::nanf("") : HUGE_VALF,
                                    clean.elements<float>()[33 * 16 + d] = 0;
    AttentionOptions options;
    options.dropout = kept.view();
    options.keep_probability = 0.5;
    const Attention a = attention(q.view(), k.view(), v.view(), options),
                    b = attention(q.view(), k.view(), clean.view(), options);
    CHECK(plain::same_bytes(a.out, b.out));
    const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options),
                             h = attention_grad(q.view(), k.view(), clean.view(), dout.view(), options);
    CHECK(plain::same_bytes(g.dq, h.dq));
    CHECK(plain::same_bytes(g.dk, h.dk));
    CHECK(plain::same_bytes(g.dv, h.dv));
    CHECK(check_attention_grad(q.view(), k.view(), v.view(), dout.view(), options, g.dq.view(), g.dk.view(),
                               g.dv.view())
              .passed());
  }
}

TEST_CASE("dropout of another type, shape or probability is an error about it") {
  std::mt19937_64 engine(125);
  const Array x = plain::random(DType::float32, {1, 6, 2, 4}, engine);
  const Array kept = plain::filled(DType::boolean, {1, 2, 6, 6}, 1);
  const auto failure = [&](
                           const ArrayView& dropout, double probability,
                           const std::function<void(AttentionOptions&)>& change = [](AttentionOptions&) {}) {
    AttentionOptions options;
    options.dropout = dropout;
    options.keep_probability = probability;
    change(options);
    return plain::failure([&] { attention(x.view(), x.view(), x.view(), options); });
  };
  const Array numbers = plain::filled(DType::float32, {1, 2, 6, 6}, 1),
              narrow = plain::filled(DType::boolean, {2, 6, 5}, 1);
  CHECK(failure(kept.view(), 1) == "no error");
  CHECK(failure(numbers.view(), 0.5) == "dropout must be bool, True for a pair that is kept, not float32");
  CHECK(failure(narrow.view(), 0.5) ==
        "dropout (2, 6, 5) does not broadcast to (batch, heads, queries, keys) = (1, 2, 6, 6)");
  for (const double wrong : {0.0, -0.5, 1.5, std::nan("")})
    CHECK(failure(kept.view(), wrong).starts_with("the probability that dropout keeps a pair is above 0"));
  CHECK(failure(kept.view(), 1e-42).find("beyond the normal numbers of float32") != std::string::npos);
  CHECK(failure(kept.view(), 0.5, [](AttentionOptions& o) {
          o.conventions.masked_rows = MaskedRows::mean;
        }) == "dropout is not defined for queries without a key that get the mean of all values");
  CHECK(failure(kept.view(), 0.5, [](AttentionOptions& o) { o.dropout.reset(); }) ==
        "a probability that dropout keeps a pair is given, and no dropout");
}

}  // namespace dropout_mask
