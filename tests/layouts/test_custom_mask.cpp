// FlashInfer's custom masks: read as loops over requests read them, checked, and refused where they are none.
#include <doctest/doctest.h>

#include "ejk/check.hpp"
#include "layouts/layouts.hpp"
#include "support/failure.hpp"
#include "support/plain_layouts.hpp"

using namespace ejk;
using plain::between;
using plain::Random;

namespace {

using Numbers = std::vector<std::int64_t>;

plain::Stored stored_numbers(DType dtype, const Numbers& values) {
  return {dtype, {std::ssize(values)}, values};
}

// Requests with random elements. `begins` and `bytes` are the two forms of mask_indptr.
struct CustomBatch {
  Numbers queries{0}, keys{0}, begins{0}, bytes{0}, elements, packed;
  std::vector<std::uint8_t> mask;  // (queries, keys)

  std::int64_t q_length() const { return queries.back(); }
  std::int64_t kv_length() const { return keys.back(); }

  void add(std::int64_t q, std::int64_t kv, const Numbers& of) {
    queries.push_back(queries.back() + q), keys.push_back(keys.back() + kv);
    begins.push_back(begins.back() + q * kv), bytes.push_back(bytes.back() + (q * kv + 7) / 8);
    packed.resize(static_cast<std::size_t>(bytes.back()));
    const auto first = static_cast<std::size_t>(bytes[bytes.size() - 2]);
    for (std::size_t n = 0; n < of.size(); ++n) {
      elements.push_back(of[n]);
      if (of[n] != 0) packed[first + n / 8] |= std::int64_t{1} << (n % 8);
    }
  }

  void make_mask() {
    mask.assign(static_cast<std::size_t>(q_length() * kv_length()), 0);
    std::size_t n = 0;
    for (std::size_t r = 0; r + 1 < queries.size(); ++r)
      for (std::int64_t q = queries[r]; q < queries[r + 1]; ++q)
        for (std::int64_t k = keys[r]; k < keys[r + 1]; ++k)
          mask[static_cast<std::size_t>(q * kv_length() + k)] = static_cast<std::uint8_t>(elements[n++]);
  }

  plain::StoredArrays arrays(bool is_packed, bool has_begins) const {
    plain::StoredArrays of{{"qo_indptr", stored_numbers(DType::int32, queries)},
                           {"kv_indptr", stored_numbers(DType::int32, keys)}};
    if (is_packed)
      of["packed_custom_mask"] = stored_numbers(DType::uint8, packed);
    else
      of["custom_mask"] = {DType::boolean, {std::ssize(elements)}, elements};
    if (has_begins) of["mask_indptr"] = stored_numbers(DType::int32, is_packed ? bytes : begins);
    return of;
  }
};

CustomBatch random_batch(Random& random) {
  for (;;) {
    CustomBatch batch;
    const std::int64_t requests = between(random, 1, 5);
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t q = between(random, 0, 3) == 0 ? 0 : between(random, 1, 40),
                         kv = between(random, 0, 3) == 0 ? 0 : between(random, 1, 200);
      const std::int64_t dense = between(random, 0, 10);
      Numbers of(static_cast<std::size_t>(q * kv));
      for (std::int64_t& element : of) element = between(random, 0, 9) < dense;
      batch.add(q, kv, of);
    }
    if (batch.q_length() == 0 || batch.kv_length() == 0) continue;
    batch.make_mask();
    return batch;
  }
}

// The batch of two requests, 3 x 7 and 5 x 9.
CustomBatch small_batch() {
  Random random{3};
  CustomBatch batch;
  for (const auto& [q, kv] : {std::pair<std::int64_t, std::int64_t>{3, 7}, {5, 9}}) {
    Numbers of(static_cast<std::size_t>(q * kv));
    for (std::int64_t& element : of) element = between(random, 0, 1);
    batch.add(q, kv, of);
  }
  batch.make_mask();
  return batch;
}

std::string read_failure(const plain::StoredArrays& arrays) {
  return plain::failure([&] {
    const StoredMaskInfo info(plain::group_of(arrays));
    const MaskShape shape = info.shape();
    info.mask({1, shape.q_length, shape.kv_length}, 0);
  });
}

}  // namespace

