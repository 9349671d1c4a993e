// Masks against others, pair by pair; rows and keys without each other; values and polarity.
#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "check/artefacts.hpp"
#include "check/mask_pair.hpp"
#include "ejk/check.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

using artefacts::text_of;
using plain::between;
using plain::Random;

Findings of_array(Array array, Polarity polarity) {
  MaskClaims claims;
  claims.stored = make_source(std::move(array), "m.npy");
  claims.polarity = polarity;
  return check_mask({array_mask(claims.stored, polarity)}, claims);
}

}  // namespace

TEST_CASE("masks are compared as a plain loop compares them, block by block") {
  Random random(9);
  for (int n = 0; n < 600; ++n) {
    CAPTURE(n);
    const std::int64_t q = between(random, 1, 70), kv = between(random, 1, 200);
    const BlockShape block{between(random, 1, 40), between(random, 1, 100)};
    const plain::Pair a = plain::random_mask(random, q, kv, 2), b = plain::random_mask(random, q, kv, 2);
    std::int64_t outside = 0, missing = 0, rows = 0, keys = 0;
    std::set<std::pair<std::int64_t, std::int64_t>> outside_blocks;
    std::optional<Shape> first;
    std::vector<bool> row_seen(static_cast<std::size_t>(q)), key_seen(static_cast<std::size_t>(kv));
    for (std::int64_t i = 0; i < q; ++i)
      for (std::int64_t j = 0; j < kv; ++j) {
        const auto e = static_cast<std::size_t>(i * kv + j);
        missing += b.elements[e] && !a.elements[e];
        if (a.elements[e])
          row_seen[static_cast<std::size_t>(i)] = key_seen[static_cast<std::size_t>(j)] = true;
        if (!a.elements[e] || b.elements[e]) continue;
        ++outside;
        outside_blocks.insert({i / block.q, j / block.kv});
      }
    rows = std::count(row_seen.begin(), row_seen.end(), false);
    keys = std::count(key_seen.begin(), key_seen.end(), false);
    const Findings found =
        check_mask({a.mask, a.mask}, {.within = {b.mask}, .covers = {b.mask, b.mask}, .block = block});
    REQUIRE_MESSAGE(found.count("outside") == 2 * outside, text_of(found));
    REQUIRE(found.count("missing") == 2 * missing);
    REQUIRE(found.count("no-keys") == 2 * rows);
    REQUIRE(found.count("unseen") == 2 * keys);
    const Findings equal = check_mask({a.mask}, {.equals = {b.mask}, .block = block});
    REQUIRE(equal.count("outside") == outside);
    REQUIRE(equal.count("missing") == missing);
    const Findings all =
        check_mask({a.mask}, {.within = {b.mask}, .block = block}, {.most_findings = 100000});
    std::int64_t blocks = 0;
    for (const auto& [rule, finding] : all.kept()) {
      if (rule.name != "outside") continue;
      ++blocks;
      // The first pair of its block that is outside.
      const std::int64_t i = finding.index[1], j = finding.index[2];
      REQUIRE(outside_blocks.contains({i / block.q, j / block.kv}));
      for (std::int64_t x = i / block.q * block.q; x <= i; ++x)
        for (std::int64_t y = j / block.kv * block.kv; y < std::min(kv, (j / block.kv + 1) * block.kv); ++y) {
          const auto e = static_cast<std::size_t>(x * kv + y);
          if (x < i || y < j) REQUIRE_FALSE((a.elements[e] && !b.elements[e]));
          if (x == i && y == j) REQUIRE((a.elements[e] && !b.elements[e]));
        }
    }
    REQUIRE(blocks == std::ssize(outside_blocks));
  }
}

TEST_CASE("blocks longer than the mask are the mask") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Findings found =
      check_mask({full_mask(6, 8)}, {.within = {causal_mask(6, 8)}, .block = {kMost, kMost}});
  CHECK(found.count("outside") == 27);  // pairs of the one block
}

