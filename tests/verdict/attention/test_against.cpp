// Comparison of actual results: every element, at any size; the report names the heads, entries and queries
// that are out of tolerance.
#include "verdict/attention/against.hpp"

#include "support/random_attention.hpp"

using namespace ejk;

namespace {

using Given = std::vector<std::optional<ArrayView>>;

std::vector<ArrayView> views_of(const std::vector<const Array*>& arrays) {
  std::vector<ArrayView> views;
  for (const Array* array : arrays) views.push_back(array->view());
  return views;
}

Against compared(const AttentionArrays& arrays, const AttentionOptions& options,
                 const std::vector<ArrayView>& own, const Given& given, double effort,
                 Explain explain = Explain::no) {
  const attn::Plan plan(types_of(arrays), options);
  return attn::compare(plan, arrays, own, given, {DType::float32}, explain, effort);
}

Given all(const std::vector<ArrayView>& views) { return {views.begin(), views.end()}; }

}  // namespace

TEST_CASE("one wrong element anywhere is found, with its head, entry and query") {
  std::mt19937_64 engine(62);
  for (const AttentionLayout layout : {AttentionLayout::bshd, AttentionLayout::bhsd}) {
    const bool by_head = layout == AttentionLayout::bhsd;
    const auto shape = [&](std::int64_t length, std::int64_t heads, std::int64_t size) {
      return by_head ? Shape{2, heads, length, size} : Shape{2, length, heads, size};
    };
    const Array q = plain::random(DType::float32, shape(9, 4, 8), engine),
                k = plain::random(DType::float32, shape(11, 2, 8), engine),
                v = plain::random(DType::float32, shape(11, 2, 5), engine);
    AttentionOptions options;
    options.layout = layout;
    Attention a = attention(q.view(), k.view(), v.view(), options);
    const AttentionArrays arrays{q.view(), k.view(), v.view()};
    for (const double effort : {attn::kCheckEffort, 0.5}) {
      Array out = Array::copy_of(a.out.view()), lse = Array::copy_of(a.lse.view());
      // Entry 1, head 3, query 7, element 2.
      const std::size_t at = by_head ? ((1 * 4 + 3) * 9 + 7) * 5 + 2 : ((1 * 9 + 7) * 4 + 3) * 5 + 2;
      out.elements<float>()[at] += 1e-2f;
      lse.elements<float>()[(1 * 4 + 2) * 9 + 5] = std::numeric_limits<float>::quiet_NaN();
      const Against x =
          compared(arrays, options, views_of({&a.out, &a.lse}), all(views_of({&out, &lse})), effort);
      CHECK(x.beyond == 2);
      REQUIRE(x.worst.size() == 2);
      CHECK(x.worst[0].array == "lse");
      CHECK(x.worst[0].index == Shape{1, 2, 5});
      CHECK(x.worst[1].array == "out");
      CHECK(x.worst[1].index == (by_head ? Shape{1, 3, 7, 2} : Shape{1, 7, 3, 2}));
      REQUIRE(x.parts.size() == 4);
      CHECK(x.parts[0].axis == "head");
      CHECK(x.parts[0].index == 3);
      CHECK(x.parts[1].axis == "batch entry");
      CHECK(x.parts[1].index == 1);
      CHECK(x.where[2].indices == "7");
      CHECK(x.arrays[1].not_numbers == 1);
      // lse alone.
      const Against y =
          compared(arrays, options, views_of({&a.out, &a.lse}), {std::nullopt, lse.view()}, effort);
      CHECK(y.beyond == 1);
      CHECK(y.not_given == std::vector<std::string>{"out"});
    }
  }
}

TEST_CASE("NaN of an input that reaches masked queries is the cause, and no other is searched for") {
  std::mt19937_64 engine(63);
  const Shape shape{1, 8, 1, 4};
  Array q = plain::random(DType::float32, shape, engine), k = plain::random(DType::float32, shape, engine),
        v = plain::random(DType::float32, shape, engine);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  AttentionOptions options;
  options.masks.push_back(head_masks({MaskExpression::parse("causal")}, Polarity::keep, {}));
  for (Array* input : {&k, &v}) {
    const float before = input->elements<float>()[3 * 4 + 1];
    input->elements<float>()[3 * 4 + 1] = nan;
    const AttentionArrays arrays{q.view(), k.view(), v.view()};
    Attention a = attention(q.view(), k.view(), v.view(), options);
    const auto explained = [&](const Array& out) {
      return compared(arrays, options, views_of({&a.out, &a.lse}), {out.view(), std::nullopt},
                      attn::kCheckEffort, Explain::yes);
    };
    Array out = Array::copy_of(a.out.view());
    for (float& value : out.elements<float>()) value = nan;
    const Against leaked = explained(out);
    CHECK(leaked.tried);
    REQUIRE(leaked.explanations.size() == 1);
    CHECK(leaked.explanations[0].kind == "not_numbers");
    CHECK(leaked.explanations[0].text ==
          std::string("NaN of ") + (input == &k ? "k" : "v") + " reaches results that it is masked from");
    // Queries 0 to 2 do not attend to key 3: a factor there is no NaN.
    out = Array::copy_of(a.out.view());
    for (float& value : out.elements<float>()) value *= 1.5f;
    const Against scaled = explained(out);
    REQUIRE(scaled.explanations.size() >= 1);
    CHECK(scaled.explanations[0].kind == "factor");
    input->elements<float>()[3 * 4 + 1] = before;
  }
}

