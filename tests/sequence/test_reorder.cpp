// Reordering for a ring: golden cases, exact inverses on any axis, balance.
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

TEST_CASE("short pieces are picked to the same places as long ones, in any box") {
  for (const std::int64_t cp : {2, 6, 50})
    for (const std::int64_t piece : {1, 2, 3, 8})
      for (const Reorder order : {Reorder::to_ring, Reorder::to_contiguous}) {
        const std::int64_t length = 2 * cp * piece;
        std::vector<std::int16_t> values(static_cast<std::size_t>(3 * length * 2));
        std::iota(values.begin(), values.end(), std::int16_t{0});
        // The axis last, and in the middle.
        for (const Shape& shape : {Shape{6, length}, Shape{3, length, 2}}) {
          const auto source =
              reorder_sequence(make_source(Array::from<std::int16_t>(shape, values), "x"), cp, 1, order);
          const std::int64_t inner = shape.size() == 3 ? 2 : 1, outer = shape[0];
          const auto expected = [&](std::int64_t o, std::int64_t t, std::int64_t i) {
            const std::int64_t p = t / piece;
            // Ring piece 2 r is piece r, and 2 r + 1 is the r-th from the end.
            const std::int64_t from = order == Reorder::to_ring ? (p % 2 == 0 ? p / 2 : 2 * cp - 1 - p / 2)
                                      : p < cp                  ? 2 * p
                                                                : 2 * (2 * cp - 1 - p) + 1;
            return values[static_cast<std::size_t>((o * length + from * piece + t % piece) * inner + i)];
          };
          for (std::int64_t begin = 0; begin < length; begin += 1 + length / 7)
            for (std::int64_t count = 1; begin + count <= length; count += 1 + length / 5) {
              Shape start(shape.size(), 0), extent = shape;
              start[0] = 1, extent[0] = outer - 1;
              start[1] = begin, extent[1] = count;
              std::vector<std::int16_t> box(static_cast<std::size_t>(element_count(extent)));
              source->read(start, extent, box.data());
              bool same = true;
              std::size_t at = 0;
              for (std::int64_t o = 1; o < outer; ++o)
                for (std::int64_t t = begin; t < begin + count; ++t)
                  for (std::int64_t i = 0; i < inner; ++i) same = same && box[at++] == expected(o, t, i);
              CHECK(same);
            }
        }
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
