// Gradients of attention: golden cases, random problems against the reference and central differences.
#include <limits>
#include <numeric>
#include <stdexcept>

#include "support/failure.hpp"
#include "support/golden_attention.hpp"
#include "support/random_attention.hpp"
#include "support/reference_attention.hpp"
#include "support/threads.hpp"

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
      AttentionOptions exactly = options;
      exactly.dtype = golden::arithmetic_of(c);
      const Attention forward = attention(q, k, v, exactly);
      const AttentionGradients again =
          attention_grad(q, k, v, dout, options, AttentionSaved{forward.out.view(), forward.lse.view()});
      CHECK(plain::same_bytes(again.dq, got.dq));
      CHECK(plain::same_bytes(again.dk, got.dk));
      CHECK(plain::same_bytes(again.dv, got.dv));
      if (c.name == "large_logits") continue;  // an lse that did not round as the scores do is no match
      const AttentionSaved saved{c.out.at("out").view(), c.out.at("lse").view()};
      const AttentionGradients exact = attention_grad(q, k, v, dout, options, saved);
      CHECK(golden::gradient_difference(c, exact.dq, exact.dk, exact.dv) == "");
    }
  }
  CHECK(cases > 60);
}

namespace {

// Empty when gradients are as the plain form has them.
std::string difference(const plain::RandomAttention& r, const AttentionGradients& got, double slack = 1) {
  const auto expected =
      plain::reference_attention_grad(r.q.view(), r.k.view(), r.v.view(), r.dout.view(), r.options);
  const auto floors = plain::floors(r.scale, r.v.shape().back(), r.values(r.q), r.values(r.k), r.values(r.v),
                                    r.values(r.dout));
  const auto check = [&](const char* name, const Array& array, const Array& plain_form, double floor) {
    const std::string far =
        plain::gradient_far_from(array, plain::doubles(plain_form.view()), slack * floor, r.arithmetic);
    return far.empty() ? far : fmt::format("{}: {} ", name, far);
  };
  std::string all = check("dq", got.dq, expected.dq, floors.dq) +
                    check("dk", got.dk, expected.dk, floors.dk) + check("dv", got.dv, expected.dv, floors.dv);
  if (got.dsinks.has_value() != (r.options.sinks != nullptr)) return all + "dsinks";
  if (got.dsinks) {
    const DType type = got.dsinks->dtype() == DType::float64 ? r.arithmetic : DType::float32;
    const double rows = static_cast<double>(r.batch * r.q_length);
    const std::string far = plain::gradient_far_from(*got.dsinks, plain::doubles(expected.dsinks.view()),
                                                     slack * floors.dbias * std::max(1.0, rows), type);
    if (!far.empty()) all += "dsinks: " + far;
  }
  if (got.dbias.has_value() != r.options.bias.has_value()) return all + "dbias";
  if (got.dbias) {
    const DType type = got.dbias->dtype() == DType::float64 ? r.arithmetic : DType::float32;  // rounded to
    const std::string far = plain::gradient_far_from(*got.dbias, plain::doubles(expected.dbias.view()),
                                                     slack * floors.dbias, type);
    if (!far.empty()) all += "dbias: " + far;
  }
  return all;
}

}  // namespace

TEST_CASE("random gradients equal their plain form in float64") {
  plain::Random random(11);
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    CHECK(difference(*r, attention_grad(r->q.view(), r->k.view(), r->v.view(), r->dout.view(), r->options)) ==
          "");
  }
}

TEST_CASE("gradients are those of central differences") {
  plain::Random random(12);
  int compared = 0;
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::float64});
    const auto value = [&] {  // Σ dout · out
      const auto out =
          plain::doubles(attention(r->q.view(), r->k.view(), r->v.view(), r->options).out.view());
      const auto dout = plain::doubles(r->dout.view());
      double sum = 0;
      for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
      return sum;
    };
    const AttentionGradients g =
        attention_grad(r->q.view(), r->k.view(), r->v.view(), r->dout.view(), r->options);
    const auto check = [&](Array& input, const Array& gradient) {
      for (std::int64_t i = 0; i < input.size(); i += 1 + input.size() / 5) {
        double& x = input.elements<double>()[static_cast<std::size_t>(i)];
        const double before = x, step = 1e-5;
        x = before + step;
        const double above = value();
        x = before - step;
        const double below = value();
        x = before;
        const double expected = (above - below) / (2 * step);
        const double got = gradient.elements<double>()[static_cast<std::size_t>(i)];
        CHECK(std::abs(got - expected) <= 1e-6 * (1 + std::abs(expected)));
        ++compared;
      }
    };
    check(r->q, g.dq);
    check(r->k, g.dk);
    check(r->v, g.dv);
    if (r->options.bias) check(r->bias, *g.dbias);
  }
  CHECK(compared > 200);
}

