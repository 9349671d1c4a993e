// Decode path: the results of the reference, and the same bits on any number of threads, for any strides and
// any contents of masked elements.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/division.hpp"
#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "ejk/program/attention_ranks.hpp"
#include "support/instruction_sets.hpp"
#include "support/random_attention.hpp"
#include "support/reference_attention.hpp"
#include "support/threads.hpp"

using namespace ejk;

namespace {

struct Back {
  ~Back() { kernels::force(nullptr); }
};

struct Decode {
  Array q, k, v, bias;
  AttentionOptions options;
};

struct Sizes {
  std::int64_t batch = 1, kv_heads = 1, group = 1, queries = 1, keys = 1, size = 8, value_size = 8;
};

Decode decode(plain::Random& random, AttentionLayout layout, DType dtype, const Sizes& s) {
  Decode d;
  d.options.layout = layout;
  const auto make = [&](std::int64_t length, std::int64_t heads, std::int64_t size) {
    Shape shape{s.batch, length, heads, size};
    if (layout == AttentionLayout::bhsd) std::swap(shape[1], shape[2]);
    if (layout == AttentionLayout::thd) shape.erase(shape.begin());
    return plain::random(dtype, shape, random);
  };
  d.q = make(s.queries, s.kv_heads * s.group, s.size);
  d.k = make(s.keys, s.kv_heads, s.size);
  d.v = make(s.keys, s.kv_heads, s.value_size);
  return d;
}

// Elements in memory that are read in boxes alone.
class Boxed final : public ForwardingSource {
 public:
  explicit Boxed(const Array& array)
      : ForwardingSource(make_source(array.view()), {array.dtype(), array.shape()},
                         ArrayAccess(ArrayAccess::Order::any)) {}
};

// Keys and values as sources, where the plan takes them, give the same bits.
void check_boxes(const Decode& d, const Attention& expected) {
  const AttentionArrays all{d.q.view(), d.k.view(), d.v.view(), d.options.bias};
  const AttentionPlan plan(types_of(all), d.options);
  if (!plan.boxes_keys()) return;
  const Boxed k(d.k), v(d.v);
  Array out(expected.out.dtype(), expected.out.shape()), lse(expected.lse.dtype(), expected.lse.shape());
  plan.run({.q = d.q.view(), .bias = d.options.bias}, k, v, {out.mutable_view(), lse.mutable_view()});
  CHECK(plain::same_bytes(out, expected.out));
  CHECK(plain::same_bytes(lse, expected.lse));
}

Attention made(const Decode& d) {
  Attention result = attention(d.q.view(), d.k.view(), d.v.view(), d.options);
  check_boxes(d, result);
  return result;
}

// By definition, in float64; and the same bits on any number of threads and for any strides.
void check(const Decode& d) {
  const Threads one(1);
  const Attention got = made(d);
  const auto expected = plain::reference_attention(d.q.view(), d.k.view(), d.v.view(), d.options);
  const DType arithmetic = d.q.dtype() == DType::float64 ? DType::float64 : DType::float32;
  CHECK(plain::out_far_from(got.out, plain::doubles(expected.out.view()), plain::doubles(d.v.view()),
                            arithmetic) == "");
  CHECK(plain::lse_far_from(got.lse, plain::doubles(expected.lse.view()), arithmetic) == "");
  for (const int count : {2, 7}) {
    const Threads threads(count);
    const plain::Laid q(d.q, count % 4), k(d.k, (count + 1) % 4), v(d.v, 1);
    const Attention strided = attention(q.view(), k.view(), v.view(), d.options), other = made(d);
    CHECK(plain::same_bytes(got.out, strided.out));
    CHECK(plain::same_bytes(got.lse, strided.lse));
    CHECK(plain::same_bytes(got.out, other.out));
    CHECK(plain::same_bytes(got.lse, other.lse));
  }
}

HeadMasks masks_of(std::int64_t heads,
                   const std::function<Mask(std::int64_t, std::int64_t, std::int64_t)>& f) {
  HeadMasks masks;
  masks.heads = heads;
  masks.mask = [f](std::int64_t, std::int64_t head, std::int64_t q, std::int64_t kv) {
    return f(head, q, kv);
  };
  return masks;
}

// A mask of elements drawn at random, with long empty stretches.
Mask stored(std::int64_t seed, std::int64_t queries, std::int64_t keys) {
  plain::Random random(static_cast<std::uint64_t>(seed));
  Array elements(DType::boolean, {queries, keys});
  std::int64_t left = 0;
  bool empty = false;
  for (bool& element : elements.elements<bool>()) {
    if (left-- == 0) left = plain::between(random, 1, 700), empty = plain::between(random, 0, 1) == 0;
    element = !empty && plain::between(random, 0, 2) > 0;
  }
  return array_mask(make_source(std::move(elements), "mask"));
}

bool sees_key(const Mask& mask, std::int64_t query, std::int64_t key) {
  bool sees = false;
  mask.read(query, query + 1, key, key + 1, &sees);
  return sees;
}

constexpr AttentionLayout kLayouts[] = {AttentionLayout::bshd, AttentionLayout::bhsd};

}  // namespace

