// Forward pass: golden cases, random problems against the reference, masked elements, errors.
#include "ejk/attention.hpp"

#include <array>
#include <atomic>
#include <cmath>

#include "ejk/attention_check.hpp"
#include "support/golden_attention.hpp"
#include "support/instruction_sets.hpp"
#include "support/random_attention.hpp"
#include "support/reference_attention.hpp"
#include "support/shell.hpp"
#include "support/threads.hpp"

using namespace ejk;

TEST_CASE("attention gives the golden results") {
  int cases = 0;
  for (const golden::Case& c : golden::load("attention")) {
    CAPTURE(c.name);
    AttentionOptions options = golden::attention_options(c);
    const ArrayView q = c.in.at("q").view(), k = c.in.at("k").view(), v = c.in.at("v").view();
    if (c.is_error) {
      CHECK_THROWS_AS(attention(q, k, v, options), Error);
      continue;
    }
    for (const auto& block : {std::optional<BlockShape>(), std::optional<BlockShape>({3, 5})}) {
      ++cases;
      options.block = block;
      const Attention got = attention(q, k, v, options);
      CHECK(got.out.dtype() == q.dtype);
      CHECK(got.lse.dtype() == golden::arithmetic_of(c));
      CHECK(golden::forward_difference(c, got.out, got.lse) == "");
    }
  }
  CHECK(cases > 60);
}

TEST_CASE("random attention equals its plain form in float64") {
  plain::Random random(1);
  std::int64_t rows_without_key = 0;
  for (int n = 0; n < 200; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    const Attention got = attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    const auto expected = plain::reference_attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    const auto lse = plain::doubles(expected.lse.view());
    CHECK(plain::out_far_from(got.out, plain::doubles(expected.out.view()), r->values(r->v), r->arithmetic) ==
          "");
    CHECK(plain::lse_far_from(got.lse, lse, r->arithmetic) == "");

    // The counts are those of the definition.
    std::int64_t allowed = 0;
    for (std::int64_t b = 0; b < r->batch; ++b)
      for (std::int64_t h = 0; h < r->heads; ++h)
        for (std::int64_t i = 0; i < r->q_length; ++i)
          for (std::int64_t j = 0; j < r->kv_length; ++j) allowed += r->allowed(b, h, i, j);
    AttentionOptions without_sinks = r->options;
    without_sinks.sinks = nullptr;
    const auto of_keys = plain::doubles(
        plain::reference_attention(r->q.view(), r->k.view(), r->v.view(), without_sinks).lse.view());
    const std::int64_t without =
        std::count(of_keys.begin(), of_keys.end(), -plain::kInfinity) - r->heads * r->padding;
    CHECK(got.work.allowed_pairs == allowed);
    CHECK(got.work.rows == r->batch * r->heads * (r->q_length - r->padding));
    CHECK(got.work.rows_without_key == without);
    CHECK(got.work.first_row_without_key.empty() == (without == 0));
    CHECK(got.work.computed_pairs >= allowed);
    CHECK(got.work.dense_pairs >= got.work.computed_pairs);
    rows_without_key += without;
    const AttentionWork planned =
        AttentionPlan(types_of({r->q.view(), r->k.view(), r->v.view(), r->options.bias}), r->options).work();
    CHECK(planned.allowed_pairs == allowed);
    CHECK(planned.rows_without_key <= without);
  }
  CHECK(rows_without_key > 1000);
}

TEST_CASE("weights in three bfloat16 give what float32 gives") {
  // As where products of bfloat16 are very fast; here any unit for them will do.
  const kernels::Kernels* unit = nullptr;
  for (const kernels::Kernels* row : ::test::instruction_sets())
    if (row->products.bf16 != nullptr) unit = row;
  if (unit == nullptr) return;
  // The same instruction set takes both ways.
  kernels::Kernels slow = *unit, fast = *unit;
  slow.products.bf16_rate = 1;
  fast.products.bf16_rate = 16;
  plain::Random random(5);
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::bfloat16});
    r->options.dtype = DType::float32;
    kernels::force(&slow);
    const Attention usual = attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    kernels::force(&fast);
    const Attention got = attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    kernels::force(nullptr);
    // Sums of weights may be in another order.
    CHECK(plain::far_from(plain::doubles(got.lse.view()), plain::doubles(usual.lse.view()), 1e-6, 1e-6) ==
          "");
    CHECK(plain::far_from(plain::doubles(got.out.view()), plain::doubles(usual.out.view()), 2e-6, 1e-5) ==
          "");
  }
}

