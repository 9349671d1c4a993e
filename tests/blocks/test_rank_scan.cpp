// Mask scans divided among ranks, for communicators of many sizes: every array and number equals that of one
// process.
#include "blocks/rank_scan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blocks/plan.hpp"
#include "ejk/mask_layouts.hpp"
#include "support/arrays.hpp"
#include "support/block_states.hpp"
#include "support/counted_source.hpp"
#include "support/random_mask.hpp"
#include "support/thread_communicator.hpp"

using namespace ejk;
using plain::between;
using plain::same_bytes;
using plain::same_ranges;

namespace {

constexpr std::int64_t kRankCounts[] = {1, 2, 3, 5, 16};

// With the pictures, and what they say of blocks.
std::string text_of(const Report& report) { return to_json(report, {}) + to_html(report, {}); }

void check_same(const MaskSummary& a, const MaskSummary& b) {
  CHECK(a.q_length == b.q_length);
  CHECK(a.kv_length == b.kv_length);
  CHECK(test::all_states(*a.states) == test::all_states(*b.states));
  CHECK(std::tuple(a.empty_blocks, a.partial_blocks, a.full_blocks, a.true_elements) ==
        std::tuple(b.empty_blocks, b.partial_blocks, b.full_blocks, b.true_elements));
  CHECK(a.distinct_partial_blocks == b.distinct_partial_blocks);
  CHECK(same_ranges(a.rows_without_key, b.rows_without_key));
  CHECK(same_ranges(a.keys_without_row, b.keys_without_row));
  CHECK(a.cell_blocks == b.cell_blocks);
  CHECK(a.partial_elements == b.partial_elements);
}

// The arrays that ranks hold in parts, put together; every element must be there once.
std::vector<std::pair<std::string, Array>> together(const std::vector<MaskArrays>& shares) {
  std::vector<std::pair<std::string, Array>> arrays;
  for (std::size_t a = 0; a < shares.front().arrays.size(); ++a) {
    const auto& [name, elements_of_all, parts_of_first] = shares.front().arrays[a];
    if (!parts_of_first) {  // of a single rank
      arrays.emplace_back(name, read_all(*elements_of_all));
      continue;
    }
    const ArrayType type = type_of(*elements_of_all);
    const Shape& shape = type.shape;
    const std::int64_t size = size_of(type.dtype);
    Array array(type.dtype, shape);
    std::vector<std::uint8_t> counts(static_cast<std::size_t>(array.size()));
    for (const MaskArrays& share : shares)
      for (const ArrayPart& part : *share.arrays[a].parts) {
        REQUIRE(part.elements->shape() == part.box.count);
        REQUIRE(part.elements->dtype() == type.dtype);
        const Array elements = read_all(*part.elements);
        for (std::int64_t n = 0; n < elements.size(); ++n) {
          std::int64_t index = 0, stride = 1, rest = n;
          for (std::size_t d = shape.size(); d-- > 0;) {
            index += (part.box.start[d] + rest % part.box.count[d]) * stride;
            rest /= part.box.count[d];
            stride *= shape[d];
          }
          if (index < 0 || index >= array.size()) FAIL("a part lies outside of its array");
          std::memcpy(array.data() + index * size, elements.data() + n * size,
                      static_cast<std::size_t>(size));
          ++counts[static_cast<std::size_t>(index)];
        }
      }
    CHECK(std::all_of(counts.begin(), counts.end(), [](auto n) { return n == 1; }));
    arrays.emplace_back(name, std::move(array));
  }
  return arrays;
}

void check_ranks(const MaskArraysPlan& plan, std::int64_t ranks) {
  CAPTURE(ranks);
  const MaskArrays alone = plan.run();
  const std::vector<MaskArrays> shares =
      test::results_of_ranks(ranks, [&](Communicator& comm) { return plan.run(comm); });
  const auto expected = together({alone}), got = together(shares);
  REQUIRE(got.size() == expected.size());
  for (std::size_t n = 0; n < got.size(); ++n) {
    CAPTURE(expected[n].first);
    CHECK(got[n].first == expected[n].first);
    CHECK(same_bytes(got[n].second, expected[n].second));
  }
  for (std::size_t r = 0; r < shares.size(); ++r) {
    CHECK(shares[r].summaries.empty() == (r > 0));
    CHECK(shares[r].absent == alone.absent);
    CHECK(shares[r].differing == alone.differing);
    REQUIRE(shares[r].arrays.size() == shares[0].arrays.size());
    for (std::size_t n = 0; n < shares[0].arrays.size(); ++n) {
      CHECK(shares[r].arrays[n].name == shares[0].arrays[n].name);
      CHECK(to_string(type_of(*shares[r].arrays[n].elements)) ==
            to_string(type_of(*shares[0].arrays[n].elements)));
    }
  }
  CHECK(text_of(describe(shares[0])) == text_of(describe(alone)));
}

MaskLayoutSettings settings_of(Direction direction, MaskInfoKind kind) {
  return {.direction = direction, .pad = true, .dynamic = kind == MaskInfoKind::dynamic};
}

// Rows of blocks of so many kinds, of which equal ones are far from each other; 0: all differ.
Mask striped(plain::Random& random, std::int64_t q, std::int64_t kv, std::int64_t height,
             std::int64_t kinds) {
  std::vector<std::vector<std::uint8_t>> rows;
  const auto add_row = [&] {
    rows.emplace_back(static_cast<std::size_t>(kv));
    for (auto& element : rows.back()) element = static_cast<std::uint8_t>(random() >> 63);
  };
  for (std::int64_t n = kinds * height; n > 0; --n) add_row();
  std::vector<std::uint8_t> elements;
  for (std::int64_t r = 0, first = 0; r < q; ++r) {
    if (r % height == 0) first = kinds > 0 ? between(random, 0, kinds - 1) * height : r;
    if (kinds == 0) add_row();
    const auto& row = rows[static_cast<std::size_t>(first + r % height)];
    elements.insert(elements.end(), row.begin(), row.end());
  }
  return array_mask(make_source(plain::array_of(q, kv, elements)));
}

}  // namespace

