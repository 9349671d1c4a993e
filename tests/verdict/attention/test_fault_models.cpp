// Known faults of attention and its gradients, planted in plain loops, are named; noise and rounding have no
// explanation.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "ejk/against.hpp"
#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "support/planted_attention.hpp"

using namespace ejk;

namespace {

using plain::Index;
using Loops = plain::PlantedAttention;

bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("told: '", text, "', wanted: '", part, "'");
  return found;
}

HeadMasks mask_of(Mask mask) { return head_masks(std::vector<Mask>{std::move(mask)}); }

double bf16(double x) { return static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(x)))); }

}  // namespace

TEST_CASE("mistakes of scores, heads and caps are named, in several types") {
  for (const auto& types : {std::pair{DType::float32, DType::float32},
                            {DType::bfloat16, DType::bfloat16},
                            {DType::float16, DType::float32}}) {
    const DType type = types.first, result = types.second;
    CAPTURE(name_of(type));
    Loops a;
    a.type = type;
    a.make(71);
    CHECK(a.explanation(a.forward(), result) == "agrees");
    const auto with = [&](auto change) {
      Loops wrong = a;
      change(wrong);
      return a.explanation(wrong.forward(), result);
    };
    CHECK(has(with([&](Loops& w) { w.score = [s = a.scale](double dot, double) { return s * s * dot; }; }),
              "scale: the scale is applied twice"));
    CHECK(has(with([&](Loops& w) {
                w.score = [s = a.scale](double dot, double) { return dot * s * std::log(2.0); };
              }),
              "scale: powers of 2"));
    CHECK(has(with([](Loops& w) { w.kv_head = [](Index h) { return h % 2; }; }),
              "heads: query head h uses key/value head h mod G"));
    const std::string base = with([](Loops& w) {
      w.lse = [](double most, double sum) { return (most + std::log(sum)) / std::log(2.0); };
    });
    CHECK(has(base, "lse_base: lse is a logarithm to base 2"));
    CHECK(has(with([](Loops& w) { w.lse = [](double, double sum) { return std::log(sum); }; }),
              "lse_max: lse lacks the largest score"));
    CHECK(has(with([](Loops& w) { w.lse = [](double most, double sum) { return -most - std::log(sum); }; }),
              "lse_sign"));
    // out and lse wrong for different reasons.
    const std::string two = with([](Loops& w) {
      w.score = [](double dot, double) { return dot; };
      w.lse = [](double most, double sum) { return (most + std::log(sum)) / std::log(2.0); };
    });
    CHECK(has(two, "out: the scale is left out"));
    CHECK(has(two, "lse_base: lse is a logarithm to base 2"));
  }
}