TEST_CASE("a row without a key gives 0 and -inf, however the mask was given") {
  std::mt19937_64 engine(3);
  const Array q = plain::random(DType::float32, {1, 3, 1, 4}, engine),
              k = plain::random(DType::float32, {1, 5, 1, 4}, engine),
              v = plain::random(DType::float32, {1, 5, 1, 4}, engine),
              dout = plain::random(DType::float32, {1, 3, 1, 4}, engine);
  const double hidden[] = {-plain::kInfinity, -1e9, -1e4};
  const auto check = [&](const AttentionOptions& options) {
    const Attention got = attention(q.view(), k.view(), v.view(), options);
    const auto out = plain::doubles(got.out.view()), lse = plain::doubles(got.lse.view());
    for (int d = 0; d < 4; ++d) CHECK(out[static_cast<std::size_t>(4 + d)] == 0);
    CHECK(lse[1] == -plain::kInfinity);
    for (const double value : out) CHECK(std::isfinite(value));
    CHECK(std::isfinite(lse[0]));
    CHECK(got.work.rows_without_key == 1);
    CHECK(got.work.first_row_without_key == Shape{0, 0, 1});
    const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
    for (const Array* array : {&g.dq, &g.dk, &g.dv})
      for (const double value : plain::doubles(array->view())) CHECK(std::isfinite(value));
    for (int d = 0; d < 4; ++d) CHECK(plain::doubles(g.dq.view())[static_cast<std::size_t>(4 + d)] == 0);
  };
  std::vector<double> additive(15);
  for (const double value : hidden) {
    std::fill(additive.begin() + 5, additive.begin() + 10, value);
    AttentionOptions options;
    options.masks.push_back(
        head_masks(make_source(plain::array_of(DType::float32, {3, 5}, additive), "m"), Polarity::additive));
    check(options);
  }
  std::fill(additive.begin() + 5, additive.begin() + 10, std::numeric_limits<float>::lowest());
  AttentionOptions lowest;
  lowest.masks.push_back(
      head_masks(make_source(plain::array_of(DType::float32, {3, 5}, additive), "m"), Polarity::additive));
  check(lowest);
  Array keep(DType::boolean, {1, 1, 3, 5}), drop(DType::int64, {1, 3, 5});
  for (std::size_t i = 0; i < 15; ++i) {
    keep.elements<bool>()[i] = i < 5 || i >= 10;
    drop.elements<std::int64_t>()[i] = i < 5 || i >= 10 ? 0 : 7;
  }
  AttentionOptions of_bools, of_integers;
  of_bools.masks.push_back(head_masks(make_source(keep.view(), "m")));
  check(of_bools);
  of_integers.masks.push_back(head_masks(make_source(drop.view(), "m"), Polarity::drop));
  check(of_integers);
  const std::vector<double> bias(5, -plain::kInfinity);
  std::vector<double> whole(15);
  std::copy(bias.begin(), bias.end(), whole.begin() + 5);
  const Array by_bias = plain::array_of(DType::float32, {3, 5}, whole);
  AttentionOptions biased;
  biased.bias = by_bias.view();
  check(biased);
  // As a bias, a large negative number is a number: the row attends to all of its keys.
  const Array large = plain::array_of(DType::float32, {3, 5}, std::vector<double>(15, -1e9));
  biased.bias = large.view();
  const Attention shifted = attention(q.view(), k.view(), v.view(), biased);
  for (const double value : plain::doubles(shifted.out.view())) CHECK(std::isfinite(value));
  CHECK(shifted.work.rows_without_key == 0);
}

