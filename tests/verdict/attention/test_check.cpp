// Check of attention: correct results pass, whole and in samples; wrong ones do not.

#include <algorithm>
#include <utility>

#include "ejk/attention_check.hpp"
#include "support/random_attention.hpp"
#include "verdict/attention/against.hpp"
#include "verdict/attention/bounds.hpp"

using namespace ejk;

TEST_CASE("right results of attention pass the check, and agree by float64 and by the own results") {
  plain::Random random(21);
  for (int n = 0; n < 150; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    const ArrayView q = r->q.view(), k = r->k.view(), v = r->v.view(), dout = r->dout.view();
    const Attention a = attention(q, k, v, r->options);
    const AttentionGradients g = attention_grad(q, k, v, dout, r->options);
    const AttentionArrays forward_arrays{q, k, v, r->options.bias},
        backward_arrays{q, k, v, r->options.bias, dout};
    const attn::Plan forward_plan(types_of(forward_arrays), r->options),
        backward_plan(types_of(backward_arrays), r->options);
    for (const double effort : {attn::kCheckEffort, 1.0}) {
      // Padding is not compared.
      const bool padded = static_cast<bool>(r->options.cu_seqlens_q_padded);
      const std::vector<ArrayView> outs{a.out.view(), a.lse.view()};
      const AttentionCheck forward = attn::check(forward_plan, forward_arrays, outs, effort);
      CHECK(forward.passed());
      CHECK((padded || forward.elements == a.out.size() + a.lse.size()));
      const auto compared = [&](const attn::Plan& plan, const AttentionArrays& arrays,
                                const std::vector<ArrayView>& own) {
        return attn::compare(plan, arrays, own, {own.begin(), own.end()}, {DType::float32}, Explain::no,
                             effort);
      };
      const Against of_forward = compared(forward_plan, forward_arrays, outs);
      CHECK(of_forward.agrees());
      CHECK(of_forward.elements == forward.elements);
      std::vector<ArrayView> results{g.dq.view(), g.dk.view(), g.dv.view()};
      if (g.dbias) results.push_back(g.dbias->view());
      if (g.dsinks) results.push_back(g.dsinks->view());
      const AttentionCheck backward = attn::check(backward_plan, backward_arrays, results, effort);
      CHECK(backward.passed());
      const Against of_backward = compared(backward_plan, backward_arrays, results);
      CHECK(of_backward.agrees());
      CHECK(of_backward.largest <= 1);
      if (!padded) CHECK(of_backward.elements == backward.elements);
      if (effort > 1) {
        CHECK(forward.method == AttentionCheck::Method::every_element);
        CHECK(forward.compared == forward.elements);
        CHECK(backward.compared == backward.elements);
      } else if (forward.method == AttentionCheck::Method::sampled_rows) {
        CHECK(forward.compared < forward.elements);
      }
    }
  }
}

TEST_CASE("one wrong element of a bias's gradient fails the check and the comparison, which say where") {
  std::mt19937_64 engine(28);
  const Array q = plain::random(DType::float32, {2, 9, 4, 8}, engine),
              k = plain::random(DType::float32, {2, 11, 2, 8}, engine),
              v = plain::random(DType::float32, {2, 11, 2, 5}, engine),
              dout = plain::random(DType::float32, {2, 9, 4, 5}, engine);
  struct Case {
    Shape shape, index;
  };
  for (const Case& c : {Case{{4, 9, 11}, {3, 8, 10}}, Case{{2, 1, 1, 11}, {1, 0, 0, 7}},
                        Case{{1, 1, 9, 1}, {0, 0, 5, 0}}, Case{{}, {}}}) {
    CAPTURE(to_string(c.shape));
    const Array bias = plain::random(DType::float32, c.shape, engine);
    AttentionOptions options;
    options.bias = bias.view();
    AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
    std::size_t at = 0;
    for (std::size_t d = 0; d < c.shape.size(); ++d)
      at = at * static_cast<std::size_t>(c.shape[d]) + static_cast<std::size_t>(c.index[d]);
    const Array right = Array::copy_of(g.dbias->view());
    g.dbias->elements<float>()[at] += 0.05f;
    const AttentionCheck check = check_attention_grad(q.view(), k.view(), v.view(), dout.view(), options,
                                                      g.dq.view(), g.dk.view(), g.dv.view(), g.dbias->view());
    CHECK(check.violating == 1);
    REQUIRE(check.worst);
    CHECK(check.worst->array == "dbias");
    CHECK(check.worst->index == c.index);
    const AttentionArrays arrays{q.view(), k.view(), v.view(), bias.view(), dout.view()};
    for (const double effort : {attn::kCheckEffort, 0.5}) {
      const Against against = attn::compare(attn::Plan(types_of(arrays), options), arrays,
                                            {g.dq.view(), g.dk.view(), g.dv.view(), right.view()},
                                            {std::nullopt, std::nullopt, std::nullopt, g.dbias->view()},
                                            {DType::float32}, Explain::no, effort);
      CHECK(against.beyond == 1);
      CHECK(against.elements == right.size());
    }
  }
}

