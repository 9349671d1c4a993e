// Segment ids to masks and back: golden cases, plain loops, and hashes that all collide.
#include "mask/segment_ids.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>

#include "support/arrays.hpp"
#include "support/golden.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

void check_equal(const Array& got, const golden::Case& c, const std::string& name) {
  CAPTURE(name);
  REQUIRE(c.out.count(name) == 1);
  const Array& expected = c.out.at(name);
  CHECK(name_of(got.dtype()) == name_of(expected.dtype()));
  REQUIRE(to_string(got.shape()) == to_string(expected.shape()));
  CHECK(std::memcmp(got.data(), expected.data(), static_cast<std::size_t>(got.bytes())) == 0);
}

void check_masks(const std::string& family, Convention convention) {
  for (const golden::Case& c : golden::load(family)) {
    CAPTURE(c.name);
    SegmentMaskOptions options;
    options.dtype = *dtype_named(c.params.at("dtype").get<std::string>());
    options.separate = c.params.at("return_separate_masks");
    options.convention = convention;
    const auto q = make_source(c.in.at("q_segment_ids").view(), "q");
    const auto kv =
        c.in.count("kv_segment_ids") == 1 ? make_source(c.in.at("kv_segment_ids").view(), "kv") : q;
    if (c.is_error) {
      CHECK_THROWS_AS(segment_ids_to_mask(*q, *kv, options), Error);
      continue;
    }
    const SegmentMask mask = segment_ids_to_mask(*q, *kv, options);
    check_equal(read_all(*mask.attention_mask), c, "attention_mask");
    CHECK(mask.q_mask.has_value() == (c.out.count("q_mask") == 1));
    if (mask.q_mask) check_equal(*mask.q_mask, c, "q_mask");
    if (mask.kv_mask) check_equal(*mask.kv_mask, c, "kv_mask");
  }
}

void check_ids(const std::string& family, Convention convention) {
  for (const golden::Case& c : golden::load(family)) {
    CAPTURE(c.name);
    SegmentIdsOptions options;
    options.per_head = c.params.at("per_head");
    options.convention = convention;
    const auto mask = make_source(c.in.at("mask").view(), "mask");
    if (c.is_error) {
      CHECK_THROWS_AS(mask_to_segment_ids(mask, options), Error);
      continue;
    }
    const SegmentIds ids = mask_to_segment_ids(mask, options);
    check_equal(ids.q_segment_ids, c, "q_segment_ids");
    check_equal(ids.kv_segment_ids, c, "kv_segment_ids");
  }
}

std::uint64_t hash_of_7(const mask::Word*, std::int64_t) { return 7; }

bool same(const SegmentIds& a, const SegmentIds& b) {
  return plain::same_bytes(a.q_segment_ids, b.q_segment_ids) &&
         plain::same_bytes(a.kv_segment_ids, b.kv_segment_ids) && a.segments == b.segments &&
         a.elements == b.elements && a.differing_elements == b.differing_elements;
}

// The documented procedure, word for word: the id of the first equal line, else the next one.
std::vector<std::int32_t> plain_ids(std::int64_t lines, std::int64_t length,
                                    const std::function<bool(std::int64_t, std::int64_t)>& at) {
  std::vector<std::int32_t> ids;
  std::int32_t next = 1;
  for (std::int64_t i = 0; i < lines; ++i) {
    bool some = false;
    for (std::int64_t k = 0; k < length; ++k) some = some || at(i, k);
    std::int32_t id = some ? 0 : -1;
    for (std::int64_t j = 0; j < i && id == 0; ++j) {
      bool equal = true;
      for (std::int64_t k = 0; k < length; ++k) equal = equal && at(i, k) == at(j, k);
      if (equal) id = ids[static_cast<std::size_t>(j)];
    }
    ids.push_back(id == 0 ? next++ : id);
  }
  return ids;
}

}  // namespace

TEST_CASE("segment_ids_to_mask: golden cases") {
  check_masks("segment_ids_to_mask", Convention::document);
  check_masks("segment_ids_to_mask_ejkernel", Convention::ejkernel);
}

TEST_CASE("mask_to_segment_ids: golden cases") {
  check_ids("mask_to_segment_ids", Convention::document);
  check_ids("mask_to_segment_ids_ejkernel", Convention::ejkernel);
}

TEST_CASE(
    "ids of any mask are those of the plain procedure, and the difference is counted, collisions or not") {
  plain::Random random(21);
  for (int n = 0; n < 400; ++n) {
    const std::int64_t q = plain::between(random, 1, 150), kv = plain::between(random, 1, 150);
    const plain::Pair pair = plain::random_mask(random, q, kv, 2);
    const auto at = [&](std::int64_t i, std::int64_t j) {
      return pair.elements[static_cast<std::size_t>(i * kv + j)] != 0;
    };
    CAPTURE(pair.mask.text());
    const auto source = make_source(plain::array_of(q, kv, pair.elements));
    const SegmentIds ids = mask::segment_ids_of(source, {}, n % 2 == 0 ? mask::hash_words : hash_of_7);
    const auto q_ids = ids.q_segment_ids.elements<std::int32_t>(),
               kv_ids = ids.kv_segment_ids.elements<std::int32_t>();
    const auto expected_q = plain_ids(q, kv, at);
    const auto expected_kv = plain_ids(kv, q, [&](std::int64_t j, std::int64_t i) { return at(i, j); });
    REQUIRE(std::equal(q_ids.begin(), q_ids.end(), expected_q.begin(), expected_q.end()));
    REQUIRE(std::equal(kv_ids.begin(), kv_ids.end(), expected_kv.begin(), expected_kv.end()));
    std::int64_t differing = 0;
    for (std::int64_t i = 0; i < q; ++i)
      for (std::int64_t j = 0; j < kv; ++j) {
        const std::int32_t a = expected_q[static_cast<std::size_t>(i)],
                           b = expected_kv[static_cast<std::size_t>(j)];
        differing += at(i, j) != (a == b && a > 0);
      }
    CHECK(ids.differing_elements == differing);
    CHECK(ids.elements == q * kv);
  }
}