TEST_CASE("what stands in hidden places does not matter") {
  plain::Random random(4);
  for (int n = 0; n < 20; ++n) {
    std::mt19937_64 engine(random());
    const std::int64_t length = 21, real = plain::between(random, 1, 20);
    Array q = plain::random(DType::float32, {1, length, 2, 5}, engine),
          k = plain::random(DType::float32, {1, length, 2, 5}, engine),
          v = plain::random(DType::float32, {1, length, 2, 5}, engine),
          dout = plain::random(DType::float32, {1, length, 2, 5}, engine);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(length), 1);
    std::fill(ids.begin() + real, ids.end(), 0);
    AttentionOptions options;
    options.q_segment_ids = plain::integers(ids, {1, length}, "ids");
    if (n % 2 == 0) options.block = BlockShape{4, 6};
    const Attention clean = attention(q.view(), k.view(), v.view(), options);
    const AttentionGradients clean_grad = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
    for (Array* array : {&q, &k, &v, &dout})
      for (std::int64_t i = real * 10; i < array->size(); ++i)
        array->elements<float>()[static_cast<std::size_t>(i)] =
            i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    const Attention got = attention(q.view(), k.view(), v.view(), options);
    CHECK(plain::same_bytes(got.out, clean.out));
    CHECK(plain::same_bytes(got.lse, clean.lse));
    const AttentionGradients grad = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
    CHECK(plain::same_bytes(grad.dq, clean_grad.dq));
    CHECK(plain::same_bytes(grad.dk, clean_grad.dk));
    CHECK(plain::same_bytes(grad.dv, clean_grad.dv));
  }
}

TEST_CASE("NaN and infinities that are attended to are not swallowed") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Array q = plain::filled(DType::float32, {1, 2, 1, 2}, 1),
              v = plain::filled(DType::float32, {1, 2, 1, 2}, 1);
  const Array k = plain::array_of(DType::float32, {1, 2, 1, 2}, {1, 1, nan, 1});
  AttentionOptions options;
  options.masks.push_back(head_masks({causal_mask(2, 2)}));
  const Attention got = attention(q.view(), k.view(), v.view(), options);
  CHECK(plain::doubles(got.out.view())[0] == 1);
  CHECK(std::isnan(plain::doubles(got.out.view())[2]));
  CHECK(std::isnan(plain::doubles(got.lse.view())[1]));
  CHECK(got.work.rows_not_finite == 1);
  CHECK(got.work.first_row_not_finite == Shape{0, 0, 1});
  CHECK(describe(got.work).warnings.back() ==
        "1 of 2 queries have scores that are NaN or infinite, and so are their results: the first is (entry, "
        "head, query) (0, 0, 1)");
  CHECK(got.work.rows_without_key == 0);
}

TEST_CASE("blocks that the mask empties are counted and not computed") {
  const Array q(DType::float32, {1, 1024, 1, 2}), v(DType::float32, {1, 1024, 1, 2});
  AttentionOptions options;
  options.masks.push_back(head_masks({local_mask(1024, 1024, 0, 0)}));
  options.block = BlockShape{128, 128};
  const AttentionWork work = attention(q.view(), q.view(), v.view(), options).work;
  CHECK(work.empty_blocks == 56);
  CHECK(work.partial_blocks == 8);
  CHECK(work.computed_pairs == 8 * 128 * 128);
  CHECK(work.allowed_pairs == 1024);
  CHECK(work.forward_flop == 2.0 * 4 * 1024);
  CHECK_FALSE(work.backward_flop);  // of gradients alone
}