TEST_CASE("heads are compared each with its own, and those that share a mask at once") {
  const Mask causal = causal_mask(256, 256), full = full_mask(256, 256);
  const Findings found = check_mask({causal, full, full}, {.within = {causal, causal, full}});
  CHECK(found.count("outside") == 256 * 255 / 2);
  CHECK(text_of(found) ==
        "outside: mask(1, 0, 1): the first of 8,128 in block (0, 0)\n"
        "outside: mask(1, 0, 128): the first of 16,384 in block (0, 1)\n"
        "outside: mask(1, 128, 129): the first of 8,128 in block (1, 1)\n");
  CHECK_THROWS_AS(check_mask({causal, full, full}, {.within = {causal, causal}}), Error);
  CHECK_THROWS_AS(check_mask({causal}, {.covers = {causal_mask(8, 8)}}), Error);
  CHECK_THROWS_AS(check_mask({}), Error);
}

TEST_CASE("the complement of a usual mask looks inverted, and a usual mask does not") {
  const std::vector<std::int32_t> cu{0, 10, 30, 64};
  const Mask documents = documents_mask(cu);
  for (const Mask& mask : {causal_mask(64, 64), local_mask(64, 64, 7, 0), documents, chunked_mask(64, 64, 8),
                           causal_mask(32, 64, 32), documents & causal_mask(64, 64)}) {
    CAPTURE(mask.text());
    CHECK(check_mask({mask}).count("inverted") == 0);
    CHECK(check_mask({~mask}).count("inverted") == 1);
  }
  for (const Mask& mask : {full_mask(8, 8), ~full_mask(8, 8), causal_mask(8, 8, -1), prefix_mask(8, 8, 3)})
    CHECK(check_mask({mask}).count("inverted") == 0);
}

TEST_CASE("the polarity of a mask that is read in order is looked at, too") {
  Array array(DType::boolean, {8, 8});
  for (std::int64_t i = 0; i < 64; ++i) array.elements<bool>()[static_cast<std::size_t>(i)] = i % 8 > i / 8;
  const auto source = make_source(std::move(array), "m");
  const auto in_order = generated_source(
      type_of(*source), "m",
      [source](std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out) {
        source->read(start, count, out);
      },
      ArrayAccess(ArrayAccess::Order::sequential));
  CHECK(check_mask({array_mask(in_order)}).count("inverted") == 1);
}

TEST_CASE("elements that are neither 0 nor 1 are counted, and additive ones told that are neither") {
  const std::vector<std::int64_t> values{-1, 0, -1, 0, 0, 0}, ids{1, 0, 2, -1, 1, 0};
  const Findings found = of_array(Array::from<std::int64_t>({2, 3}, values), Polarity::keep);
  CHECK(found.count("values") == 2);
  CHECK(text_of(found).find("values: mask(0, 2): taken as 1, being no 0") != std::string::npos);
  CHECK(found.errors() == 0);
  const Findings several = of_array(Array::from<std::int64_t>({2, 3}, ids), Polarity::keep);
  CHECK(several.count("ids") == 2);
  CHECK(text_of(several).find("ids: mask(0, 2): another value than before") != std::string::npos);
  Array bytes(DType::boolean, {1, 2});
  bytes.data()[0] = std::byte{7};
  CHECK(of_array(std::move(bytes), Polarity::drop).count("values") == 1);
  const std::vector<float> biases{0.0F, -1e4F, -9999.0F, 1.0F, -1e9F, 0.0F};
  const Findings additive = of_array(Array::from<float>({2, 3}, biases), Polarity::additive);
  CHECK(additive.count("between") == 2);
  CHECK(additive.errors() == 2);
  const std::vector<float> sound{0.0F, -1e4F, -INFINITY, 0.0F};
  CHECK(of_array(Array::from<float>({2, 2}, sound), Polarity::additive).errors() == 0);
}