TEST_CASE("few queries over any number of keys, for all instruction sets") {
  const Back back;
  int n = 0;
  for (const kernels::Kernels* set : ::test::instruction_sets()) {
    kernels::force(set);
    CAPTURE(std::string(set->name));
    plain::Random random(51);
    for (const DType dtype : plain::kFloats)
      for (const std::int64_t keys : {1, 128, 1100}) {
        Sizes s;
        s.batch = 1 + n % 2, s.kv_heads = 2 - n % 2, s.keys = keys;
        s.group = n % 3 == 0 ? 1 : n % 3 == 1 ? 4 : 8;
        s.queries = n % 4 == 0 ? 1 : n % 4 == 1 ? 2 : n % 4 == 2 ? 4 : 3;
        s.size = n % 2 == 0 ? 16 : 19;
        s.value_size = n % 5 == 0 ? 96 : n % 5 == 1 ? 0 : 10;
        CAPTURE(n);
        Decode d = decode(random, kLayouts[n % 2], dtype, s);
        if (n % 3 == 2) d.options.softcap = 1.5;
        if (n % 7 == 3) {
          d.bias = plain::random(DType::float32, {1, s.kv_heads * s.group, 1, keys}, random);
          for (float& b : d.bias.elements<float>())
            if (plain::between(random, 0, 5) == 0) b = -std::numeric_limits<float>::infinity();
          d.options.bias = d.bias.view();
        }
        ++n;
        check(d);
      }
  }
}