TEST_CASE("custom masks of requests are read as a loop over the requests reads them") {
  Random random{2201};
  std::int64_t without_keys = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const CustomBatch batch = random_batch(random);
    const Shape shape{4, batch.q_length(), batch.kv_length()};
    const Mask wanted =
        array_mask(make_source(plain::array_of(batch.q_length(), batch.kv_length(), batch.mask)));
    for (std::size_t r = 0; r + 1 < batch.queries.size(); ++r)
      without_keys += batch.queries[r] < batch.queries[r + 1] && batch.keys[r] == batch.keys[r + 1];
    for (const bool is_packed : {true, false})
      for (const bool has_begins : {true, false}) {
        const ArrayGroup group = plain::group_of(batch.arrays(is_packed, has_begins));
        const StoredMaskInfo info(group);
        CHECK(info.shape().q_length == shape[1]);
        CHECK(info.shape().kv_length == shape[2]);
        const Mask mask = info.mask(shape, 3);
        REQUIRE(plain::elements_of(mask) == batch.mask);
        // Its blocks are classified as its elements are, at any block size.
        const BlockShape block{between(random, 1, 20), between(random, 1, 80)};
        const MaskLayoutSettings settings{.layout = MaskLayout::bsr, .pad = true};
        plain::StoredArrays blocks = plain::stored(make_mask_arrays({mask}, block, settings)),
                            first = plain::stored(make_mask_arrays({wanted}, block, settings));
        REQUIRE(blocks["indices"].values == first["indices"].values);
        REQUIRE(blocks["data"].values == first["data"].values);
        MaskInfoClaims claims;
        claims.masks = {wanted};
        const Findings found = check_mask_info(group, claims);
        CHECK(found.errors() == 0);
        CHECK(found.warnings() == 0);
      }
  }
  CHECK(without_keys > 10);
}

TEST_CASE("a changed element of a custom mask is the finding, with the request's byte") {
  Random random{7};
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const CustomBatch batch = random_batch(random);
    if (batch.elements.empty()) continue;
    MaskInfoClaims claims;
    claims.masks = {
        array_mask(make_source(plain::array_of(batch.q_length(), batch.kv_length(), batch.mask)))};
    const auto at = static_cast<std::size_t>(between(random, 0, std::ssize(batch.elements) - 1));
    const bool was = batch.elements[at] != 0;
    for (const bool is_packed : {true, false}) {
      plain::StoredArrays arrays = batch.arrays(is_packed, true);
      std::int64_t index = static_cast<std::int64_t>(at);
      if (is_packed) {
        std::size_t r = 0;
        while (batch.begins[r + 1] <= index) ++r;
        const std::int64_t bit = index - batch.begins[r];
        index = batch.bytes[r] + bit / 8;
        arrays["packed_custom_mask"].values[static_cast<std::size_t>(index)] ^= std::int64_t{1} << (bit % 8);
      } else {
        arrays["custom_mask"].values[at] ^= 1;
      }
      const Findings found = check_mask_info(plain::group_of(arrays), claims);
      CHECK(found.errors() == 1);
      REQUIRE(found.kept().size() == 1);
      CHECK(found.kept()[0].rule.name == (was ? "missing" : "outside"));
      CHECK(found.kept()[0].finding.array == (is_packed ? "packed_custom_mask" : "custom_mask"));
      CHECK(found.kept()[0].finding.index == Shape{index});
    }
  }
}

TEST_CASE("mask_indptr of another unit, or another number, is named with the expected one") {
  const CustomBatch batch = small_batch();
  REQUIRE(batch.bytes == Numbers{0, 3, 9});
  plain::StoredArrays arrays = batch.arrays(true, true);
  arrays["mask_indptr"].values = {0, 21, 66};
  CHECK(read_failure(arrays) ==
        "mask_indptr(1,) is 21: request 1 begins at byte 3 (an offset in bits, not in bytes)");
  const Findings found = check_mask_info(plain::group_of(arrays));
  REQUIRE(found.count("order") == 2);
  CHECK(found.kept()[1].finding.message == "request 1 ends at byte 9 (an offset in bits, not in bytes)");
  arrays["mask_indptr"].values = {0, 4, 9};
  CHECK(read_failure(arrays) == "mask_indptr(1,) is 4: request 1 begins at byte 3");
  arrays["mask_indptr"].values = {0, INT64_MIN, INT64_MAX}, arrays["mask_indptr"].dtype = DType::int64;
  CHECK(check_mask_info(plain::group_of(arrays)).count("order") == 2);
  arrays = batch.arrays(false, true);
  arrays["mask_indptr"].values = {0, 3, 9};
  CHECK(read_failure(arrays) ==
        "mask_indptr(1,) is 3: request 1 begins at element 21 (an offset in bytes, not in elements)");
}

TEST_CASE("bits of a custom mask that are of no pair are a warning, and not read") {
  const CustomBatch batch = small_batch();
  plain::StoredArrays arrays = batch.arrays(true, false);
  arrays["packed_custom_mask"].values[2] |= 0x40;
  const ArrayGroup group = plain::group_of(arrays);
  const Findings found = check_mask_info(group);
  CHECK(found.errors() == 0);
  REQUIRE(found.count("unread") == 1);
  CHECK(found.kept()[0].finding.index == Shape{2});
  CHECK(found.kept()[0].finding.message ==
        "bits 5 to 7 are behind the 21 pairs of request 0: each request begins with a byte");
  CHECK(plain::elements_of(StoredMaskInfo(group).mask({1, 8, 16}, 0)) == batch.mask);
}