TEST_CASE("mistakes of masks are named") {
  const auto causal = [](Index offset) {
    return [offset](Index, Index, Index i, Index j) { return j <= i + offset; };
  };
  Loops a;
  a.queries = 20;
  a.keys = 27;
  a.options.masks.push_back(mask_of(causal_mask(20, 27, 7)));
  a.make(72);
  a.allowed = causal(7);
  CHECK(a.explanation(a.forward(), DType::float32) == "agrees");
  const auto with = [](const Loops& of, auto allowed) {
    Loops wrong = of;
    wrong.allowed = allowed;
    return of.explanation(wrong.forward(), DType::float32);
  };
  CHECK(has(with(a, causal(8)), "mask: the causal edge is one key too far"));
  CHECK(has(with(a, causal(0)), "mask: queries and keys are aligned at the top left"));
  CHECK(has(with(a, [](Index, Index, Index i, Index j) { return j > i + 7; }), "mask: the mask is inverted"));
  // In one head alone; and in one entry.
  CHECK(has(with(a, [](Index, Index h, Index i, Index j) { return j <= i + 7 + (h == 2); }),
            "one key too far in head 2"));
  CHECK(has(with(a, [](Index b, Index, Index i, Index j) { return j <= i + 7 - (b == 1); }),
            "one key short in batch entry 1"));
  // Different ones in different heads.
  const std::string two =
      with(a, [](Index, Index h, Index i, Index j) { return j <= i + 7 + (h == 2) - (h == 0); });
  CHECK(has(two, "one key too far in head 2"));
  CHECK(has(two, "one key short in head 0"));

  Loops w;
  w.options.masks.push_back(mask_of(local_mask(24, 24, 5, 2)));
  w.make(73);
  const auto window = [](Index left, Index right) {
    return [=](Index, Index, Index i, Index j) { return j >= i - left && j <= i + right; };
  };
  w.allowed = window(5, 2);
  CHECK(w.explanation(w.forward(), DType::float32) == "agrees");
  CHECK(has(with(w, window(6, 2)), "one key longer at the left"));
  CHECK(has(with(w, window(4, 2)), "one key shorter at the left"));
  CHECK(has(with(w, window(5, 3)), "one key longer at the right"));
  CHECK(has(with(w, window(2, 5)), "the window's sides are exchanged"));
  CHECK(has(with(w, window(100, 2)), "no left edge"));

  // Parts of an expression, and padding.
  Loops s;
  const std::vector<Index> ids{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0};
  s.options.masks.push_back(mask_of(causal_mask(24, 24) & segments_mask(ids, ids)));
  s.make(74);
  const auto same = [&](Index i, Index j) {
    return ids[static_cast<std::size_t>(i)] == ids[static_cast<std::size_t>(j)];
  };
  const auto token = [&](Index i) { return ids[static_cast<std::size_t>(i)] > 0; };
  s.allowed = [&](Index, Index, Index i, Index j) { return j <= i && same(i, j) && token(i); };
  CHECK(s.explanation(s.forward(), DType::float32) == "agrees");
  CHECK(has(with(s, [&](Index, Index, Index i, Index j) { return j <= i; }), "is left out"));
  CHECK(has(with(s, [&](Index, Index, Index i, Index j) { return same(i, j) && token(i); }),
            "'causal' is left out"));
  CHECK(has(with(s, [&](Index, Index, Index i, Index j) { return j <= i && same(i, j); }),
            "padding is taken for a segment"));
  CHECK(has(with(s, [&](Index, Index, Index i, Index j) { return j <= i && token(i) && token(j); }),
            "segments are ignored, padding is not"));

  // None, where there is one; and keys after the last whole tile.
  Loops n;
  n.make(75);
  CHECK(has(with(n, [](Index, Index, Index, Index j) { return j < 23; }), "mask: the last key is left out"));
  CHECK(has(with(n, [](Index, Index, Index, Index j) { return j < 16; }),
            "mask: the keys after whole tiles of 16 are left out"));
  CHECK(has(with(n, causal(0)), "mask: a causal mask is applied, and there is none"));
}

TEST_CASE("masks and results of other heads and entries are recognized") {
  Loops a;
  std::mt19937_64 engine(76);
  // A mask for each entry and head.
  Array mask(DType::boolean, {2, 4, 24, 24});
  for (bool& x : mask.elements<bool>()) x = engine() % 3 != 0;
  const auto values = plain::doubles(mask.view());
  a.options.masks.push_back(head_masks(make_source(mask.view(), "m")));
  a.make(77);
  const auto stored = [&](Index b, Index h, Index i, Index j) {
    return values[Loops::at(b, h, i, j, 4, 24, 24)] != 0;
  };
  a.allowed = stored;
  CHECK(a.explanation(a.forward(), DType::float32) == "agrees");
  const auto with = [&](auto allowed) {
    Loops wrong = a;
    wrong.allowed = allowed;
    return wrong.forward();
  };
  CHECK(has(a.explanation(with([&](Index b, Index, Index i, Index j) { return stored(b, 0, i, j); }),
                          DType::float32),
            "heads 1-3 hold the mask of head 0"));
  CHECK(has(a.explanation(with([&](Index, Index h, Index i, Index j) { return stored(0, h, i, j); }),
                          DType::float32),
            "batch entry 1 holds the mask of batch entry 0"));
  // Results of heads 1 and 3 exchanged.
  Loops::Made made = a.forward();
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 24; ++i) {
      for (Index d = 0; d < 6; ++d)
        std::swap(made.out[Loops::at(b, i, 1, d, 24, 4, 6)], made.out[Loops::at(b, i, 3, d, 24, 4, 6)]);
      std::swap(made.lse[static_cast<std::size_t>((b * 4 + 1) * 24 + i)],
                made.lse[static_cast<std::size_t>((b * 4 + 3) * 24 + i)]);
    }
  CHECK(has(a.explanation(made, DType::float32), "exchanged: head 1 and head 3 are exchanged"));
  Loops::Made late = a.forward();
  const Loops::Made right = late;
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i + 1 < 24; ++i)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 6; ++d)
          late.out[Loops::at(b, i, h, d, 24, 4, 6)] = right.out[Loops::at(b, i + 1, h, d, 24, 4, 6)];
  CHECK(has(a.explanation(late, DType::float32), "shifted: out: query i holds what belongs to i + 1"));
  // A tile of queries was never written, and the mask is that of head 0.
  Loops::Made tile = with([&](Index b, Index, Index i, Index j) { return stored(b, 0, i, j); });
  for (Index b = 0; b < 2; ++b)
    for (Index i = 8; i < 16; ++i)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 6; ++d) tile.out[Loops::at(b, i, h, d, 24, 4, 6)] = 0;
  const std::string two = a.explanation(tile, DType::float32);
  CHECK(has(two, "unwritten: out: elements are 0, as if never written in queries 8-15"));
  CHECK(has(two, "hold the mask of head 0"));
}

