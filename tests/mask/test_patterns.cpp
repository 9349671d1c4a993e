// Patterns: equal hashes never merge different blocks, and ids follow positions, not the order of discovery.
#include "mask/patterns.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace ejk;
using namespace ejk::mask;

namespace {

// All patterns collide.
std::uint64_t hash_of_42(const Word*, std::int64_t) { return 42; }

}  // namespace

TEST_CASE("forced collisions keep patterns apart") {
  for (const auto hash : {hash_words, hash_of_42}) {
    PatternTable table({4, 100}, 0, hash);
    std::mt19937_64 random(3);
    std::vector<std::vector<Word>> patterns(50, std::vector<Word>(8));
    for (auto& p : patterns)
      for (auto& w : p) w = random() % 3;
    // Two parts find the patterns in opposite orders.
    PatternTable a = table.part(), b = table.part();
    std::vector<std::int32_t> slots_a, slots_b;
    for (const auto& p : patterns) slots_a.push_back(a.find_or_add(p.data()));
    for (std::size_t i = patterns.size(); i-- > 0;) slots_b.push_back(b.find_or_add(patterns[i].data()));
    const auto from_b = table.join(std::move(b)), from_a = table.join(std::move(a));
    std::vector<std::int32_t> blocks;
    for (const auto s : slots_a) blocks.push_back(from_a[static_cast<std::size_t>(s)]);
    for (const auto s : slots_b) blocks.push_back(from_b[static_cast<std::size_t>(s)]);
    const std::vector<std::uint8_t> states(blocks.size(), 1);
    table.number(states, blocks);
    std::int32_t next = 0;
    for (std::size_t i = 0; i < 50; ++i) {
      CHECK(blocks[i] <= next);
      next = std::max(next, blocks[i] + 1);
      CHECK(std::equal(patterns[i].begin(), patterns[i].end(), table.bits(blocks[i])));
      CHECK(blocks[99 - i] == blocks[i]);
    }
    CHECK(next == table.size());
  }
}

TEST_CASE("patterns beyond the budget are refused, not kept") {
  PatternTable table({64, 64}, 3 * (64 * 8 + 96));
  std::vector<Word> p(64);
  for (p[0] = 1; p[0] <= 3; ++p[0]) table.find_or_add(p.data());
  CHECK_THROWS_AS(table.find_or_add(p.data()), Error);
}

TEST_CASE("a part does not keep again what the whole has, and both can go on after they were joined") {
  PatternTable table({1, 64});
  std::vector<Word> p(1);
  for (p[0] = 1; p[0] <= 100; ++p[0]) table.find_or_add(p.data());
  PatternTable part = table.part();
  for (p[0] = 51; p[0] <= 150; ++p[0]) {
    const std::int32_t slot = part.find_or_add(p.data());
    if (p[0] <= 100)
      CHECK(~slot == static_cast<std::int32_t>(p[0]) - 1);
    else
      CHECK(slot == static_cast<std::int32_t>(p[0]) - 101);
  }
  CHECK(part.size() == 50);
  table.join(std::move(part));
  for (p[0] = 151; p[0] <= 300; ++p[0]) table.find_or_add(p.data());
  std::vector<std::int32_t> slots(300);
  for (std::size_t i = 0; i < 300; ++i) slots[i] = static_cast<std::int32_t>(i);
  table.number(std::vector<std::uint8_t>(300, 1), slots);
  for (std::int32_t i = 0; i < 300; ++i) CHECK(*table.bits(i) == static_cast<Word>(i) + 1);
}

TEST_CASE("any part of a block is read as it stands, transposed for dkv") {
  std::mt19937_64 random(8);
  for (int n = 0; n < 300; ++n) {
    const auto q = static_cast<std::int64_t>(random() % 150 + 1),
               kv = static_cast<std::int64_t>(random() % 150 + 1);
    const std::int64_t row_words = words_for(kv);
    std::vector<Word> bits(static_cast<std::size_t>(q * row_words));
    for (std::int64_t r = 0; r < q; ++r)
      for (std::int64_t c = 0; c < kv; ++c)
        bits[static_cast<std::size_t>(r * row_words + c / 64)] |= static_cast<Word>(random() % 2) << (c % 64);
    const Direction direction = n % 2 == 0 ? Direction::forward : Direction::dkv;
    const std::int64_t rows = n % 2 == 0 ? q : kv, columns = n % 2 == 0 ? kv : q;
    Box part{static_cast<std::int64_t>(random()) % rows, 0, static_cast<std::int64_t>(random()) % columns, 0};
    part.row = std::abs(part.row), part.column = std::abs(part.column);
    part.rows = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows - part.row));
    part.columns =
        1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(columns - part.column));
    std::vector<std::uint8_t> out(static_cast<std::size_t>(part.rows * part.columns + 1), 9);
    expand_part(bits.data(), row_words, part, direction, out.data());
    bool right = out.back() == 9;
    for (std::int64_t a = 0; a < part.rows; ++a)
      for (std::int64_t b = 0; b < part.columns; ++b) {
        std::int64_t r = part.row + a, c = part.column + b;
        if (direction == Direction::dkv) std::swap(r, c);
        right = right && out[static_cast<std::size_t>(a * part.columns + b)] ==
                             (bits[static_cast<std::size_t>(r * row_words + c / 64)] >> (c % 64) & 1u);
      }
    CHECK(right);
  }
}
