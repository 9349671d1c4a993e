// Block masks: block states and rectangles at their own and other block sizes, equality.
#include "layouts/block_mask.hpp"

#include <doctest/doctest.h>

#include "support/random_mask.hpp"

using namespace ejk;

namespace {

// 1 full, 2 partial (its first element False), 0 empty.
Mask grid_of(std::int64_t q, std::int64_t kv, BlockShape block, const std::vector<std::uint8_t>& states) {
  class AllButTheFirst final : public blocks::BlockElements {
    void fill(std::int64_t, std::int32_t, const mask::Rectangle& part,
              const mask::BitRows& out) const override {
      for (std::int64_t r = 0; r < out.rows; ++r) {
        std::fill(out.row(r), out.row(r) + out.row_words, mask::Word{0});
        const bool first = part.q_begin + r == 0 && part.k_begin == 0;
        mask::set_bits(out.row(r), first ? 1 : 0, out.columns);
      }
    }
  };
  auto grid = std::make_shared<blocks::BlockGrid>();
  grid->block = block;
  grid->q_blocks = (q + block.q - 1) / block.q;
  grid->kv_blocks = (kv + block.kv - 1) / block.kv;
  for (std::int64_t i = 0; i < grid->q_blocks; ++i) {
    grid->begins.push_back(std::ssize(grid->entries));
    for (std::int64_t j = 0; j < grid->kv_blocks; ++j)
      if (const auto state = states[static_cast<std::size_t>(i * grid->kv_blocks + j)]; state != 0)
        grid->entries.push_back({static_cast<std::int32_t>(j), state == 1 ? blocks::BlockGrid::kFull : 0});
  }
  grid->begins.push_back(std::ssize(grid->entries));
  return blocks::to_mask({std::move(grid), std::make_shared<AllButTheFirst>(), q, kv}, "grid");
}

}  // namespace

TEST_CASE("any rectangle of a grid, and the states of blocks of any size, are those of its elements") {
  plain::Random random(3);
  for (int n = 0; n < 400; ++n) {
    const std::int64_t q = plain::between(random, 1, 90), kv = plain::between(random, 1, 200);
    const BlockShape block{plain::between(random, 1, 40), plain::between(random, 1, 100)};
    const std::int64_t columns = (kv + block.kv - 1) / block.kv;
    std::vector<std::uint8_t> states;
    for (std::int64_t b = 0; b < (q + block.q - 1) / block.q * columns; ++b)
      states.push_back(static_cast<std::uint8_t>(plain::between(random, 0, 2)));
    const Mask grid = grid_of(q, kv, block, states);
    const auto at = [&](std::int64_t i, std::int64_t j) {
      const auto state = states[static_cast<std::size_t>(i / block.q * columns + j / block.kv)];
      return state == 1 || (state == 2 && (i % block.q != 0 || j % block.kv != 0));
    };
    const std::int64_t q0 = plain::between(random, 0, q - 1), k0 = plain::between(random, 0, kv - 1);
    const std::int64_t q1 = plain::between(random, q0 + 1, q), k1 = plain::between(random, k0 + 1, kv);
    std::vector<std::uint8_t> read(static_cast<std::size_t>((q1 - q0) * (k1 - k0)));
    grid.read(q0, q1, k0, k1, reinterpret_cast<bool*>(read.data()));
    REQUIRE(read == plain::table(q1 - q0, k1 - k0, [&](auto i, auto j) { return at(q0 + i, k0 + j); }));

    const BlockShape asked =
        n % 3 == 0 ? block : BlockShape{plain::between(random, 1, 50), plain::between(random, 1, 120)};
    const auto classifier = grid.node().classifier(asked.q, asked.kv);
    for (std::int64_t i = 0; i * asked.q < q; ++i) {
      const std::int64_t end = std::min(q, (i + 1) * asked.q);
      std::vector<mask::BlockState> found(static_cast<std::size_t>((kv + asked.kv - 1) / asked.kv));
      classifier->classify(i * asked.q, end, {0, std::ssize(found)}, found.data());
      for (std::size_t j = 0; j < found.size(); ++j) {
        std::int64_t ones = 0, all = 0;
        for (std::int64_t r = i * asked.q; r < end; ++r)
          for (std::int64_t c = static_cast<std::int64_t>(j) * asked.kv;
               c < std::min(kv, static_cast<std::int64_t>(j + 1) * asked.kv); ++c, ++all)
            ones += at(r, c);
        if (found[j] == mask::BlockState::empty) REQUIRE(ones == 0);
        if (found[j] == mask::BlockState::full) REQUIRE(ones == all);
        if (found[j] == mask::BlockState::partial) REQUIRE((ones > 0 && ones < all));
      }
    }
  }
}

TEST_CASE("grids are the same when their blocks are of one size and hold the same elements") {
  // The one element of a block of 1 x 1 that is partial is False.
  const auto one = [](std::uint8_t state) { return grid_of(1, 1, {1, 1}, {state}); };
  CHECK(one(0).same_as(one(2)));
  CHECK(one(2).same_as(one(0)));
  CHECK_FALSE(one(0).same_as(one(1)));
  CHECK_FALSE(one(1).same_as(one(2)));
  const std::vector<std::uint8_t> states{0, 1, 2, 2, 0, 1};
  CHECK(grid_of(8, 8, {4, 3}, states).same_as(grid_of(8, 8, {4, 3}, states)));
  CHECK_FALSE(grid_of(8, 8, {4, 3}, states).same_as(grid_of(8, 8, {5, 3}, states)));
  CHECK_FALSE(grid_of(8, 8, {4, 3}, states).same_as(grid_of(8, 8, {4, 3}, {0, 1, 2, 2, 1, 1})));
  CHECK_FALSE(grid_of(8, 8, {4, 3}, states).same_as(grid_of(8, 8, {4, 3}, {0, 1, 1, 2, 0, 1})));
  CHECK_FALSE(grid_of(8, 8, {4, 3}, states).same_as(grid_of(8, 8, {4, 3}, {0, 1, 0, 2, 0, 1})));
}