TEST_CASE("mistakes of the bias and the soft cap are named") {
  Loops a;
  std::mt19937_64 engine(78);
  a.bias = std::make_shared<Array>(plain::random(DType::float32, {2, 4, 24, 24}, engine));
  a.options.bias = a.bias->view();
  a.options.softcap = 1.5;
  a.make(79);
  CHECK(a.explanation(a.forward(), DType::float32) == "agrees");
  const auto with = [&](auto score) {
    Loops wrong = a;
    wrong.score = score;
    return a.explanation(wrong.forward(), DType::float32);
  };
  const double s = a.scale;
  const auto cap = [](double x) { return 1.5 * std::tanh(x / 1.5); };
  CHECK(has(with([=](double dot, double b) { return s * dot + b; }), "softcap: the soft cap is left out"));
  CHECK(has(with([=](double dot, double b) { return cap(s * dot + b); }),
            "softcap: the soft cap comes after the bias"));
  CHECK(has(with([=](double dot, double) { return cap(s * dot); }), "bias: the bias is left out"));
  CHECK(has(with([=](double dot, double b) { return cap(s * dot) - b; }), "bias: the bias is subtracted"));
  CHECK(
      has(with([=](double dot, double b) { return cap(s * dot) + 2 * b; }), "bias: the bias is added twice"));
  CHECK(has(with([=](double dot, double b) { return cap(s * dot) + s * b; }),
            "bias: the bias is multiplied by the scale"));
}

TEST_CASE("what stands in lse for a query without a key is told") {
  Loops a;
  a.options.masks.push_back(mask_of(causal_mask(24, 24, -2)));
  a.allowed = [](Index, Index, Index i, Index j) { return j <= i - 2; };
  a.make(83);
  CHECK(a.explanation(a.forward(), DType::float32) == "agrees");
  const auto told = [&](double value) {
    Loops::Made made = a.forward();
    for (double& x : made.lse)
      if (std::isinf(x)) x = value;
    return a.explanation(made, DType::float32);
  };
  CHECK(has(told(0), "lse_empty: lse of a query without a key is 0"));
  CHECK(has(told(-1e30), "lse_empty: lse of a query without a key is -1e+30"));
  CHECK(has(told(INFINITY), "lse_empty: lse of a query without a key is +inf"));
  CHECK(has(told(NAN), "lse_empty: lse of a query without a key is NaN"));
}

TEST_CASE("rounding of inputs and weights is recognized") {
  Loops a;
  a.make(80);
  Loops rounded = a;
  for (auto* values : {&rounded.qs, &rounded.ks, &rounded.vs})
    for (double& x : *values) x = bf16(x);
  CHECK(
      has(a.explanation(rounded.forward(), DType::float32), "rounding: the inputs are rounded to bfloat16"));
  Loops weights = a;
  weights.score = rounded.score;
  weights.kv_head = rounded.kv_head;
  weights.weight = bf16;
  CHECK(has(a.explanation(weights.forward(), DType::float32),
            "rounding: out: the weights are rounded to bfloat16"));
  Loops::Made made = a.forward();
  for (double& x : made.out) x = bf16(x);
  CHECK(has(a.explanation(made, DType::float32), "rounding: out: rounded to bfloat16"));
  made = a.forward();
  for (double& x : made.lse) x = bf16(x);
  CHECK(has(a.explanation(made, DType::float32), "rounding: lse: rounded to bfloat16"));
}