TEST_CASE("one wrong element fails the check, which says where") {
  std::mt19937_64 engine(22);
  const Array q = plain::random(DType::float32, {2, 9, 4, 8}, engine),
              k = plain::random(DType::float32, {2, 11, 2, 8}, engine),
              v = plain::random(DType::float32, {2, 11, 2, 5}, engine),
              dout = plain::random(DType::float32, {2, 9, 4, 5}, engine);
  Attention a = attention(q.view(), k.view(), v.view());
  float& out = a.out.elements<float>()[static_cast<std::size_t>(((1 * 9 + 7) * 4 + 3) * 5 + 2)];
  const float before = out;
  for (const float wrong :
       {before + 1e-3f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    out = wrong;
    const AttentionCheck check =
        check_attention(q.view(), k.view(), v.view(), {}, a.out.view(), a.lse.view());
    CHECK_FALSE(check.passed());
    CHECK(check.violating == 1);
    REQUIRE(check.worst);
    CHECK(check.worst->array == "out");
    CHECK(check.worst->index == Shape{1, 7, 3, 2});
    CHECK(check.worst->reference == doctest::Approx(before));
  }
  out = before;
  a.lse.elements<float>()[5] += 1e-2f;
  const AttentionCheck lse = check_attention(q.view(), k.view(), v.view(), {}, a.out.view(), a.lse.view());
  REQUIRE(lse.worst);
  CHECK(lse.worst->array == "lse");
  CHECK(lse.worst->index == Shape{0, 0, 5});

  AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view());
  const auto check = [&] {
    return check_attention_grad(q.view(), k.view(), v.view(), dout.view(), {}, g.dq.view(), g.dk.view(),
                                g.dv.view());
  };
  CHECK(check().passed());
  for (const auto& [name, array] :
       {std::pair<const char*, Array*>{"dq", &g.dq}, {"dk", &g.dk}, {"dv", &g.dv}}) {
    float& value = array->elements<float>()[6];
    const float right = value;
    value += 1e-2f;
    const AttentionCheck wrong = check();
    REQUIRE(wrong.worst);
    CHECK(wrong.worst->array == name);
    CHECK(wrong.worst->index ==
          Shape{0, 0, name == std::string("dv") ? 1 : 0, name == std::string("dv") ? 1 : 6});
    value = right;
  }
}

TEST_CASE("results of another shape cannot be checked") {
  const Array q(DType::float32, {1, 2, 1, 2}), lse(DType::float32, {1, 1, 2});
  CHECK_THROWS_AS(check_attention(q.view(), q.view(), q.view(), {}, q.view(), q.view()), Error);
  CHECK_THROWS_AS(check_attention(q.view(), q.view(), q.view(), {}, lse.view(), lse.view()), Error);
  CHECK_THROWS_AS(
      check_attention_grad(q.view(), q.view(), q.view(), q.view(), {}, q.view(), q.view(), lse.view()),
      Error);
}

TEST_CASE("a gradient beyond float16 is an infinity, and right") {
  const Array q = plain::filled(DType::float16, {1, 1, 1, 1}, 1),
              v = plain::filled(DType::float16, {1, 1, 1, 1}, 1);
  const Array dout = plain::filled(DType::float32, {1, 1, 1, 1}, 1e6);
  const AttentionGradients g = attention_grad(q.view(), q.view(), v.view(), dout.view());
  CHECK(plain::doubles(g.dv.view())[0] == plain::kInfinity);
  CHECK(check_attention_grad(q.view(), q.view(), v.view(), dout.view(), {}, g.dq.view(), g.dk.view(),
                             g.dv.view())
            .passed());
}