TEST_CASE("a MaskInfo of any comm is that of one process") {
  plain::Random random(31);
  for (int round = 0; round < 50; ++round) {
    const std::int64_t q = between(random, 1, 90),
                       kv = between(random, 0, 3) == 0 ? q : between(random, 1, 150);
    const BlockShape block{between(random, 1, 20), between(random, 1, 40)};
    std::vector<Mask> some, heads;
    for (std::int64_t n = between(random, 1, 3); n > 0; --n)
      some.push_back(plain::random_mask(random, q, kv, 2).mask);
    for (std::int64_t n = between(random, 1, 4); n > 0; --n)
      heads.push_back(some[static_cast<std::size_t>(between(random, 0, std::ssize(some) - 1))]);
    const auto direction = between(random, 0, 1) == 0 ? Direction::forward : Direction::dkv;
    const auto kind = between(random, 0, 2) == 0 ? MaskInfoKind::dynamic : MaskInfoKind::fixed;
    MaskLayoutSettings settings = settings_of(direction, kind);
    settings.computable = between(random, 0, 1) == 0;
    settings.shrink_grid = between(random, 0, 1) == 0;
    settings.downcast = between(random, 0, 2) > 0;
    const std::int64_t rows = (q + block.q - 1) / block.q;
    if (rows % 2 == 0) settings.q_seq_shards = 2;
    if (heads.size() % 2 == 0) settings.head_shards = 2;
    CAPTURE(round);
    check_ranks(MaskArraysPlan(heads, block, settings),
                kRankCounts[static_cast<std::size_t>(round) % std::size(kRankCounts)]);
  }
}