TEST_CASE("packed sequences that attend to each other are recognized") {
  std::mt19937_64 engine(82);
  const Array q = plain::random(DType::float32, {30, 2, 8}, engine),
              k = plain::random(DType::float32, {30, 2, 8}, engine),
              v = plain::random(DType::float32, {30, 2, 8}, engine);
  for (const bool causal : {false, true}) {
    AttentionOptions options;
    options.layout = AttentionLayout::thd;
    const auto one = std::make_shared<std::vector<Index>>(std::vector<Index>{0, 30});
    options.cu_seqlens_q = IntegerArray(std::vector<Index>{0, 9, 22, 30});
    if (causal) options.masks.push_back(head_masks({MaskExpression::parse("causal")}, Polarity::keep, {}));
    AttentionOptions wrong = options;
    wrong.cu_seqlens_q = IntegerArray(std::vector<Index>{0, 30});
    const Attention given = attention(q.view(), k.view(), v.view(), wrong);
    const AttentionArrays arrays{q.view(), k.view(), v.view()};
    const AttentionPlan plan(types_of(arrays), options);
    const Attention own = attention(q.view(), k.view(), v.view(), options);
    const Against against = compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                            {given.out.view(), given.lse.view()}, Explain::yes);
    REQUIRE(against.explanations.size() == 2);
    for (const auto& e : against.explanations) {
      CHECK(has(e.text, "packed sequences attend to each other"));
      CHECK(e.share_explained > 0.99);
    }

    const Array dout = plain::random(DType::float32, {30, 2, 8}, engine);
    const AttentionArrays backward{q.view(), k.view(), v.view(), {}, dout.view()};
    const AttentionPlan gradients(types_of(backward), options);
    const AttentionGradients right = attention_grad(q.view(), k.view(), v.view(), dout.view(), options),
                             joined = attention_grad(q.view(), k.view(), v.view(), dout.view(), wrong);
    const std::vector<ArrayView> own_views{right.dq.view(), right.dk.view(), right.dv.view()};
    // dk and dv with dq, and without it.
    for (const bool all : {true, false}) {
      const auto dq = all ? std::optional(joined.dq.view()) : std::nullopt;
      const Against of_gradients = compare_results(gradients, backward, own_views,
                                                   {dq, joined.dk.view(), joined.dv.view()}, Explain::yes);
      REQUIRE(of_gradients.explanations.size() == (all ? 3 : 2));
      for (const auto& e : of_gradients.explanations) {
        CHECK(e.text == "packed sequences attend to each other");
        CHECK(e.share_explained > 0.99);
      }
    }
  }
}

TEST_CASE("boundaries of packed sequences that are off are named, in 16 bits too") {
  std::mt19937_64 engine(83);
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (const bool causal : {false, true}) {
      CAPTURE(name_of(type));
      CAPTURE(causal);
      const Array q = plain::random(type, {60, 2, 8}, engine), k = plain::random(type, {60, 2, 8}, engine),
                  v = plain::random(type, {60, 2, 8}, engine);
      AttentionOptions options;
      options.layout = AttentionLayout::thd;
      options.cu_seqlens_q = IntegerArray(std::vector<Index>{0, 14, 33, 60});
      if (causal) options.masks.push_back(head_masks({MaskExpression::parse("causal")}, Polarity::keep, {}));
      const AttentionArrays arrays{q.view(), k.view(), v.view()};
      const AttentionPlan plan(types_of(arrays), options);
      const Attention own = attention(q.view(), k.view(), v.view(), options);
      const auto told = [&](std::vector<Index> cu) {
        AttentionOptions wrong = options;
        wrong.cu_seqlens_q = IntegerArray(std::move(cu));
        const Attention given = attention(q.view(), k.view(), v.view(), wrong);
        const Against found = compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                              {given.out.view(), std::nullopt}, Explain::yes);
        return found.explanations.empty() ? std::string() : found.explanations[0].text;
      };
      CHECK(told({0, 14, 34, 60}) == "the boundary of documents at token 33 is one token late");
      CHECK(told({0, 13, 33, 60}) == "the boundary of documents at token 14 is one token early");
      CHECK(told({0, 15, 34, 60}) == "documents begin one token late");
      CHECK(told({0, 33, 60}) == "the documents that meet at token 14 are one");
    }
}