TEST_CASE("head 0 of no heads is an error, whatever there would be to read") {
  for (const Shape& shape : {Shape{1, 0, 2, 2}, Shape{64, 0, 64, 64}}) {
    const auto mask = make_source(Array(DType::boolean, shape), "m.npy");
    CHECK_THROWS_WITH(
        mask_to_segment_ids(mask, {.convention = Convention::ejkernel}),
        fmt::format("m.npy: a mask of shape {} has no heads; ids are made of head 0", to_string(shape))
            .c_str());
    SegmentIdsOptions each;
    each.per_head = true;
    CHECK(mask_to_segment_ids(mask, each).q_segment_ids.size() == 0);
  }
}

TEST_CASE("ids to mask to ids comes back, whatever the dtype") {
  plain::Random random(22);
  for (int n = 0; n < 100; ++n) {
    // Ids in order of first appearance, padding -1: what mask_to_segment_ids gives.
    const std::int64_t length = plain::between(random, 1, 300);
    std::vector<std::int32_t> ids;
    std::int32_t most = 0;
    while (static_cast<std::int64_t>(ids.size()) < length) {
      const std::int32_t id = static_cast<std::int32_t>(plain::between(random, 0, most + 1));
      most = std::max(most, id);
      for (std::int64_t run = plain::between(random, 1, 40);
           run > 0 && static_cast<std::int64_t>(ids.size()) < length; --run)
        ids.push_back(id == 0 ? -1 : id);
    }
    SegmentMaskOptions options;
    options.dtype = static_cast<DType>(plain::between(random, 0, static_cast<int>(DType::uint64)));
    const auto source = make_source(Array::from<std::int32_t>({1, length}, ids), "ids");
    const SegmentIds back = mask_to_segment_ids(segment_ids_to_mask(*source, options).attention_mask);
    CHECK(back.differing_elements == 0);
    const auto q = back.q_segment_ids.elements<std::int32_t>(),
               kv = back.kv_segment_ids.elements<std::int32_t>();
    CHECK(std::equal(q.begin(), q.end(), ids.begin(), ids.end()));
    CHECK(std::equal(kv.begin(), kv.end(), ids.begin(), ids.end()));
  }
}

TEST_CASE("boxes of a segment mask are those of the whole, in every float type") {
  const std::vector<std::int64_t> q{1, 1, 0, 2, std::int64_t{1} << 40},
      kv{2, 1, -3, std::int64_t{1} << 40, (std::int64_t{1} << 40) + 1};
  const auto qs = make_source(Array::from<std::int64_t>({1, 5}, q), "q"),
             ks = make_source(Array::from<std::int64_t>({1, 5}, kv), "k");
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    SegmentMaskOptions options;
    options.dtype = dtype;
    const auto source = segment_ids_to_mask(*qs, *ks, options).attention_mask;
    dispatch(dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (!std::is_integral_v<T>) {
        T box[6];
        source->read(Shape{0, 2, 1}, Shape{1, 3, 2}, box);
        for (std::size_t i = 0; i < 3; ++i)
          for (std::size_t j = 0; j < 2; ++j) {
            const bool expected = q[i + 2] == kv[j + 1] && q[i + 2] > 0;
            CHECK(static_cast<double>(static_cast<float>(box[2 * i + j])) == (expected ? 1.0 : 0.0));
          }
      }
    });
  }
}

TEST_CASE("129 segments stay 129, and equal ids of two batch entries stay apart") {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 2 * 129; ++i) ids.push_back(i % 129 + 1);
  const auto source = make_source(Array::from<std::int32_t>({2, 129}, ids), "ids");
  const SegmentIds back = mask_to_segment_ids(segment_ids_to_mask(*source).attention_mask);
  CHECK(back.segments == 129);
  CHECK(back.q_segment_ids.elements<std::int32_t>()[128] == 129);
  CHECK(back.q_segment_ids.elements<std::int32_t>()[129] == 1);
}

TEST_CASE("ids of batches and heads do not depend on collisions of hashes") {
  plain::Random random(23);
  for (int n = 0; n < 60; ++n) {
    const std::int64_t q = plain::between(random, 1, 50), kv = plain::between(random, 1, 150),
                       batch = plain::between(random, 1, 6), heads = plain::between(random, 1, 2);
    std::vector<std::uint8_t> elements;
    for (std::int64_t s = 0; s < batch * heads; ++s) {
      const plain::Pair pair = plain::random_mask(random, q, kv, 2);
      elements.insert(elements.end(), pair.elements.begin(), pair.elements.end());
    }
    SegmentIdsOptions options;
    options.per_head = n % 2 == 0;
    options.convention = n % 2 == 0 ? Convention::document : Convention::ejkernel;
    const auto source =
        make_source(plain::array_of(batch * heads * q, kv, elements).reshaped({batch, heads, q, kv}));
    CHECK(same(mask::segment_ids_of(source, options, hash_of_7), mask_to_segment_ids(source, options)));
  }
  for (const Shape& shape : {Shape{0, 5}, Shape{5, 0}, Shape{0, 3, 4}, Shape{3, 0, 4}})
    CHECK(mask_to_segment_ids(make_source(Array(DType::boolean, shape))).elements == 0);
}