TEST_CASE("partial blocks that several ranks find are kept once, with the ids of one process") {
  plain::Random random(32);
  const std::int64_t q = 96, kv = 130;
  for (const std::int64_t kinds : {1, 3, 0}) {
    std::vector<Mask> heads{striped(random, q, kv, 8, kinds), striped(random, q, kv, 8, kinds)};
    heads.push_back(heads[0]);
    heads.push_back(heads[1] & causal_mask(q, kv, 20));
    for (const std::int64_t ranks : {2, 3, 5, 16, 60}) {
      for (const Direction direction : {Direction::forward, Direction::dkv})
        check_ranks(MaskArraysPlan(heads, {8, 16}, settings_of(direction, MaskInfoKind::fixed)), ranks);
      check_ranks(MaskArraysPlan(heads, {8, 16}, settings_of(Direction::forward, MaskInfoKind::dynamic)),
                  ranks);
    }
  }
}

TEST_CASE("ranks hold the partial blocks that they find first, and their limit is for these") {
  plain::Random random(33);
  const Mask mask = striped(random, 512, 512, 64, 0);
  const MaskArraysPlan plan({mask}, {64, 64}, {});
  constexpr std::int64_t kOne = 64 * 8 + 96, kDigest = 96;  // bytes of a block, and of knowing it
  const std::int64_t limit = 16 * kOne + 64 * kDigest;      // 64 blocks, of 4 ranks
  CHECK_THROWS_AS(plan.run(single_process(), {}, limit), Error);
  const auto shares =
      test::results_of_ranks(4, [&](Communicator& comm) { return plan.run(comm, {}, limit); });
  std::int64_t next = 0;
  for (const MaskArrays& share : shares)
    for (const ArrayPart& part : *share.arrays[3].parts) {
      CHECK(part.box == ArrayBox{{next, 0, 0}, {16, 64, 64}});
      next += 16;
    }
  CHECK(next == 64);
  CHECK_THROWS_AS(test::run_ranks(4, [&](Communicator& comm) { plan.run(comm, {}, limit - 1); }), Error);
}

TEST_CASE("all ranks get the scan of a mask that they share") {
  plain::Random random(34);
  for (int round = 0; round < 30; ++round) {
    const std::int64_t q = between(random, 1, 200), kv = between(random, 1, 300);
    const Mask mask = plain::random_mask(random, q, kv, 3).mask;
    const BlockShape block{between(random, 1, 30), between(random, 1, 90)};
    const MaskSummary expected = blocks::scan_mask(mask, block, nullptr).summary;
    for (const std::int64_t ranks : kRankCounts) {
      std::atomic<std::int64_t> done{0};
      const auto found = test::results_of_ranks(ranks, [&](Communicator& comm) {
        return blocks::scan_mask(
            mask, block, nullptr, [&](std::int64_t more) { done += more; }, comm);
      });
      for (const blocks::Scan& scan : found) check_same(scan.summary, expected);
      CHECK(done == expected.states->blocks());
    }
  }
}

TEST_CASE("heads are told apart by any rank, wherever they differ") {
  plain::Random random(35);
  const std::int64_t q = 70, kv = 90;
  std::vector<std::uint8_t> elements(static_cast<std::size_t>(q * kv));
  for (auto& e : elements) e = static_cast<std::uint8_t>(between(random, 0, 1));
  const auto stored = [&] { return array_mask(make_source(plain::array_of(q, kv, elements))); };
  std::vector<Mask> heads{stored(), stored()};
  for (const std::int64_t row : {0, 34, 69}) {
    std::uint8_t& one = elements[static_cast<std::size_t>(row * kv + 89)];
    one ^= 1;
    heads.push_back(stored());
    heads.push_back(stored() & causal_mask(q, kv));
    heads.push_back(stored() & causal_mask(q, kv));
    heads.push_back(~stored());
    one ^= 1;
  }
  heads.push_back(stored());
  heads.push_back(causal_mask(q, kv));
  const blocks::DistinctMasks expected = blocks::distinct_masks(heads, single_process());
  CHECK(expected.masks.size() == 1 + 3 * 3 + 1);
  for (const std::int64_t ranks : {2, 3, 16, 71})
    for (const auto& found : test::results_of_ranks(
             ranks, [&](Communicator& comm) { return blocks::distinct_masks(heads, comm).of_head; }))
      CHECK(found == expected.of_head);
}