TEST_CASE("a score that is NaN makes its rows NaN: the own result agrees with that, and 0 does not") {
  std::mt19937_64 engine(84);
  Array q = plain::random(DType::float32, {1, 24, 2, 8}, engine),
        k = plain::random(DType::float32, q.shape(), engine),
        v = plain::random(DType::float32, q.shape(), engine);
  k.elements<float>()[10 * 2 * 8 + 3] = std::nanf("");  // of key 10, head 0
  AttentionOptions options;
  options.masks.push_back(head_masks({causal_mask(24, 24)}));
  const AttentionArrays arrays{q.view(), k.view(), v.view()};
  const AttentionPlan plan(types_of(arrays), options);
  const Attention own = attention(q.view(), k.view(), v.view(), options);
  const auto against = [&](const ArrayView& out) {
    return compare_results(plan, arrays, {own.out.view(), own.lse.view()}, {out, std::nullopt}, Explain::yes);
  };
  CHECK(against(own.out.view()).agrees());
  Array zeros = Array::copy_of(own.out.view());
  for (float& x : zeros.elements<float>())
    if (std::isnan(x)) x = 0;
  CHECK(against(zeros.view()).beyond == 14 * 8);
}

TEST_CASE("mistakes of gradients are named") {
  Loops a;
  a.options.masks.push_back(mask_of(causal_mask(24, 24)));
  a.make(83);
  a.allowed = [](Index, Index, Index i, Index j) { return j <= i; };
  CHECK(a.explanation(a.backward({})) == "agrees");
  // The whole computation is wrong, or the backward pass alone.
  Loops wide = a;
  wide.allowed = [](Index, Index, Index i, Index j) { return j <= i + 1; };
  const std::string whole = a.explanation(wide.backward({}));
  CHECK(has(whole, "mask: the causal edge is one key too far"));
  CHECK(whole.find("alone") == std::string::npos);
  CHECK(has(a.explanation(wide.backward({.right = &a})),
            "the causal edge is one key too far, in the backward pass alone"));
  Loops loose = a;
  loose.score = [](double dot, double) { return dot; };
  CHECK(has(a.explanation(loose.backward({})), "scale: the scale is left out"));
  Loops mapped = a;
  mapped.kv_head = [](Index h) { return h % 2; };
  CHECK(has(a.explanation(mapped.backward({})), "heads: query head h uses key/value head h mod G"));

  Loops c;
  c.options.softcap = 1.0;
  c.make(84);
  CHECK(c.explanation(c.backward({})) == "agrees");
  CHECK(has(c.explanation(c.backward({.slope = false})),
            "softcap: dq, dk: the derivative of the soft cap is left out"));
}

TEST_CASE("a tile of NaN is told with its place, beside a mistake in the rest") {
  Loops a;
  a.make(88);
  Loops wrong = a;
  wrong.score = [](double dot, double) { return dot; };
  for (const bool both : {false, true}) {
    Loops::Made made = both ? wrong.forward() : a.forward();
    for (Index b = 0; b < 2; ++b)
      for (Index i = 8; i < 16; ++i)
        for (Index d = 0; d < 6; ++d) made.out[Loops::at(b, i, 2, d, 24, 4, 6)] = std::nan("");
    const std::string explanation = a.explanation(made, DType::float32);
    CHECK(has(explanation, "not_numbers: out: elements are NaN or infinite in head 2, queries 8-15"));
    CHECK((explanation.find("the scale is left out") != std::string::npos) == both);
  }
}

TEST_CASE("noise as small as rounded weights is not told as these") {
  std::mt19937_64 engine(91);
  std::normal_distribution<double> normal;
  for (int n = 0; n < 24; ++n) {
    CAPTURE(n);
    Loops a;
    a.batch = 1;
    a.type = DType::bfloat16;
    if (n % 2 == 0) a.options.masks.push_back(mask_of(causal_mask(24, 24)));
    a.make(2000 + static_cast<std::uint64_t>(n));
    if (n % 2 == 0) a.allowed = [](Index, Index, Index i, Index j) { return j <= i; };
    const double size = std::pow(2.0, -7 - n % 4);
    const DType result = n % 3 == 0 ? DType::float32 : DType::bfloat16;
    Loops::Made made = a.forward();
    for (double& x : made.out) x = n % 8 < 4 ? x * (1 + size * normal(engine)) : x + size * normal(engine);
    const std::string explanation = a.explanation(made, result);
    CAPTURE(explanation);
    CHECK((explanation.empty() || explanation == "agrees"));
    Loops::Gradient g = a.backward({});
    for (auto* values : {&g.dq, &g.dk, &g.dv})
      for (double& x : *values) x = n % 8 < 4 ? x * (1 + size * normal(engine)) : x + size * normal(engine);
    const std::string of_gradients = a.explanation(g);
    CAPTURE(of_gradients);
    CHECK((of_gradients.empty() || of_gradients == "agrees"));
  }
}

