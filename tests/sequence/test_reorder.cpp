// Reordering for a ring: golden cases, exact inverses on any axis, and the balance it is for.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "ejk/sequence.hpp"
#include "support/equal.hpp"
#include "support/golden.hpp"

using namespace ejk;

TEST_CASE("reorder_sequence: golden cases") {
  for (const golden::Case& c : golden::load("reorder_sequence")) {
    CAPTURE(c.name);
    const auto x = make_source(c.in.at("x").view(), "x");
    const Reorder order =
        c.params.at("to_contiguous").get<bool>() ? Reorder::to_contiguous : Reorder::to_ring;
    const auto run = [&] {
      return read_all(*reorder_sequence(x, c.params.at("cp_size"), c.params.at("seq_dim"), order));
    };
    if (c.is_error)
      CHECK_THROWS_AS(run(), Error);
    else
      golden::check_equal(run(), c, "out");
  }
}

TEST_CASE("there and back is the same array, on every axis, in boxes too") {
  std::vector<std::int32_t> values(16 * 24 * 8);
  std::iota(values.begin(), values.end(), 0);
  const auto x = make_source(Array::from<std::int32_t>({16, 24, 8}, values), "x");
  for (const std::int64_t axis : {0, 1, 2, -1, -2, -3})
    for (const std::int64_t cp : {2, 4}) {
      const auto ring = reorder_sequence(x, cp, axis);
      if (x->shape()[static_cast<std::size_t>(axis < 0 ? axis + 3 : axis)] % (2 * cp) != 0) continue;
      const Array whole = read_all(*ring);
      const auto back =
          read_all(*reorder_sequence(make_source(whole.view(), "r"), cp, axis, Reorder::to_contiguous));
      CHECK(std::equal(values.begin(), values.end(), back.elements<std::int32_t>().begin()));
      std::int32_t box[3 * 5 * 2];
      ring->read(Shape{2, 7, 3}, Shape{3, 5, 2}, box);
      for (std::int64_t i = 0; i < 30; ++i)
        CHECK(box[i] == whole.elements<std::int32_t>()[static_cast<std::size_t>(
                            (2 + i / 10) * 192 + (7 + i / 2 % 5) * 8 + 3 + i % 2)]);
    }
}

TEST_CASE("no sequence has fewer than 0 tokens") { CHECK_THROWS_AS(describe_reorder(-4, 2), Error); }

TEST_CASE("ring order balances causal work exactly, and the report shows it") {
  const auto r =
      nlohmann::json::parse(to_json(describe_reorder(64, 4), {"reorder-sequence", {}})).at("result");
  double ring = 0;
  for (const auto& rank : r.at("ranks")) {
    if (ring == 0) ring = rank.at("ring_pairs");
    CHECK(rank.at("ring_pairs") == ring);
  }
  CHECK(r.at("imbalance_ring") == 1.0);
  CHECK(r.at("imbalance_contiguous") > 1.7);
}
