// Passes of the kernels under a variation against the reference under the same variation.
#include "verdict/attention/saved.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "attention/plan.hpp"
#include "support/arrays.hpp"

using namespace ejk;
using attn::Variation;

namespace {

struct Problem {
  Array q, k, v, dout, bias;
  AttentionOptions options;

  AttentionArrays arrays() const { return {q.view(), k.view(), v.view(), options.bias, dout.view()}; }
};

Problem made(std::uint64_t seed, AttentionLayout layout) {
  std::mt19937_64 engine(seed);
  const bool packed = layout == AttentionLayout::thd;
  const auto shape = [&](std::int64_t heads, std::int64_t size) {
    return packed ? Shape{25, heads, size} : Shape{2, 25, heads, size};
  };
  Problem p{plain::random(DType::float32, shape(4, 8), engine),
            plain::random(DType::float32, shape(2, 8), engine),
            plain::random(DType::float32, shape(2, 6), engine),
            plain::random(DType::float32, shape(4, 6), engine),
            plain::random(DType::float32, {2, 4, 25, 25}, engine),
            {}};
  p.options.layout = layout;
  return p;
}

// Whether both agree; nothing where the kernels do not compute it.
std::optional<bool> agree(const Problem& p, const Variation& variation) {
  const attn::Plan plan(types_of(p.arrays()), p.options);
  const attn::CheckedArguments setup = attn::bound(plan.setup, plan.types, p.arrays());
  const auto got = attn::saved_by_kernels(setup, plan.blocks(), variation, p.dout.view());
  if (!got) return std::nullopt;
  const auto right = attn::Reference(setup, plan.blocks(), variation).saved(p.dout.view());
  const auto near = [](const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t n = 0; n < a.size(); ++n)
      if (a[n] != b[n] && !(std::abs(a[n] - b[n]) < 1e-4 * (1 + std::abs(b[n])))) return false;
    return true;
  };
  return near(got->lse, right.lse) && near(got->delta, right.delta);
}

}  // namespace

TEST_CASE("lse and delta of varied attention are those of the plain form, in all layouts") {
  for (const AttentionLayout layout : {AttentionLayout::bshd, AttentionLayout::thd})
    for (const bool masked : {false, true}) {
      Problem p = made(91, layout);
      const bool packed = layout == AttentionLayout::thd;
      if (packed) p.options.cu_seqlens_q = IntegerArray(std::vector<std::int64_t>{0, 11, 11, 25});
      if (masked)
        p.options.masks.push_back(head_masks({MaskExpression::parse("causal")}, Polarity::keep, {}));
      Variation v;
      CHECK(agree(p, v) == true);
      v.scale = 3;
      CHECK(agree(p, v) == true);
      // Of each problem, whatever its lengths.
      std::vector<std::optional<Mask>> lists;
      for (const std::int64_t length : {11, 14, 25}) lists.emplace_back(local_mask(length, length, 2, 1));
      v.mask = [&](const attn::Problem& problem) -> const Mask* {
        return problem.q_length == 11   ? &*lists[0]
               : problem.q_length == 14 ? &*lists[1]
               : problem.q_length == 25 ? &*lists[2]
                                        : nullptr;
      };
      CHECK(agree(p, v) == true);
      v.mask = [](const attn::Problem&) { return nullptr; };
      CHECK(agree(p, v) == true);
      if (!packed) continue;
      v.one_sequence = true;
      CHECK(agree(p, v) == true);
    }
}