TEST_CASE("arrays that are no custom mask are refused by name") {
  const CustomBatch batch = small_batch();
  const plain::StoredArrays sound = batch.arrays(true, true);
  const auto failure = [&](const char* name, const Numbers& values) {
    plain::StoredArrays arrays = sound;
    arrays[name] = stored_numbers(DType::int64, values);
    return read_failure(arrays);
  };
  CHECK(failure("qo_indptr", {0, 9, 8}) == "qo_indptr(2,) is 8: less than 9 before it");
  CHECK(failure("qo_indptr", {1, 3, 8}) == "qo_indptr(0,) is 1: request 0 begins at 0");
  CHECK(failure("kv_indptr", {0, -7, 16}) == "kv_indptr(1,) is -7: less than 0 before it");
  CHECK(failure("kv_indptr", {0, INT64_MAX, INT64_MIN}).find("kv_indptr ends at -9223372036854775808") == 0);
  CHECK(failure("kv_indptr", {0, 7, INT64_MAX}).find("a mask has 1 to 2^48 keys") != std::string::npos);
  CHECK(failure("qo_indptr", {0, 0, 0}).find("qo_indptr ends at 0: a mask has 1 to 2^48 queries") == 0);
  CHECK(failure("qo_indptr", {0}) == "qo_indptr has 1 elements; it has one for each request, and the end");
  CHECK(failure("kv_indptr", {0, 7, 9, 16}) ==
        "kv_indptr has 4 elements; it has one for each request, and the end: qo_indptr has 3");
  CHECK(failure("mask_indptr", {0, 3}).find("mask_indptr has 2 elements") == 0);
  CHECK(failure("qo_indptr", {0, 3, 9}) ==
        "packed_custom_mask has 9 bytes: 6 are left for the 6 queries x 9 keys of request 1");
  CHECK(failure("qo_indptr", {0, 3, 4}) == "packed_custom_mask has 9 bytes; its requests have 5");

  // Products beyond 64 bits, and of requests without pairs.
  const std::int64_t many = std::int64_t{1} << 47;
  plain::StoredArrays arrays = sound;
  arrays.erase("mask_indptr");
  arrays["qo_indptr"] = stored_numbers(DType::int64, {0, many}),
  arrays["kv_indptr"] = stored_numbers(DType::int64, {0, many});
  CHECK(
      read_failure(arrays) ==
      "packed_custom_mask has 9 bytes: 9 are left for the 140737488355328 queries x 140737488355328 keys of "
      "request 0");
  const std::int64_t queries = std::int64_t{1} << 40, keys = 1 << 20;
  arrays["qo_indptr"] = stored_numbers(DType::int64, {0, queries, queries});
  arrays["kv_indptr"] = stored_numbers(DType::int64, {0, 0, keys});
  CHECK(read_failure(arrays) == "packed_custom_mask has 9 bytes; its requests have 0");
  arrays["packed_custom_mask"] = stored_numbers(DType::uint8, {});
  const Mask none = StoredMaskInfo(plain::group_of(arrays)).mask({1, queries, keys}, 0);
  CHECK(none.q_length() == queries);

  arrays = sound;
  arrays["packed_custom_mask"].dtype = DType::int32;
  CHECK(read_failure(arrays) == "packed_custom_mask is int32 (9,); it is uint8 (bytes,)");
  arrays["packed_custom_mask"] = {DType::uint8, {1, 9}, batch.packed};
  CHECK(read_failure(arrays).find("it is uint8 (bytes,)") != std::string::npos);
  arrays = sound;
  arrays["custom_mask"] = {DType::boolean, {66}, batch.elements};
  CHECK(read_failure(arrays).find("FlashInfer reads the packed one alone") != std::string::npos);
  arrays = sound;
  arrays["shape"] = stored_numbers(DType::int32, {8, 17});
  CHECK(read_failure(arrays) == "m.npz: its requests have 8 queries and 16 keys, and the shape 8 x 17");
  arrays = sound;
  arrays.erase("kv_indptr");
  CHECK(read_failure(arrays) == "m.npz: there is no kv_indptr");
  CHECK(plain::failure([&] {
          StoredMaskInfo(plain::group_of(sound)).visited({1, 8, 16}, 0);
        }).find("its layout has no blocks") != std::string::npos);
  // Faults of offsets are findings beside an empty mask.
  arrays = sound;
  arrays["qo_indptr"].values = {0, 9, 8};
  MaskInfoClaims claims;
  claims.masks = {array_mask(make_source(plain::array_of(8, 16, batch.mask)))};
  const Findings found = check_mask_info(plain::group_of(arrays), claims);
  CHECK(found.count("order") == 1);
  CHECK(found.count("missing") == 1);
}