TEST_CASE("few queries under masks") {
  plain::Random random(52);
  for (int n = 0; n < 18; ++n) {
    CAPTURE(n);
    Sizes s;
    s.kv_heads = 2, s.group = n % 2 == 0 ? 4 : 1, s.queries = plain::between(random, 1, 4);
    s.keys = plain::between(random, 1, 3000);
    Decode d = decode(random, kLayouts[n % 2], plain::kFloats[static_cast<std::size_t>(n) % 4], s);
    const std::int64_t heads = s.kv_heads * s.group;
    switch (n % 6) {
      case 0:
        d.options.masks.push_back(
            masks_of(1, [](auto, std::int64_t q, std::int64_t kv) { return causal_mask(q, kv, kv - q); }));
        break;
      case 1:  // a window of each head's own, which for some is empty
        d.options.masks.push_back(masks_of(heads, [](std::int64_t head, std::int64_t q, std::int64_t kv) {
          return local_mask(q, kv, 300 * head, 0, kv - q - 500 * head);
        }));
        break;
      case 2:
        d.options.masks.push_back(
            masks_of(1, [n](auto, std::int64_t q, std::int64_t kv) { return stored(n, q, kv); }));
        break;
      case 3:
        d.options.masks.push_back(masks_of(heads, [n](std::int64_t head, std::int64_t q, std::int64_t kv) {
          return stored(10 * n + head, q, kv);
        }));
        break;
      case 4: {
        std::vector<std::int64_t> q_ids(static_cast<std::size_t>(s.queries)),
            kv_ids(static_cast<std::size_t>(s.keys));
        for (std::int64_t& id : q_ids) id = plain::between(random, 0, 2);
        for (std::size_t j = 0; j < kv_ids.size(); ++j) kv_ids[j] = static_cast<std::int64_t>(j) / 900 % 3;
        d.options.q_segment_ids = plain::integers(q_ids, {1, s.queries}, "q_ids");
        d.options.kv_segment_ids = plain::integers(kv_ids, {1, s.keys}, "kv_ids");
        break;
      }
      default:
        d.options.block = BlockShape{plain::between(random, 1, 9), plain::between(random, 1, 300)};
        d.options.masks.push_back(masks_of(
            1, [n](auto, std::int64_t q, std::int64_t kv) { return causal_mask(q, kv) | stored(n, q, kv); }));
    }
    check(d);
  }
}

TEST_CASE("key heads that lie side by side in a token, which are gone through together") {
  const Back back;
  plain::Random random(57);
  std::size_t n = 0;
  for (const kernels::Kernels* set : ::test::instruction_sets()) {
    kernels::force(set);
    CAPTURE(std::string(set->name));
    for (const std::int64_t kv_heads : {5, 8})
      for (const bool masked : {false, true}) {
        const DType dtype = plain::between(random, 0, 1) == 0
                                ? DType::float32
                                : plain::kFloats[static_cast<std::size_t>(plain::between(random, 0, 3))];
        CAPTURE(n);
        ++n;
        // On one thread a task has all heads; on two it has two of five, the last one, or four of eight; on
        // seven one.
        Sizes s;
        s.batch = 2, s.kv_heads = kv_heads, s.keys = plain::between(random, 1025, 1100);
        s.group = plain::between(random, 1, 4), s.queries = kv_heads == 8 ? 4 : plain::between(random, 1, 3);
        s.size = plain::between(random, 15, 17), s.value_size = 16 * plain::between(random, 1, 3);
        Decode d = decode(random, AttentionLayout::bshd, dtype, s);
        if (masked)
          d.options.masks.push_back(masks_of(
              kv_heads * s.group,
              [](std::int64_t head, std::int64_t q, std::int64_t kv) { return stored(head, q, kv); }));
        check(d);
        if (dtype != DType::float32) continue;

        // A value that is infinite makes one element of the rows that see it infinite, and no other.
        const Threads one(1);
        const Attention clean = made(d);
        const std::int64_t spoilt = plain::between(random, 0, kv_heads - 1);
        d.v.elements<float>()[static_cast<std::size_t>((700 * kv_heads + spoilt) * s.value_size)] =
            std::numeric_limits<float>::infinity();
        const Attention got = made(d);
        const plain::Laid v(d.v, 2);
        CHECK(plain::same_bytes(attention(d.q.view(), d.k.view(), v.view(), d.options).out, got.out));
        const auto was = plain::doubles(clean.out.view()), is = plain::doubles(got.out.view());
        const std::int64_t heads = kv_heads * s.group;
        bool right = true;
        for (std::int64_t i = 0; i < std::ssize(was); ++i) {
          const std::int64_t head = i / s.value_size % heads, query = i / s.value_size / heads;
          const bool sees = query < s.queries && head / s.group == spoilt && i % s.value_size == 0 &&
                            (!masked || sees_key(stored(head, s.queries, s.keys), query, 700));
          const auto at = static_cast<std::size_t>(i);
          right = right && is[at] == (sees ? plain::kInfinity : was[at]);
        }
        CHECK(right);
      }
  }
}