TEST_CASE("lengths of 0 are no errors") {
  const auto none = [](std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
    return Array(DType::float32, {b, s, h, d});
  };
  const Attention no_batch =
      attention(none(0, 3, 2, 4).view(), none(0, 3, 2, 4).view(), none(0, 3, 2, 4).view());
  CHECK(no_batch.out.shape() == Shape{0, 3, 2, 4});
  CHECK(no_batch.lse.shape() == Shape{0, 2, 3});
  const Attention no_key =
      attention(none(1, 3, 2, 4).view(), none(1, 0, 1, 4).view(), none(1, 0, 1, 5).view());
  CHECK(no_key.out.shape() == Shape{1, 3, 2, 5});
  CHECK(no_key.work.rows_without_key == 6);
  const Attention no_query =
      attention(none(1, 0, 2, 4).view(), none(1, 3, 1, 4).view(), none(1, 3, 1, 5).view());
  CHECK(no_query.out.size() == 0);
  const Attention no_head =
      attention(none(1, 3, 0, 4).view(), none(1, 3, 0, 4).view(), none(1, 3, 0, 4).view());
  CHECK(no_head.lse.shape() == Shape{1, 0, 3});
}

TEST_CASE("what does not fit together is said with its numbers") {
  const auto f32 = [](Shape shape) { return Array(DType::float32, std::move(shape)); };
  const Array q = f32({2, 6, 4, 8}), k = f32({2, 5, 2, 8}), v = f32({2, 5, 2, 3});
  const auto said = [&](const Array& a, const Array& b, const Array& c, const AttentionOptions& o = {}) {
    try {
      attention(a.view(), b.view(), c.view(), o);
    } catch (const Error& e) {
      CHECK(e.kind() == Error::Kind::input);
      return e.message() + (e.hint().empty() ? "" : " | " + e.hint());
    }
    return std::string("no error");
  };
  const AttentionOptions none;
  CHECK(said(q, k, v) == "no error");
  CHECK(said(q, f32({3, 5, 2, 8}), f32({3, 5, 2, 3})) == "k has 3 batch entries, q has 2");
  CHECK(said(q, f32({2, 5, 2, 7}), v) == "k has 7 elements a head, q has 8");
  CHECK(said(q, k, f32({2, 4, 2, 3})) == "v has 4 positions, k has 5");
  CHECK(said(q, k, Array(DType::int32, {2, 5, 2, 3})) ==
        "v must be float16, bfloat16, float32 or float64, not int32");
  CHECK(said(f32({1, 2, 1, 0}), f32({1, 2, 1, 0}), f32({1, 2, 1, 1})) ==
        "q and k have heads of size 0: there is nothing to multiply");

  const auto with = [](auto&& set) {
    AttentionOptions o;
    set(o);
    return o;
  };
  CHECK(said(q, k, v, with([](auto& o) { o.softcap = 0.0; })) ==
        "softcap must be a finite number above 0, not 0");
  CHECK(said(q, k, v, with([](auto& o) { o.softcap = 1e39; })) ==
        "softcap 1e+39 is beyond the normal numbers of float32, in which this is computed | float64 inputs "
        "are computed in float64");
  CHECK(said(q, k, v, with([](auto& o) { o.scale = -1e-40; })) ==
        "scale -1e-40 is beyond the normal numbers of float32, in which this is computed | float64 inputs "
        "are computed in float64");
  CHECK(said(q, k, v, with([](auto& o) {
               o.block = BlockShape{1, std::numeric_limits<std::int64_t>::max()};
             })) == "a block of 1 x 9223372036854775807 is longer than any mask, 281474976710656");
  CHECK(said(q, k, v, with([](auto& o) { o.scale = std::nan(""); })) ==
        "scale must be a finite number, not nan");
  CHECK(said(q, k, v, with([](auto& o) {
               o.block = BlockShape{0, 4};
             })) == "a block must have positive lengths, not 0 x 4");
  const Array bias = f32({3, 6, 5});
  CHECK(said(q, k, v, with([&](auto& o) { o.bias = bias.view(); })) ==
        "bias (3, 6, 5) does not broadcast to (batch, heads, queries, keys) = (2, 4, 6, 5)");
  const auto mask = [&](Shape shape) {
    return with(
        [&](auto& o) { o.masks.push_back(head_masks(make_source(Array(DType::boolean, shape), "m.npy"))); });
  };
  CHECK(said(q, k, v, mask({6, 5})) == "no error");
  CHECK(said(q, k, v, mask({2, 1, 6, 5})) == "no error");
  CHECK(said(q, k, v, mask({1, 4, 6, 5})) == "no error");
  CHECK_THROWS_AS(mask({5}), Error);
  const auto ids = [&](Shape shape) {
    return plain::integers(std::vector<std::int64_t>(static_cast<std::size_t>(element_count(shape)), 1),
                           shape, "ids.npy");
  };
  CHECK(said(q, k, v, with([&](auto& o) {
               o.q_segment_ids = ids({2, 6});
             })) == "ids.npy: segment ids of keys are (2, 5), not of shape (2, 6)");
  CHECK(said(q, k, v, with([&](auto& o) {
               o.kv_segment_ids = ids({2, 5});
             })) == "segment ids of keys come with those of queries, which are not given");

  const Array tq = f32({6, 4, 8}), tk = f32({5, 2, 8}), tv = f32({5, 2, 3});
  const auto packed = [&](std::vector<std::int64_t> cu_q, std::vector<std::int64_t> cu_kv) {
    return with([&](auto& o) {
      o.layout = AttentionLayout::thd;
      o.cu_seqlens_q = plain::integers(cu_q, {std::ssize(cu_q)}, "cu_q.npy");
      o.cu_seqlens_kv = plain::integers(cu_kv, {std::ssize(cu_kv)}, "cu_k.npy");
    });
  };
  CHECK(said(tq, tk, tv, packed({0, 2, 6}, {0, 5, 5})) == "no error");
  CHECK(said(tq, tk, tv, packed({0, 2, 6}, {0, 5, 6})) ==
        "cu_k.npy: cu_seqlens ends at 6 (index 2), and k has 5 tokens");
  const auto padded = [&](const std::vector<std::int64_t>& begins_q,
                          const std::vector<std::int64_t>& begins_kv) {
    AttentionOptions o = packed({0, 2, 4}, {0, 3, 3});
    o.cu_seqlens_q_padded = plain::integers(begins_q, {std::ssize(begins_q)}, "at_q.npy");
    o.cu_seqlens_kv_padded = plain::integers(begins_kv, {std::ssize(begins_kv)}, "at_k.npy");
    return o;
  };
  CHECK(said(tq, tk, tv, padded({0, 3, 5}, {0, 3, 5})) == "no error");
  CHECK(said(tq, tk, tv, padded({0, 3, 7}, {0, 3, 5})) ==
        "at_q.npy: padded cu_seqlens ends at 7 (index 2), and q has 6 tokens");
  CHECK(said(tq, tk, tv, padded({0, 1, 6}, {0, 3, 5})) ==
        "at_q.npy: sequence 0 has 1 tokens with its padding, and 2 without by cu_q.npy");
  CHECK(said(tq, tk, tv, padded({0, 3, 6}, {0, 2, 5})) ==
        "at_k.npy: sequence 0 has 2 tokens with its padding, and 3 without by cu_k.npy");
  CHECK(said(tq, tk, tv, padded({0, 6}, {0, 3, 5})) ==
        "at_q.npy: with padding there are 1 sequences, and 2 by cu_q.npy");
  CHECK(said(tq, tk, tv, padded({0, 4, 3}, {0, 3, 5}))
            .starts_with("at_q.npy: cu_seqlens decreases at index 2"));
  CHECK(said(tq, tk, tv, packed({0, 6}, {0, 5, 5})) ==
        "the cu_seqlens of queries have 1 sequences, those of keys 2");
  CHECK(said(tq, tk, tv, with([](auto& o) { o.layout = AttentionLayout::thd; }))
            .starts_with("packed tokens need cu_seqlens"));
  CHECK(said(q, k, v, with([&](auto& o) { o.cu_seqlens_q = ids({3}); }))
            .starts_with("cu_seqlens are for packed tokens, and the layout is bshd"));
}