TEST_CASE("a stored mask is read once by several ranks, and in order by each rank") {
  plain::Random random(36);
  const std::int64_t q = 256, kv = 300;
  Array array(DType::boolean, {q, kv});
  for (bool& e : array.elements<bool>()) e = between(random, 0, 1) == 1;
  for (const auto order : {ArrayAccess::Order::sequential, ArrayAccess::Order::any})
    for (const std::int64_t ranks : {1, 2, 3, 5, 16, 40}) {
      std::vector<std::int64_t> read(static_cast<std::size_t>(ranks));
      std::atomic<bool> in_order{true};
      test::run_ranks(ranks, [&](Communicator& comm) {
        const auto source = std::make_shared<plain::CountedSource>(array, order);
        const MaskArraysPlan plan({array_mask(source)}, {16, 50}, {});
        plan.run(comm);
        read[static_cast<std::size_t>(comm.rank())] = source->elements;
        if (!source->in_order) in_order = false;
      });
      CHECK(std::accumulate(read.begin(), read.end(), std::int64_t{0}) == array.size());
      CHECK(*std::max_element(read.begin(), read.end()) <= (q / ranks / 16 + 1) * 16 * kv);
      CHECK(in_order);
    }
}

TEST_CASE("what a rank finds wrong in its rows is thrown") {
  Array bias(DType::float32, {300, 300});
  bias.elements<float>()[250 * 300 + 7] = 0.5f;
  const Mask m = array_mask(make_source(bias.view(), "bias"), Polarity::additive);
  const MaskArraysPlan plan({m}, {50, 50}, {});
  CHECK_THROWS_WITH_AS(
      test::run_ranks(3, [&](Communicator& comm) { plan.run(comm); }),
      "bias: element [250, 7] is 0.5: an additive mask holds 0 (attend) and -1e4 or less (hide)", Error);
}

TEST_CASE("shares of work are even by what has to be looked at, and together are all of it") {
  const std::int64_t n = 4096;
  Array array(DType::boolean, {n, n});
  const Mask mask = array_mask(make_source(array.view())) & causal_mask(n, n);
  const MaskArraysPlan plan({mask}, {64, 64}, {});
  const auto sum = [](const std::vector<RankWork>& shares, auto RankWork::*what) {
    double all = 0;
    for (const RankWork& share : shares) all += static_cast<double>(share.*what);
    return all;
  };
  const auto one = plan.shares(1);
  CHECK(one.at(0).peak_bytes == plan.work_bytes());
  CHECK(one[0].read_bytes == (n / 64) * (n / 64 + 1) / 2 * 64 * 64);
  for (const std::int64_t ranks : {2, 5, 16, 100}) {
    const auto shares = plan.shares(ranks);
    REQUIRE(std::ssize(shares) == ranks);
    CHECK(sum(shares, &RankWork::cost) == doctest::Approx(one[0].cost));
    CHECK(sum(shares, &RankWork::read_bytes) == doctest::Approx(static_cast<double>(one[0].read_bytes)));
    const auto row = static_cast<double>(64 * n * 2);  // the costliest, about
    const std::int64_t blocks = (n / 64) * (n / 64);
    const double indices = blocks::kBytesOfIndices * static_cast<double>(blocks);
    for (std::size_t r = 0; r < shares.size(); ++r)
      CHECK(shares[r].cost <= one[0].cost / static_cast<double>(ranks) + row + (r == 0 ? indices : 0));
    for (std::size_t r = 1; r < shares.size(); ++r) CHECK(shares[r].peak_bytes <= shares[0].peak_bytes);
  }
  // The rows of a causal mask are the longer the later they are.
  const blocks::RowPartition two(2, {blocks::RowCosts(mask, {64, 64})});
  CHECK(64 * two.rows(0, 0).end > n / 2 + n / 8);
  CHECK(64 * two.rows(1, 0).end == n);
}