TEST_CASE("gradients that are rounded to two types may be off by both, and no more") {
  std::mt19937_64 engine(25);
  const auto random = [&](std::int64_t heads) {
    return plain::random(DType::float32, {2, 9, heads, 8}, engine);
  };
  const Array q = random(4), k = random(2), v = random(2), dout = random(4);
  const AttentionArrays arrays{q.view(), k.view(), v.view(), {}, dout.view()};
  for (const DType first : plain::kFloats)
    for (const DType last : plain::kFloats) {
      CAPTURE(name_of(first));
      CAPTURE(name_of(last));
      AttentionOptions options;
      options.dtype = first;
      options.grad_dtype = last;
      const attn::Plan plan(types_of(arrays), options);
      AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
      const auto agrees = [&](double effort) {
        const std::vector<ArrayView> own{g.dq.view(), g.dk.view(), g.dv.view()};
        const Against against =
            attn::compare(plan, arrays, own, {own[0], own[1], own[2]}, {DType::float32}, Explain::no, effort);
        return std::pair(attn::check(plan, arrays, own, effort).passed(), against.agrees());
      };
      for (const double effort : {attn::kCheckEffort, 1.0}) CHECK(agrees(effort) == std::pair(true, true));
      // Three times what both may change the largest element by.
      std::vector<double> values = plain::doubles(g.dq.view());
      double& largest = *std::max_element(values.begin(), values.end());
      largest *= 1 + 3 * attn::Bounds::rounding(last, first).relative + 0.001;
      g.dq = plain::array_of(last, g.dq.shape(), values);
      CHECK(agrees(attn::kCheckEffort) == std::pair(false, false));
    }
}

TEST_CASE("a gradient beyond the type that it is rounded to first is an infinity, and right") {
  const Array one = plain::filled(DType::float32, {1, 1, 1, 1}, 1),
              dout = plain::filled(DType::float32, {1, 1, 1, 1}, 1e6);
  AttentionOptions options;
  options.dtype = DType::float16;
  options.grad_dtype = DType::float32;
  const AttentionArrays arrays{one.view(), one.view(), one.view(), {}, dout.view()};
  const AttentionPlan plan(types_of(arrays), options);
  const AttentionGradients g = attention_grad(one.view(), one.view(), one.view(), dout.view(), options);
  CHECK(plain::doubles(g.dv.view())[0] == plain::kInfinity);
  const std::vector<ArrayView> own{g.dq.view(), g.dk.view(), g.dv.view()};
  CHECK(check_results(plan, arrays, own).passed());
  CHECK(compare_results(plan, arrays, own, {own[0], own[1], own[2]}, Explain::no).agrees());
}

TEST_CASE("a check of nothing and one of zeros say what they are worth") {
  const Array none(DType::float32, {0, 2, 1, 2}), zeros(DType::float32, {1, 2, 1, 2});
  const auto text = [](const Array& q) {
    const Attention a = attention(q.view(), q.view(), q.view());
    return to_text(describe(check_attention(q.view(), q.view(), q.view(), {}, a.out.view(), a.lse.view())));
  };
  CHECK(text(none).find("nothing to check") != std::string::npos);
  CHECK(text(zeros).find("every element") != std::string::npos);
}

TEST_CASE("what no query attends to does not widen the bound, whatever its size") {
  std::mt19937_64 engine(23);
  Array q = plain::random(DType::float32, {2, 9, 4, 8}, engine),
        k = plain::random(DType::float32, {2, 9, 2, 8}, engine),
        v = plain::random(DType::float32, {2, 9, 2, 5}, engine),
        dout = plain::random(DType::float32, {2, 9, 4, 5}, engine);
  AttentionOptions options;
  // Of entry 1 the last two tokens are padding, full of large values.
  options.q_segment_ids =
      plain::integers({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, {2, 9}, "ids");
  for (Array* array : {&q, &k, &v, &dout}) {
    const auto elements = array->elements<float>();
    const auto row = static_cast<std::size_t>(array->shape()[2] * array->shape()[3]);
    std::fill(elements.end() - static_cast<std::ptrdiff_t>(2 * row), elements.end(), 1e15f);
  }
  Attention a = attention(q.view(), k.view(), v.view(), options);
  AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
  const auto forward = [&] {
    return check_attention(q.view(), k.view(), v.view(), options, a.out.view(), a.lse.view());
  };
  const auto backward = [&] {
    return check_attention_grad(q.view(), k.view(), v.view(), dout.view(), options, g.dq.view(), g.dk.view(),
                                g.dv.view());
  };
  CHECK(forward().passed());
  CHECK(backward().passed());
  // An element of each entry.
  for (Array* array : {&a.out, &a.lse, &g.dq, &g.dk, &g.dv})
    for (const std::size_t at : {std::size_t{3}, static_cast<std::size_t>(array->size() / 2 + 1)}) {
      float& value = array->elements<float>()[at];
      const float right = value;
      value += 0.01f;
      CHECK(forward().violating + backward().violating == 1);
      value = right;
    }
  // Large values that one entry does attend to are those of that entry alone.
  v.elements<float>()[0] = 1e15f;
  a = attention(q.view(), k.view(), v.view(), options);
  CHECK(forward().passed());
  a.out.elements<float>()[static_cast<std::size_t>(a.out.size() / 2 + 1)] += 0.01f;
  CHECK(forward().violating == 1);
}