TEST_CASE("one wrong gradient is found, in packed sequences too") {
  std::mt19937_64 engine(63);
  const Array q = plain::random(DType::float32, {20, 2, 8}, engine),
              k = plain::random(DType::float32, {20, 1, 8}, engine),
              v = plain::random(DType::float32, {20, 1, 8}, engine),
              dout = plain::random(DType::float32, {20, 2, 8}, engine);
  AttentionOptions options;
  options.layout = AttentionLayout::thd;
  options.cu_seqlens_q = plain::integers({0, 7, 7, 20}, {4}, "cu");
  const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
  const AttentionArrays arrays{q.view(), k.view(), v.view(), {}, dout.view()};
  for (const double effort : {attn::kCheckEffort, 0.5})
    for (int which = 0; which < 3; ++which) {
      Array given[] = {Array::copy_of(g.dq.view()), Array::copy_of(g.dk.view()), Array::copy_of(g.dv.view())};
      const std::int64_t heads = which == 0 ? 2 : 1;
      given[which].elements<float>()[static_cast<std::size_t>((9 * heads + heads - 1) * 8 + 3)] += 0.05f;
      const Against x = compared(arrays, options, views_of({&g.dq, &g.dk, &g.dv}),
                                 all(views_of({&given[0], &given[1], &given[2]})), effort);
      CHECK(x.beyond == 1);
      REQUIRE(x.worst.size() == 1);
      CHECK(x.worst[0].index == Shape{9, heads - 1, 3});
      REQUIRE_FALSE(x.parts.empty());
      CHECK(x.parts.back().axis == "sequence");
      CHECK(x.parts.back().index == 2);
    }
}

TEST_CASE("given results are judged by their own type, and those of another shape are errors about them") {
  std::mt19937_64 engine(64);
  const Array q = plain::random(DType::float32, {1, 30, 2, 8}, engine);
  const AttentionArrays arrays{q.view(), q.view(), q.view()};
  const Attention a = attention(q.view(), q.view(), q.view());
  const Array narrow = plain::array_of(DType::bfloat16, a.out.shape(), plain::doubles(a.out.view()));
  const auto own = views_of({&a.out, &a.lse});
  CHECK(compared(arrays, {}, own, {narrow.view(), a.lse.view()}, attn::kCheckEffort).agrees());
  const Array widened = plain::array_of(DType::float32, a.out.shape(), plain::doubles(narrow.view()));
  CHECK_FALSE(compared(arrays, {}, own, {widened.view(), a.lse.view()}, attn::kCheckEffort).agrees());
  try {
    compared(arrays, {}, own, {std::nullopt, narrow.view()}, attn::kCheckEffort);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.subject() == "lse");
  }
}

TEST_CASE("mistakes are named beside own results, too, where nothing is evaluated in full") {
  std::mt19937_64 engine(65);
  const Array q = plain::random(DType::float32, {2, 40, 4, 8}, engine),
              k = plain::random(DType::float32, {2, 40, 2, 8}, engine),
              v = plain::random(DType::float32, {2, 40, 2, 8}, engine),
              dout = plain::random(DType::float32, {2, 40, 4, 8}, engine);
  AttentionOptions right, wrong;
  right.masks.push_back(head_masks(std::vector<Mask>{local_mask(40, 40, 6, 0)}));
  wrong.masks.push_back(head_masks(std::vector<Mask>{local_mask(40, 40, 7, 0)}));
  const auto text = [](const Against& against) {
    CHECK(against.method == Against::Method::own_result);
    std::string all;
    for (const auto& e : against.explanations)
      if (all != e.text) all += e.text;
    return all;
  };
  const Attention own = attention(q.view(), k.view(), v.view(), right),
                  mine = attention(q.view(), k.view(), v.view(), wrong);
  CHECK(text(compared({q.view(), k.view(), v.view()}, right, views_of({&own.out, &own.lse}),
                      all(views_of({&mine.out, &mine.lse})), 0.5, Explain::yes)) ==
        "the window is one key longer at the left");
  const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), right),
                           h = attention_grad(q.view(), k.view(), v.view(), dout.view(), wrong);
  CHECK(text(compared({q.view(), k.view(), v.view(), {}, dout.view()}, right, views_of({&g.dq, &g.dk, &g.dv}),
                      all(views_of({&h.dq, &h.dk, &h.dv})), 0.5, Explain::yes)) ==
        "the window is one key longer at the left");
}