TEST_CASE("padding of packed sequences is never read") {
  plain::Random random(6);
  int padded = 0;
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    if (!r->options.cu_seqlens_q_padded) continue;
    ++padded;
    const auto compute = [&] {
      Attention a = attention(r->q.view(), r->k.view(), r->v.view(), r->options);
      AttentionGradients g =
          attention_grad(r->q.view(), r->k.view(), r->v.view(), r->dout.view(), r->options);
      return std::array{std::move(a.out), std::move(a.lse), std::move(g.dq), std::move(g.dk),
                        std::move(g.dv)};
    };
    const auto expected = compute();
    const auto fill_padding = [](Array& array, const IntegerArray& cu, const IntegerArray& begins) {
      const auto values_of = [](const IntegerArray& integers) {
        const Array all = read_all(*integers);
        const auto elements = all.elements<std::int64_t>();
        return std::vector<std::int64_t>(elements.begin(), elements.end());
      };
      const auto tokens = plain::tokens_of(values_of(cu), values_of(begins), array.shape()[0]);
      std::vector<double> values = plain::doubles(array.view());
      for (std::size_t v = 0; v < values.size(); ++v)
        if (tokens[v / (values.size() / tokens.size())].sequence < 0) values[v] = std::nan("");
      array = plain::array_of(array.dtype(), array.shape(), values);
    };
    for (Array* array : {&r->q, &r->dout})
      fill_padding(*array, r->options.cu_seqlens_q, r->options.cu_seqlens_q_padded);
    for (Array* array : {&r->k, &r->v})
      fill_padding(*array, r->options.cu_seqlens_kv, r->options.cu_seqlens_kv_padded);
    const auto got = compute();
    for (std::size_t a = 0; a < got.size(); ++a) CHECK(plain::same_bytes(got[a], expected[a]));
  }
  CHECK(padded > 20);
}