TEST_CASE("few queries of so many heads on a key head that these are several tasks") {
  plain::Random random(59);
  for (const DType dtype : plain::kFloats)
    for (const bool masked : {false, true}) {
      Sizes s;
      // 280 rows are three tasks of up to 32 heads, and their runs are of 2,048 keys.
      s.kv_heads = masked ? 2 : 1, s.group = masked ? 36 : 70, s.queries = 4, s.keys = 2300, s.size = 9;
      Decode d = decode(random, kLayouts[masked ? 0 : 1], dtype, s);
      if (masked)
        d.options.masks.push_back(
            masks_of(s.kv_heads * s.group,
                     [](std::int64_t head, std::int64_t q, std::int64_t kv) { return stored(head, q, kv); }));
      check(d);
    }
}

TEST_CASE("a value that is infinite spoils the rows that see it, in the task that has them") {
  plain::Random random(60);
  // 272 rows of a key head are three tasks: of 7, 7 and 2 heads.
  Sizes s;
  s.group = 16, s.queries = 17, s.keys = 2300, s.size = 12, s.value_size = 16;
  Decode d = decode(random, AttentionLayout::bhsd, DType::float32, s);
  const auto mask_of = [](std::int64_t head) { return stored(head, 17, 2300); };
  d.options.masks.push_back(masks_of(16, [&](std::int64_t head, auto, auto) { return mask_of(head); }));
  const auto was = plain::doubles(made(d).out.view());
  d.v.elements<float>()[700 * 16] = std::numeric_limits<float>::infinity();
  const Attention got = made(d);
  {
    const Threads threads(7);
    CHECK(plain::same_bytes(made(d).out, got.out));
  }
  const auto is = plain::doubles(got.out.view());
  bool right = true;
  for (std::int64_t i = 0; i < std::ssize(was); ++i) {
    const std::int64_t query = i / 16 % 17, head = i / 16 / 17;
    const bool sees = i % 16 == 0 && sees_key(mask_of(head), query, 700);
    const auto at = static_cast<std::size_t>(i);
    right = right && is[at] == (sees ? plain::kInfinity : was[at]);
  }
  CHECK(right);
}

TEST_CASE("packed sequences whose queries are several tasks, one, part of one, or too many") {
  plain::Random random(61);
  const std::vector<std::int64_t> q_cu{0, 1, 18, 50, 83, 83, 99, 116},
      kv_cu{0, 1500, 4000, 4300, 4400, 4500, 4532, 7000};
  for (const DType dtype : plain::kFloats) {
    Sizes s;
    s.kv_heads = 2, s.group = 16, s.queries = q_cu.back(), s.keys = kv_cu.back();
    Decode d = decode(random, AttentionLayout::thd, dtype, s);
    d.options.cu_seqlens_q = plain::integers(q_cu, {std::ssize(q_cu)}, "cu_q");
    d.options.cu_seqlens_kv = plain::integers(kv_cu, {std::ssize(kv_cu)}, "cu_kv");
    d.options.masks.push_back(
        masks_of(1, [](auto, std::int64_t q, std::int64_t kv) { return causal_mask(q, kv, kv - q); }));
    check(d);
  }
}

TEST_CASE("few queries over very many keys") {
  plain::Random random(53);
  Sizes s;
  s.group = 2, s.keys = 70'000, s.size = 16, s.value_size = 32;
  check(decode(random, AttentionLayout::bhsd, DType::bfloat16, s));
}