TEST_CASE("the gradient of a bias is dS, summed over each of the axes that it is broadcast over") {
  std::mt19937_64 engine(19);
  const std::int64_t queries = 530, keys = 270;  // several blocks
  for (int axes = 0; axes < 16; ++axes) {
    CAPTURE(axes);
    const DType dtype = plain::kFloats[static_cast<std::size_t>(axes) % 4];
    const Array q = plain::random(dtype, {2, queries, 2, 4}, engine),
                k = plain::random(dtype, {2, keys, 1, 4}, engine),
                v = plain::random(dtype, {2, keys, 1, 3}, engine),
                dout = plain::random(dtype, {2, queries, 2, 3}, engine);
    Shape shape{2, 2, queries, keys};
    for (std::size_t d = 0; d < 4; ++d)
      if ((axes >> d & 1) == 0) shape[d] = 1;
    while (!shape.empty() && shape.front() == 1) shape.erase(shape.begin());
    const Array bias = plain::random(DType::float32, shape, engine);
    AttentionOptions options;
    options.bias = bias.view();
    if (axes % 3 == 1) options.softcap = 0.7;
    if (axes % 2 == 1) options.masks.push_back(head_masks({causal_mask(queries, keys)}));
    const AttentionGradients one = [&] {
      const Threads threads(1);
      return attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
    }();
    REQUIRE(one.dbias);
    CHECK(one.dbias->shape() == shape);
    CHECK(one.dbias->dtype() == DType::float32);
    const std::vector<double> expected = plain::doubles(
        plain::reference_attention_grad(q.view(), k.view(), v.view(), dout.view(), options).dbias.view());
    double most = 0;
    for (const double x : expected) most = std::max(most, std::abs(x));
    CHECK(plain::far_from(plain::doubles(one.dbias->view()), expected, 1e-5 * (1 + most), 0) == "");
    for (const int count : {2, 7}) {
      const Threads threads(count);
      const AttentionGradients other = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
      CHECK(plain::same_bytes(*one.dbias, *other.dbias));
    }
    // A bias that is seen in full is summed over nothing.
    ArrayView seen = bias.view();
    seen.shape.insert(seen.shape.begin(), 4 - seen.shape.size(), 1);
    seen.strides.insert(seen.strides.begin(), 4 - seen.strides.size(), 0);
    for (std::size_t d = 0; d < 4; ++d)
      if (seen.shape[d] == 1) seen.strides[d] = 0;
    const Shape whole{2, 2, queries, keys};
    seen.shape = whole;
    options.bias = seen;
    const AttentionGradients in_full = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
    CHECK(in_full.dbias->shape() == whole);
    CHECK(plain::same_bytes(in_full.dq, one.dq));
  }
}

TEST_CASE(
    "hidden pairs, and queries without a key, add nothing to the gradient of a bias, NaN though they hold") {
  std::mt19937_64 engine(20);
  const Array q = plain::random(DType::float32, {1, 4, 1, 4}, engine),
              dout = plain::random(DType::float32, {1, 4, 1, 4}, engine);
  Array k = plain::random(DType::float32, {1, 6, 1, 4}, engine),
        v = plain::random(DType::float32, {1, 6, 1, 4}, engine);
  for (Array* array : {&k, &v})
    for (std::size_t d = 0; d < 4; ++d)
      array->elements<float>()[5 * 4 + d] = std::numeric_limits<float>::quiet_NaN();
  // The mask hides the last key from all; the bias the two before from query 2, and all keys from query 3.
  for (std::size_t n = 3 * 4; n < 5 * 4; ++n)
    v.elements<float>()[n] = std::numeric_limits<float>::quiet_NaN();
  std::vector<double> hides(24, 0);
  hides[2 * 6 + 3] = -plain::kInfinity;
  for (std::size_t j = 0; j < 6; ++j) hides[3 * 6 + j] = -plain::kInfinity;
  const Array bias = plain::array_of(DType::float32, {4, 6}, hides);
  AttentionOptions options;
  options.bias = bias.view();
  options.masks.push_back(head_masks({causal_mask(4, 6, 1)}));
  Array clean_k = Array::copy_of(k.view()), clean_v = Array::copy_of(v.view());
  for (Array* array : {&clean_k, &clean_v})
    for (float& x : array->elements<float>())
      if (std::isnan(x)) x = 0;
  const AttentionGradients got = attention_grad(q.view(), k.view(), v.view(), dout.view(), options),
                           right =
                               attention_grad(q.view(), clean_k.view(), clean_v.view(), dout.view(), options);
  CHECK(plain::same_bytes(*got.dbias, *right.dbias));
  for (std::size_t j = 0; j < 6; ++j) CHECK(got.dbias->elements<float>()[3 * 6 + j] == 0);
  CHECK(got.dbias->elements<float>()[2 * 6 + 3] == 0);
}