TEST_CASE("expressions are masks of each sequence's own lengths") {
  std::mt19937_64 engine(5);
  const Array q = plain::random(DType::float32, {9, 2, 4}, engine),
              k = plain::random(DType::float32, {9, 2, 4}, engine);
  const OpenArray open = [](const std::string& name) -> std::shared_ptr<const ArraySource> {
    throw Error(Error::Kind::input, name);
  };
  AttentionOptions options;
  options.layout = AttentionLayout::thd;
  options.cu_seqlens_q = plain::integers({0, 4, 9}, {3}, "q");
  options.cu_seqlens_kv = plain::integers({0, 6, 9}, {3}, "k");
  options.masks.push_back(
      head_masks({MaskExpression::parse("causal(align=bottom-right)")}, Polarity::keep, open));
  const AttentionWork work = attention(q.view(), k.view(), k.view(), options).work;
  // 4 x 6: 3 + 4 + 5 + 6; 5 x 3: 0 + 0 + 1 + 2 + 3; for two heads.
  CHECK(work.allowed_pairs == 2 * (18 + 6));
  CHECK(work.rows_without_key == 4);
  CHECK(work.first_row_without_key == Shape{1, 0, 0});
  CHECK(work.alignment == std::set<std::string>{"bottom right: the last query at the last key"});
}

TEST_CASE("how a mask lies in memory does not matter, also where one key is left for the last tile") {
  std::mt19937_64 engine(9);
  for (const std::int64_t keys : {17, 130, 257}) {
    const Array q = plain::random(DType::float32, {1, 40, 2, 4}, engine),
                k = plain::random(DType::float32, {1, keys, 2, 4}, engine);
    Array elements(DType::boolean, {40, keys});
    for (bool& e : elements.elements<bool>()) e = engine() % 2 == 0;
    for (const BlockShape block : {BlockShape{16, 16}, BlockShape{64, 3}, BlockShape{64, 256}}) {
      const auto out = [&](const ArrayView& mask) {
        AttentionOptions options;
        options.block = block;
        options.masks.push_back(head_masks({array_mask(make_source(mask, "mask"))}));
        return attention(q.view(), k.view(), k.view(), options).out;
      };
      const Array expected = out(elements.view());
      for (int layout = 1; layout < 4; ++layout) {
        CAPTURE(keys);
        CAPTURE(to_string(block));
        CAPTURE(layout);
        CHECK(plain::same_bytes(out(plain::Laid(elements, layout).view()), expected));
      }
    }
  }
}