TEST_CASE("packed sequences, with few queries and with many") {
  plain::Random random(54);
  const std::vector<std::int64_t> q_cu{0, 1, 1, 5, 65, 66, 76}, kv_cu{0, 1500, 1600, 1600, 1900, 3000, 3010};
  for (const DType dtype : plain::kFloats) {
    Sizes s;
    s.kv_heads = 2, s.group = 3, s.queries = q_cu.back(), s.keys = kv_cu.back();
    Decode d = decode(random, AttentionLayout::thd, dtype, s);
    d.options.cu_seqlens_q = plain::integers(q_cu, {7}, "cu_q");
    d.options.cu_seqlens_kv = plain::integers(kv_cu, {7}, "cu_kv");
    check(d);
    d.options.masks.push_back(
        masks_of(1, [](auto, std::int64_t q, std::int64_t kv) { return causal_mask(q, kv, kv - q); }));
    check(d);
  }
}

TEST_CASE("what hidden keys and values hold does not matter to few queries, and what others hold does") {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  plain::Random random(55);
  for (const std::int64_t value_size : {32, 5}) {
    Sizes s;
    s.group = 2, s.queries = 2, s.keys = 2100, s.size = 16, s.value_size = value_size;
    Decode d = decode(random, AttentionLayout::bhsd, DType::float32, s);
    // Query 0 of both heads sees no keys from 1,500 on, and query 1 none from 2,000 on.
    d.options.masks.push_back(masks_of(1, [](auto, std::int64_t q, std::int64_t kv) {
      std::vector<bool> sees;
      Array elements(DType::boolean, {q, kv});
      for (std::int64_t i = 0; i < q; ++i)
        for (std::int64_t j = 0; j < kv; ++j)
          elements.elements<bool>()[static_cast<std::size_t>(i * kv + j)] = j < (i == 0 ? 1500 : 2000);
      return array_mask(make_source(std::move(elements), "mask"));
    }));
    const Attention clean = made(d);
    const auto spoil = [&](std::int64_t key, float value) {
      for (std::int64_t e = 0; e < value_size; e += 3)
        d.v.elements<float>()[static_cast<std::size_t>(key * value_size + e)] = value;
    };
    for (std::int64_t key = 2000; key < 2100; ++key) {
      spoil(key, key % 2 == 0 ? nan : infinity);
      d.k.elements<float>()[static_cast<std::size_t>(key * 16)] = nan;
    }
    const Attention hidden = made(d);
    CHECK(plain::same_bytes(hidden.out, clean.out));
    CHECK(plain::same_bytes(hidden.lse, clean.lse));

    spoil(1700, infinity);  // query 1 alone
    const Attention got = made(d);
    CHECK(plain::same_bytes(got.lse, clean.lse));
    const auto out = plain::doubles(got.out.view()), was = plain::doubles(clean.out.view());
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t e = 0; e < value_size; ++e) {
        const auto first = static_cast<std::size_t>(2 * head * value_size + e),
                   second = first + static_cast<std::size_t>(value_size);
        CHECK(out[first] == was[first]);
        CHECK(out[second] == (e % 3 == 0 ? plain::kInfinity : was[second]));
      }

    d.k.elements<float>()[1700 * 16] = nan;  // a score that is NaN makes the row NaN
    const Attention lost = made(d);
    CHECK(lost.work.rows_not_finite == 2);
    CHECK(lost.work.first_row_not_finite == Shape{0, 0, 1});
    CHECK(std::isnan(plain::doubles(lost.out.view())[static_cast<std::size_t>(value_size)]));
    CHECK(plain::doubles(lost.out.view())[0] == was[0]);
  }
}