TEST_CASE("gradients are of their input's dtype or the one asked for, rounded once") {
  std::mt19937_64 engine(14);
  const Array q = plain::random(DType::bfloat16, {1, 9, 1, 4}, engine),
              k = plain::random(DType::float16, {1, 9, 1, 4}, engine),
              v = plain::random(DType::float32, {1, 9, 1, 4}, engine);
  const AttentionGradients own = attention_grad(q.view(), k.view(), v.view(), v.view());
  CHECK(own.dq.dtype() == DType::bfloat16);
  CHECK(own.dk.dtype() == DType::float16);
  CHECK(own.dv.dtype() == DType::float32);
  AttentionOptions options;
  options.dtype = DType::float32;
  const AttentionGradients wide = attention_grad(q.view(), k.view(), v.view(), v.view(), options);
  CHECK(plain::same_bytes(own.dq, identity_dtype_convert_backward(wide.dq.view(), DType::bfloat16)));
  CHECK(plain::same_bytes(own.dk, identity_dtype_convert_backward(wide.dk.view(), DType::float16)));
  options.dtype = DType::int32;
  CHECK_THROWS_AS(attention_grad(q.view(), k.view(), v.view(), v.view(), options), Error);
  CHECK_THROWS_AS(attention(q.view(), k.view(), v.view(), options), Error);

  // With both they are rounded twice.
  options.dtype = DType::float16;
  options.grad_dtype = DType::float32;
  const AttentionGradients narrow = attention_grad(q.view(), k.view(), v.view(), v.view(), options);
  const Array once = identity_dtype_convert_backward(wide.dv.view(), DType::float16);
  CHECK(narrow.dv.dtype() == DType::float32);
  CHECK(plain::same_bytes(narrow.dv, identity_dtype_convert_backward(once.view(), DType::float32)));
  options.dtype.reset();
  CHECK(plain::same_bytes(attention_grad(q.view(), k.view(), v.view(), v.view(), options).dq, wide.dq));
}

TEST_CASE("what is thrown while others wait for their turn comes out") {
  const Threads threads(4);
  const Array q(DType::float32, {1, 600, 2, 4}), k(DType::float32, {1, 1500, 2, 4});
  for (int n = 0; n < 20; ++n) {
    AttentionOptions options;
    options.block = BlockShape{16, 16};
    options.progress = [&, calls = 0](std::int64_t, std::int64_t) mutable {
      if (++calls > 5 * n) throw std::runtime_error("enough");
    };
    CHECK_THROWS_WITH(attention_grad(q.view(), k.view(), k.view(), q.view(), options), "enough");
  }
}

TEST_CASE("many packed sequences take no longer than their tokens") {
  const std::int64_t sequences = 20000;
  const Array q = plain::filled(DType::float32, {sequences, 1, 2}, 1);
  std::vector<std::int64_t> cu(static_cast<std::size_t>(sequences + 1));
  std::iota(cu.begin(), cu.end(), 0);
  AttentionOptions options;
  options.layout = AttentionLayout::thd;
  options.cu_seqlens_q = plain::integers(cu, {sequences + 1}, "cu");
  // One key each: its weight is 1, whatever its score.
  const AttentionGradients got = attention_grad(q.view(), q.view(), q.view(), q.view(), options);
  CHECK(plain::same_bytes(got.dv, q));
  for (const double x : plain::doubles(got.dq.view())) CHECK(x == 0);
}

TEST_CASE("a score of -inf counts as a hidden pair") {
  const double inf = std::numeric_limits<double>::infinity();
  // That of key 1, for every query; its value is an infinity.
  const Array q = plain::filled(DType::float32, {1, 3, 1, 1}, 1);
  const Array k = plain::array_of(DType::float32, {1, 3, 1, 1}, {1, -inf, 1});
  const Array v = plain::array_of(DType::float32, {1, 3, 1, 1}, {2, inf, 4});
  const Attention got = attention(q.view(), k.view(), v.view());
  for (const double x : plain::doubles(got.out.view())) CHECK(x == doctest::Approx(3));
  const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), q.view());
  for (const double x : plain::doubles(g.dv.view())) CHECK(std::isfinite(x));
  for (const double x : plain::doubles(g.dq.view())) CHECK(std::isfinite(x));
}
