// Equal hashes never merge different blocks, and ids are given by place and not by the order of discovery.
#include "mask/patterns.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace ejk;
using namespace ejk::mask;

namespace {

// All patterns collide.
std::uint64_t one_hash(const Word*, std::int64_t) { return 42; }

}  // namespace

TEST_CASE("forced collisions keep patterns apart") {
  for (const auto hash : {hash_words, one_hash}) {
    PatternTable table({4, 100}, 0, hash);
    std::mt19937_64 random(3);
    std::vector<std::vector<Word>> patterns(50, std::vector<Word>(8));
    for (auto& p : patterns)
      for (auto& w : p) w = random() % 3;
    // Two parts find the patterns in opposite orders.
    PatternTable a = table.part(), b = table.part();
    std::vector<std::int32_t> slots_a, slots_b;
    for (const auto& p : patterns) slots_a.push_back(a.find_or_add(p.data()));
    for (auto p = patterns.rbegin(); p != patterns.rend(); ++p) slots_b.push_back(b.find_or_add(p->data()));
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
  PatternTable table({64, 64}, 3 * 64 * 8);
  std::vector<Word> p(64);
  for (p[0] = 1; p[0] <= 3; ++p[0]) table.find_or_add(p.data());
  CHECK_THROWS_AS(table.find_or_add(p.data()), Error);
}