TEST_CASE("the kernels compute some variations of the bias and the soft cap, and leave the others") {
  Problem p = made(92, AttentionLayout::bshd);
  p.options.bias = p.bias.view();
  p.options.softcap = 1.5;
  Variation v;
  CHECK(agree(p, v) == true);
  v.bias = 0;
  CHECK(agree(p, v) == true);
  v.cap = Variation::Cap::none;
  CHECK(agree(p, v) == true);
  v.bias = 2;
  CHECK_FALSE(agree(p, v));
  v = {};
  v.interleaved = true;
  CHECK_FALSE(agree(p, v));
  v = {};
  v.cap = Variation::Cap::after_bias;
  CHECK(agree(p, v) == true);
  const std::vector<float> numbers{0.5F, -1, 2, 0.25F};
  p.options.sinks = p.options.alibi = make_source(Array::from<float>({4}, numbers));
  CHECK(agree(p, v) == true);
  v.sinks = 4, v.sink_scale = 0.5;
  CHECK(agree(p, v) == true);
  v.alibi = -1, v.alibi_form = AlibiForm::signed_distance;
  CHECK(agree(p, v) == true);
  v.sinks = 0;
  CHECK(agree(p, v) == true);
  v.alibi_is_shifted = false;
  CHECK_FALSE(agree(p, v));
  v = {};
  v.weights = verify::kRoundings[0];
  CHECK_FALSE(agree(p, v));
}

TEST_CASE(
    "gradients of variations are those of the reference, with lse and delta of their own and of others") {
  const auto is_near = [](const Array& got, const std::vector<double>& right, double factor = 1) {
    const std::vector<double> values = plain::doubles(got.view());
    REQUIRE(values.size() == right.size());
    for (std::size_t n = 0; n < right.size(); ++n)
      if (!(std::abs(factor * values[n] - right[n]) < 1e-3 * (1 + std::abs(right[n])))) return false;
    return true;
  };
  std::vector<Variation> variations(6);
  variations[1].scale = 3;
  variations[2].mask = [](const attn::Problem&) { return nullptr; };
  variations[3].delta = 2;
  variations[4].lse = 0.5;
  variations[5].scale_of_gradient = 4;
  for (const AttentionLayout layout : {AttentionLayout::bshd, AttentionLayout::thd})
    for (const Variation& v : variations)
      for (const bool is_given : {false, true}) {
        Problem p = made(93, layout);
        if (layout == AttentionLayout::thd)
          p.options.cu_seqlens_q = IntegerArray(std::vector<std::int64_t>{0, 11, 11, 25});
        p.options.masks.push_back(
            head_masks({MaskExpression::parse("causal(-1) & local(6, 0)")}, Polarity::keep, {}));
        CAPTURE(is_given);
        const attn::Plan plan(types_of(p.arrays()), p.options);
        const attn::CheckedArguments setup = attn::bound(plan.setup, plan.types, p.arrays());
        const ArrayView dout = p.dout.view();
        const attn::Reference right(setup, plan.blocks()), varied(setup, plan.blocks(), v);
        const attn::Reference::Saved saved = (is_given ? right : varied).saved(dout);
        const auto got = attn::gradients_by_kernels(setup, plan.blocks(), v, [&] { return &saved; }, dout,
                                                    {DType::bfloat16});
        REQUIRE(got);
        const Array &got_dq = got->results[0], &got_dk = got->results[1], &got_dv = got->results[2];
        CHECK(got->factor == v.scale_of_gradient);
        const attn::Reference::Backward expected = varied.backward(dout, saved);
        CHECK(is_near(got_dq, plain::doubles(expected.dq.view()), got->factor));
        CHECK(is_near(got_dk, plain::doubles(expected.dk.view()), got->factor));
        CHECK(is_near(got_dv, plain::doubles(expected.dv.view())));
        if (v.lse == 1) CHECK(is_near(got->weights, plain::doubles(expected.weights.view())));
        // What 16 bits may change them by does not depend on who saved lse and delta.
        if (v.delta != 1 || v.lse != 1 || v.scale != 1 || v.mask) continue;
        const auto rounding = attn::rounding_of_weights(setup, plan.blocks(), {DType::bfloat16}, dout);
        for (std::size_t n = 0; n < 3; ++n)
          CHECK(is_near(got->rounding.terms[n], plain::doubles(rounding.terms[n].view())));
      }
}
