// Plans of attention: results and costs before there are elements; masks are read once.
#include <doctest/doctest.h>

#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace {

AttentionTypes types(DType dtype) {
  const ArrayType q(dtype, {2, 6, 4, 8}), k(dtype, {2, 5, 2, 8}), v(dtype, {2, 5, 2, 3});
  return {q, k, v};
}

}  // namespace

TEST_CASE("a plan says what the results will be") {
  const AttentionPlan forward(types(DType::bfloat16), {});
  REQUIRE(forward.results().size() == 2);
  CHECK(forward.results()[0].name == "out");
  CHECK(to_string(forward.results()[0].type) == "bfloat16 (2, 6, 4, 3)");
  CHECK(forward.results()[1].name == "lse");
  CHECK(to_string(forward.results()[1].type) == "float32 (2, 4, 6)");
  CHECK(forward.result_bytes() == 2 * 6 * 4 * 3 * 2 + 2 * 4 * 6 * 4);
  CHECK(forward.work().dense_pairs == 2 * 4 * 6 * 5);
  CHECK(forward.flop() == 2 * (8 + 3) * 240);

  AttentionTypes of_gradients = types(DType::bfloat16);
  of_gradients.dout = ArrayType(DType::float64, {2, 6, 4, 3});
  AttentionSettings settings;
  settings.dtype = DType::float32;
  const AttentionPlan backward(of_gradients, settings);
  REQUIRE(backward.results().size() == 3);
  CHECK(to_string(backward.results()[1].type) == "float32 (2, 5, 2, 8)");
  CHECK(backward.flop() == 2 * (3 * 8 + 2 * 3) * 240);
  CHECK(backward.work_bytes() > forward.work_bytes());
  settings.grad_dtype = DType::float16;
  CHECK(AttentionPlan(of_gradients, settings).results()[2].type.dtype == DType::float16);
}

TEST_CASE("a plan names the argument at fault") {
  const auto subject = [](const AttentionTypes& t) {
    try {
      const AttentionPlan plan(t, {});
    } catch (const Error& e) {
      return e.subject();
    }
    return std::string("no error");
  };
  AttentionTypes t = types(DType::float32);
  t.k = ArrayType(DType::float32, {2, 5, 2, 7});
  CHECK(subject(t) == "k");
  t = types(DType::float32);
  t.q = ArrayType(DType::int32, {2, 6, 4, 8});
  CHECK(subject(t) == "q");
  t = types(DType::float32);
  t.bias = ArrayType(DType::float32, {3, 6, 5});
  CHECK(subject(t) == "bias");
  t = types(DType::float32);
  t.dout = ArrayType(DType::float32, {2, 6, 4, 8});
  CHECK(subject(t) == "dout");
}

TEST_CASE("out and lse go together, and with dout") {
  AttentionTypes t = types(DType::float32);
  t.out = ArrayType(DType::float32, {2, 6, 4, 3});
  CHECK_THROWS_AS(AttentionPlan(t, {}), Error);
  t.lse = ArrayType(DType::float32, {2, 4, 6});
  CHECK_THROWS_AS(AttentionPlan(t, {}), Error);
  t.dout = t.out;
  CHECK_NOTHROW(AttentionPlan(t, {}));
}

TEST_CASE("a plan runs on arrays of its types alone, and on them as often as wanted") {
  std::mt19937_64 engine(3);
  const Array q = plain::random(DType::float32, {2, 6, 4, 8}, engine),
              k = plain::random(DType::float32, {2, 5, 2, 8}, engine),
              v = plain::random(DType::float32, {2, 5, 2, 3}, engine);
  const AttentionPlan plan(types(DType::float32), {});
  const AttentionArrays arrays{q.view(), k.view(), v.view()};
  Array out(DType::float32, {2, 6, 4, 3}), lse(DType::float32, {2, 4, 6});
  const Attention expected = attention(q.view(), k.view(), v.view());
  for (int n = 0; n < 2; ++n) {
    std::fill_n(out.data(), out.bytes(), std::byte{1});
    plan.run(arrays, {out.mutable_view(), lse.mutable_view()});
    CHECK(plain::same_bytes(out, expected.out));
    CHECK(plain::same_bytes(lse, expected.lse));
  }
  CHECK_THROWS_AS(plan.run(arrays, {out.mutable_view()}), Error);
  CHECK_THROWS_AS(plan.run(arrays, {lse.mutable_view(), out.mutable_view()}), Error);
  AttentionArrays other = arrays;
  other.k = v.view();
  CHECK_THROWS_WITH(plan.run(other, {out.mutable_view(), lse.mutable_view()}),
                    "k is float32 (2, 5, 2, 3); it was planned as float32 (2, 5, 2, 8)");
  other = arrays;
  other.bias = q.view();
  CHECK_THROWS_AS(plan.run(other, {out.mutable_view(), lse.mutable_view()}), Error);
}

TEST_CASE("masks are made once for the plan, its run and its check") {
  std::mt19937_64 engine(4);
  const Array q = plain::random(DType::float32, {2, 6, 4, 8}, engine);
  int made = 0;
  AttentionSettings settings;
  HeadMasks part;
  part.batch = 2;
  part.mask = [&](std::int64_t, std::int64_t, std::int64_t queries, std::int64_t keys) {
    ++made;
    return causal_mask(queries, keys);
  };
  settings.masks.push_back(part);
  const AttentionArrays arrays{q.view(), q.view(), q.view(), {}, q.view()};
  const AttentionPlan plan(types_of(arrays), settings);
  CHECK(plan.work_bytes() > 0);
  CHECK(bytes_to_check(plan) > 0);
  CHECK(made == 0);
  CHECK(plan.work().allowed_pairs == 2 * 4 * 21);
  Array dq(DType::float32, q.shape()), dk(DType::float32, q.shape()), dv(DType::float32, q.shape());
  plan.run(arrays, {dq.mutable_view(), dk.mutable_view(), dv.mutable_view()});
  CHECK(check_results(plan, arrays, {dq.view(), dk.view(), dv.view()}).passed());
  CHECK(made == 2);
}

TEST_CASE("axes of arrays without elements are bounded where loops run over them") {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  const auto plan_of = [](AttentionLayout layout, const Shape& shape) {
    AttentionTypes t;
    t.q = t.k = t.v = t.dout = ArrayType(DType::float32, shape);
    AttentionSettings settings;
    settings.layout = layout;
    return AttentionPlan(t, settings);
  };
  for (const AttentionLayout layout : {AttentionLayout::bshd, AttentionLayout::bhsd})
    for (const Shape& shape : {Shape{kMany, 0, 2, 8}, Shape{kMany, 2, 0, 8}, Shape{1, kMany, 0, 8},
                               Shape{1, 0, kMany, 8}, Shape{0, kMany, 2, 8}, Shape{0, 2, kMany, 8}}) {
      CAPTURE(to_string(shape));
      std::int64_t rows = 0;
      try {
        rows = plan_of(layout, shape).work().rows;
      } catch (const Error& e) {
        CHECK(e.kind() == Error::Kind::input);
      }
      CHECK(rows == 0);
    }
  CHECK(plan_of(AttentionLayout::bshd, {3000, 0, 16, 8}).work().problems == 48'000);
}