TEST_CASE("of many heads and entries, the few with mistakes are found") {
  std::mt19937_64 engine(92);
  const Index heads = 128, batch = 3, tokens = 6, size = 4;
  const Array q = plain::random(DType::float32, {batch, tokens, heads, size}, engine),
              k = plain::random(DType::float32, {batch, tokens, heads, size}, engine),
              v = plain::random(DType::float32, {batch, tokens, heads, size}, engine);
  const AttentionArrays arrays{q.view(), k.view(), v.view()};
  const AttentionPlan plan(types_of(arrays), {});
  const Attention own = attention(q.view(), k.view(), v.view());
  AttentionOptions without;
  without.scale = 1;
  const Attention other = attention(q.view(), k.view(), v.view(), without);
  const auto told = [&](const std::function<float(Index b, Index h, Index i, Index d, const float* right,
                                                  const float* wrong)>& of) {
    Array out(DType::float32, own.out.shape());
    for (Index n = 0; n < out.size(); ++n) {
      const Index d = n % size, h = n / size % heads, i = n / size / heads % tokens,
                  b = n / size / heads / tokens;
      out.elements<float>()[static_cast<std::size_t>(n)] =
          of(b, h, i, d, own.out.elements<float>().data() + n, other.out.elements<float>().data() + n);
    }
    const Against against = compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                            {out.view(), std::nullopt}, Explain::yes);
    std::string text;
    for (const Explanation& e : against.explanations) text += e.kind + ": " + e.text + "; ";
    return text;
  };
  CHECK(told([](Index, Index h, Index, Index, const float* right, const float* wrong) {
          return h == 77 ? *wrong : *right;
        }) == "scale: the scale is left out in head 77; ");
  // Exchanged heads, of which none is next to the other, and one that is wrong in another way.
  CHECK(told([&](Index, Index h, Index, Index, const float* right, const float* wrong) {
          const Index from = h == 5 ? 99 : h == 99 ? 5 : h;
          return h == 60 ? *wrong : right[(from - h) * size];
        }) == "exchanged: head 5 and head 99 are exchanged; scale: the scale is left out in head 60; ");
  CHECK(told([&](Index, Index h, Index, Index, const float* right, const float* wrong) {
          return h == 60 ? 3 * *right : *wrong;
        }).starts_with("scale: the scale is left out in heads 0-59, 61-127; "));
  // In one entry alone.
  CHECK(told([&](Index b, Index h, Index, Index, const float* right, const float*) {
          const Index from = b != 1 ? h : h == 5 ? 99 : h == 99 ? 5 : h;
          return right[(from - h) * size];
        }) == "exchanged: batch entry 1: head 5 and head 99 are exchanged; ");
}

TEST_CASE("one element that is a little off is no rounding and no factor") {
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    Loops a;
    a.batch = 1;
    a.queries = a.keys = 12;
    a.size = a.value_size = 2;
    a.make(3000 + static_cast<std::uint64_t>(n));
    Loops::Made made = a.forward();
    // Between what the bound allows and what TF32 loses.
    double& x = made.out[static_cast<std::size_t>(7 * n) % made.out.size()];
    x *= 1 + (n % 2 == 0 ? 1 : -1) * std::pow(2, -11 - n % 4);
    const std::string explanation = a.explanation(made, a.type);
    CHECK((explanation.empty() || explanation == "agrees"));
  }
}

TEST_CASE("no factor is fitted to noise that is hardly beyond the bound, nor is it told as rounding") {
  for (const int n : {8, 25, 140, 145, 204, 210, 229, 289}) {
    CAPTURE(n);
    std::mt19937_64 engine(static_cast<std::uint64_t>(n));
    std::normal_distribution<double> normal;
    Loops a;
    a.size = a.value_size = 4;
    a.options.masks.push_back(mask_of(local_mask(24, 24, 5, 0)));
    a.make(4000 + static_cast<std::uint64_t>(n));
    a.allowed = [](Index, Index, Index i, Index j) { return j <= i && j >= i - 5; };
    Loops::Gradient g = a.backward({});
    for (auto* values : {&g.dq, &g.dk, &g.dv})
      for (double& x : *values) x *= 1 + (1 + n % 4) * 1e-4 * normal(engine);
    const std::string explanation = a.explanation(g);
    CHECK((explanation.empty() || explanation == "agrees"));
  }
}
