// Bin packing: as many rows as a plain best fit, no overflow, every token once, a million lengths in
// milliseconds.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "ejk/pack.hpp"

using namespace ejk;

namespace {

std::shared_ptr<const ArraySource> source_of(const std::vector<std::int64_t>& lens) {
  return make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(lens.size())}, lens), "lens.npy");
}

// First fit in the order given, without sorting: what a simple data loader does.
std::int64_t first_fit_rows(const std::vector<std::int64_t>& lens, std::int64_t capacity) {
  std::vector<std::int64_t> room;
  for (const std::int64_t length : lens) {
    const auto row = std::find_if(room.begin(), room.end(), [&](std::int64_t r) { return r >= length; });
    if (row == room.end())
      room.push_back(capacity - length);
    else
      *row -= length;
  }
  return static_cast<std::int64_t>(room.size());
}

std::int64_t plain_best_fit_rows(std::vector<std::int64_t> lens, std::int64_t capacity) {
  std::sort(lens.begin(), lens.end(), std::greater<>());
  std::vector<std::int64_t> room;
  for (const std::int64_t length : lens) {
    auto best = room.end();
    for (auto row = room.begin(); row != room.end(); ++row)
      if (*row >= length && (best == room.end() || *row < *best)) best = row;
    if (best == room.end())
      room.push_back(capacity - length);
    else
      *best -= length;
  }
  return static_cast<std::int64_t>(room.size());
}

void check_placed_once(const BinPacking& p, const std::vector<std::int64_t>& lens, LongSequence how) {
  std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> rows;
  std::vector<std::int64_t> placed(lens.size());
  for (std::size_t i = 0; i < p.length.size(); ++i) {
    const auto s = static_cast<std::size_t>(p.sequence[i]);
    CHECK(p.start[i] == placed[s]);  // pieces follow one another
    placed[s] += p.length[i];
    CHECK(p.row[i] >= 0);
    CHECK(p.row[i] < p.rows);
    rows[p.row[i]].emplace_back(p.offset[i], p.length[i]);
  }
  for (std::size_t s = 0; s < lens.size(); ++s)
    CHECK(placed[s] == (how == LongSequence::truncate ? std::min(lens[s], p.capacity) : lens[s]));
  for (auto& [row, spans] : rows) {
    std::sort(spans.begin(), spans.end());
    std::int64_t end = 0;
    for (const auto& [offset, length] : spans) {
      CHECK(offset == end);  // neither a gap nor an overlap
      end = offset + length;
    }
    CHECK(end <= p.capacity);
  }
  CHECK(static_cast<std::int64_t>(rows.size()) == p.rows);
}

}  // namespace

TEST_CASE("rows never overflow, every sequence is placed once, as few rows as best fit needs") {
  std::mt19937_64 random(5);
  for (int n = 0; n < 200; ++n) {
    const auto capacity = static_cast<std::int64_t>(1 + random() % 300);
    std::vector<std::int64_t> lens(random() % 120);
    for (std::int64_t& length : lens)
      length = static_cast<std::int64_t>(
          random() % static_cast<std::uint64_t>(n % 3 == 0 ? capacity / 3 + 1 : capacity + 1));
    const BinPacking p = bin_pack(*source_of(lens), capacity);
    check_placed_once(p, lens, LongSequence::error);
    CHECK(p.rows == plain_best_fit_rows(lens, capacity));
    CHECK(p.rows >= p.lower_bound());
    // Sorting never loses more than a few rows to no sorting, and mostly gains.
    CHECK(p.rows <= first_fit_rows(lens, capacity) + 1 + p.lower_bound() * 2 / 9);
    CHECK(p.efficiency() <= 1.0);
    const BinPacking again = bin_pack(*source_of(lens), capacity);
    CHECK(again.row == p.row);
    CHECK(again.offset == p.offset);
  }
}

TEST_CASE("long sequences are refused by their index, cut off, or split") {
  const std::vector<std::int64_t> lens{3, 25, 0, 10, 7};
  try {
    bin_pack(*source_of(lens), 10);
    CHECK(false);
  } catch (const Error& e) {
    CHECK(e.message() == "lens.npy: lens[1] is 25, more than the 10 tokens of a row");
    CHECK(e.code() == Error::Code::exceeds_row);
  }
  const BinPacking cut = bin_pack(*source_of(lens), 10, LongSequence::truncate);
  check_placed_once(cut, lens, LongSequence::truncate);
  CHECK(cut.truncated_tokens == 15);
  CHECK(cut.tokens == 30);
  const BinPacking split = bin_pack(*source_of(lens), 10, LongSequence::split);
  check_placed_once(split, lens, LongSequence::split);
  CHECK(split.length.size() == 7);
  CHECK(split.tokens == 45);
  CHECK(split.rows == 5);
  CHECK_NOTHROW(bin_pack(*source_of(lens), 10, LongSequence::split, 7));
  CHECK_THROWS_AS(bin_pack(*source_of(lens), 10, LongSequence::split, 6), Error);
}

TEST_CASE("lengths at the end of 64 bits are cut, split or refused") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_WITH(bin_pack(*source_of({kMost, kMost}), 10, LongSequence::truncate),
                    "lens.npy: the sum of the lengths passes 63 bits at index 1");
  CHECK(bin_pack(*source_of({kMost}), 10, LongSequence::truncate).truncated_tokens == kMost - 10);
  const BinPacking split = bin_pack(*source_of({kMost}), kMost / 2, LongSequence::split);
  CHECK(split.start == std::vector<std::int64_t>{0, kMost / 2, kMost - 1});
  CHECK(split.length == std::vector<std::int64_t>{kMost / 2, kMost / 2, 1});
  CHECK(split.tokens == kMost);
  CHECK_THROWS_AS(bin_pack(*source_of({kMost, kMost}), kMost / 2, LongSequence::split), Error);
}

TEST_CASE("no sequences, empty ones, negative ones, and rows without capacity") {
  CHECK(bin_pack(*source_of({}), 8).rows == 0);
  CHECK(bin_pack(*source_of({}), 8).efficiency() == 1.0);
  const BinPacking empty = bin_pack(*source_of({0, 0, 0}), 8);
  CHECK(empty.rows == 1);
  CHECK(empty.lower_bound() == 0);
  CHECK(bin_pack(*source_of({8, 0}), 8).rows == 1);
  CHECK_THROWS_WITH(bin_pack(*source_of({1, -4}), 8), "lens.npy: lens[1] is -4, negative");
  CHECK_THROWS_AS(bin_pack(*source_of({1}), 0), Error);
}

TEST_CASE("a million lengths, however different they are, fill their rows") {
  std::mt19937_64 random(6);
  for (const std::int64_t capacity : {std::int64_t{4096}, std::int64_t{1} << 40}) {
    std::vector<std::int64_t> lens(1'000'000);
    for (std::int64_t& length : lens)
      length = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(capacity));
    const auto source = source_of(lens);
    const BinPacking p = bin_pack(*source, capacity);
    CHECK(p.efficiency() > 0.97);
  }
}