TEST_CASE("ranks that share a key head compute the rows that one computes") {
  plain::Random random(56);
  for (const DType dtype : plain::kFloats)
    for (const bool several : {false, true}) {
      Sizes s;
      s.kv_heads = 2, s.group = 4, s.keys = 2300, s.size = 12, s.value_size = 7;
      s.queries = several ? 3 : 4;  // 12 rows are multiplied row by row, 16 in panels
      // Or those of a key head are several tasks, of which a rank has parts.
      if (!several && dtype == DType::float64) s.kv_heads = 1, s.group = 16, s.queries = 17;
      if (several) s.kv_heads = 4, s.keys = 4200;  // so many tasks that a rank's have several heads
      Decode d = decode(random, several ? AttentionLayout::bshd : AttentionLayout::bhsd, dtype, s);
      d.options.masks.push_back(
          masks_of(several ? s.kv_heads * s.group : 1,
                   [](std::int64_t head, std::int64_t q, std::int64_t kv) { return stored(head, q, kv); }));
      // Some values that only some rows see.
      if (dtype == DType::float32)
        for (float& x : d.v.elements<float>())
          if (plain::between(random, 0, 3000) == 0) x = std::numeric_limits<float>::infinity();
      const AttentionArrays arrays{d.q.view(), d.k.view(), d.v.view()};
      const AttentionPlan plan(types_of(arrays), d.options);
      Array out(plan.results()[0].type.dtype, plan.results()[0].type.shape),
          lse(plan.results()[1].type.dtype, plan.results()[1].type.shape);
      const std::vector<MutableArrayView> whole{out.mutable_view(), lse.mutable_view()};
      plan.run(arrays, whole);
      for (const std::int64_t ranks : {3, 5, 8}) {
        const AttentionDivision division(plan, ranks);
        for (std::int64_t m = 0; m < ranks; ++m)
          for (const AttentionPart& part : division.parts(m)) {
            const auto makes = division.makes(part);
            Array some_out(out.dtype(), makes[0]->count), some_lse(lse.dtype(), makes[1]->count);
            const auto needs = division.needs(part);
            const Array q = Array::copy_of(box_of(*arrays.q, *needs.q)),
                        k = Array::copy_of(box_of(*arrays.k, *needs.k)),
                        v = Array::copy_of(box_of(*arrays.v, *needs.v));
            Communicator& comm = single_process();
            AttentionRank one(AttentionDivision(plan, 1), comm);
            one.run(part, {q.view(), k.view(), v.view()}, {some_out.mutable_view(), some_lse.mutable_view()});
            CHECK(plain::same_bytes(some_out, Array::copy_of(box_of(out.view(), *makes[0]))));
            CHECK(plain::same_bytes(some_lse, Array::copy_of(box_of(lse.view(), *makes[1]))));
          }
      }
    }
}

TEST_CASE("key heads without query heads: no result, and gradients of 0") {
  plain::Random random(58);
  for (const AttentionLayout layout : kLayouts) {
    Sizes s;
    s.kv_heads = 2, s.group = 0, s.keys = 5;
    const Decode d = decode(random, layout, DType::float32, s);
    const Attention none = made(d);
    CHECK(none.out.size() == 0);
    CHECK(check_attention(d.q.view(), d.k.view(), d.v.view(), d.options, none.out.view(), none.lse.view())
              .passed());
    const Array dout(d.q.dtype(), d.q.shape());
    const AttentionGradients got = attention_grad(d.q.view(), d.k.view(), d.v.view(), dout.view(), d.options);
    CHECK(check_attention_grad(d.q.view(), d.k.view(), d.v.view(), dout.view(), d.options, got.dq.view(),
                               got.dk.view(), got.dv.view())
              .passed());
    CHECK(got.dk.shape() == d.k.shape());
    for (const Array* of : {&got.dk, &got.dv})
      CHECK(std::all_of(of->elements<float>().begin(), of->elements<float>().end(),
                        [](float x) { return x == 0; }));
  }
}

TEST_CASE("the memory of what runs of keys have is planned") {
  const ArrayType q(DType::float32, {1, 8, 1, 64}), kv(DType::float32, {1, 2, 1 << 20, 64});
  AttentionSettings settings;
  settings.layout = AttentionLayout::bhsd;
  const AttentionPlan plan({q, kv, kv}, settings);
  // 1,024 runs, of each of 8 rows 64 values, a largest score and a total.
  CHECK(plan.work_bytes() >= 1024 * 8 * 66 * 4);
  CHECK(plan.work_bytes() <= 1024 * 8 * 80 * 4 + 8e6 * threads());
}