TEST_CASE("a mask that is read in order by one thread gives the same bits") {
  class InOrder final : public ArraySource {
   public:
    explicit InOrder(Array array)
        : ArraySource({array.dtype(), array.shape()}, "in order"), array_(std::move(array)) {}
    void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
              void* out) const override {
      CHECK(busy_.fetch_add(1) == 0);
      ArrayView part = array_.view();
      for (std::size_t d = 0; d < count.size(); ++d) {
        part.data += start[d] * part.strides[d];
        part.shape[d] = count[d];
      }
      copy_elements(part, out);
      busy_.fetch_sub(1);
    }

   private:
    Array array_;
    mutable std::atomic<int> busy_{0};
  };
  std::mt19937_64 engine(8);
  const Array q = plain::random(DType::float32, {2, 60, 2, 4}, engine);
  Array elements(DType::boolean, {2, 2, 60, 60});
  for (bool& e : elements.elements<bool>()) e = engine() % 3 == 0;
  AttentionOptions mapped, in_order;
  mapped.block = in_order.block = BlockShape{16, 16};
  mapped.masks.push_back(head_masks(make_source(elements.view(), "mapped")));
  in_order.masks.push_back(head_masks(std::make_shared<InOrder>(Array::copy_of(elements.view()))));
  const Threads threads(4);
  CHECK(plain::same_bytes(attention(q.view(), q.view(), q.view(), mapped).out,
                          attention(q.view(), q.view(), q.view(), in_order).out));
}

TEST_CASE("the planned memory holds for odd blocks") {
  const std::string inputs = "d=$(mktemp -d) && cd $d && \"" EJK_PROGRAM
                             "\" generate attention-inputs --batch 1 --seq 2000 --heads 2 -o x.h5 -q && ";
  const auto number = [](const std::string& json, const std::string& key) {
    const auto result = nlohmann::json::parse(json)["result"];
    return result.contains("stats") ? result["stats"][key].get<double>() : result[key].get<double>();
  };
  for (const char* block :
       {"128x128", "1x1999", "3000x7", "30000x30000", "140737488355328x140737488355328"}) {
    CAPTURE(block);
    const std::string command =
        inputs +
        "\"" EJK_PROGRAM
        "\" attention x.h5:/query x.h5:/key x.h5:/value --mask 'causal & ~local(2,0)' "
        "--threads 4 --json --block " +
        block;
    const auto plan = ejk::test::shell(command + " --dry-run; rm -r $d");
    const auto run = ejk::test::shell(command + " --stats -o out.npz; rm -r $d");
    REQUIRE(plan.status == 0);
    REQUIRE(run.status == 0);
#ifndef __SANITIZE_ADDRESS__  // which takes memory of its own
    // What a program takes that does nothing at all is not planned.
    CHECK(number(run.text, "peak_memory_bytes") <= number(plan.text, "peak_bytes") + 12e6);
#endif
    CHECK(number(plan.text, "peak_bytes") < 100e6);
  }
}

TEST_CASE("progress ends with all pairs") {
  std::mt19937_64 engine(6);
  const Array q = plain::random(DType::float32, {1, 50, 2, 4}, engine);
  std::int64_t last = 0, whole = 0, calls = 0;
  AttentionOptions options;
  options.block = BlockShape{16, 16};
  options.progress = [&](std::int64_t done, std::int64_t all) {
    CHECK(done >= last);
    last = done, whole = all, ++calls;
  };
  attention(q.view(), q.view(), q.view(), options);
  CHECK(last == 5000);
  CHECK(whole == 5000);
  CHECK(calls >= 2);  // each head is a task at least
  last = 0;
  attention_grad(q.view(), q.view(), q.view(), q.view(), options);
  CHECK(last == 15000);
  CHECK(whole == 15000);
}
