// Block sizes side by side, against plain loops over the dense mask and against process_mask at each size;
// the ranks of context parallelism against sets of keys.
#include "ejk/sparsity.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ejk/cp_order.hpp"
#include "mask/node.hpp"
#include "support/block_states.hpp"
#include "support/counted_source.hpp"
#include "support/equal.hpp"
#include "support/golden.hpp"
#include "support/random_mask.hpp"
#include "support/threads.hpp"

using namespace ejk;
using plain::between;

namespace {

using Elements = std::vector<std::uint8_t>;

std::vector<BlockShape> random_blocks(plain::Random& random) {
  std::vector<BlockShape> blocks;
  for (std::int64_t n = between(random, 1, 5); n > 0; --n) {
    const std::int64_t most = between(random, 0, 3) == 0 ? 150 : 20;
    blocks.push_back({between(random, 1, most), between(random, 1, most)});
    if (between(random, 0, 2) == 0) blocks.push_back({2 * blocks.back().q, 3 * blocks.back().kv});
  }
  return blocks;
}

// Masks of heads, some of them equal.
struct Heads {
  std::int64_t q, kv;
  std::vector<Mask> masks;
  std::vector<Elements> elements;
};

Heads random_heads(plain::Random& random) {
  Heads heads{between(random, 1, 140), between(random, 1, 200), {}, {}};
  if (between(random, 0, 3) == 0) heads.kv = heads.q;
  std::vector<plain::Pair> some;
  for (std::int64_t n = between(random, 1, 2); n > 0; --n)
    some.push_back(plain::random_mask(random, heads.q, heads.kv, 2));
  for (std::int64_t n = between(random, 1, 3); n > 0; --n) {
    const plain::Pair& one =
        some[static_cast<std::size_t>(between(random, 0, static_cast<std::int64_t>(some.size()) - 1))];
    heads.masks.push_back(one.mask);
    heads.elements.push_back(one.elements);
  }
  return heads;
}

// True elements of a block, whose last row and column may be cut short.
std::int64_t allowed(const Heads& heads, std::size_t h, BlockShape block, std::int64_t i, std::int64_t j) {
  std::int64_t pairs = 0;
  for (std::int64_t q = i * block.q; q < std::min((i + 1) * block.q, heads.q); ++q)
    for (std::int64_t k = j * block.kv; k < std::min((j + 1) * block.kv, heads.kv); ++k)
      pairs += heads.elements[h][static_cast<std::size_t>(q * heads.kv + k)];
  return pairs;
}

std::int64_t metadata_of(const MaskInfo& info) {
  std::int64_t bytes = 0;
  for (const auto& named : stored_arrays(info).arrays)
    if (named.first != "is_dynamic_mask") bytes += type_of(*named.second).bytes();
  return bytes;
}

void check_size(const Heads& heads, const BlockSizeCost& size, std::int64_t block_cost) {
  const BlockShape block = size.block;
  const std::int64_t rows = (heads.q + block.q - 1) / block.q, columns = (heads.kv + block.kv - 1) / block.kv;
  std::int64_t states[3] = {}, heaviest = 0;
  for (std::size_t h = 0; h < heads.masks.size(); ++h)
    for (std::int64_t i = 0; i < rows; ++i) {
      std::int64_t visited = 0;
      for (std::int64_t j = 0; j < columns; ++j) {
        const std::int64_t pairs = allowed(heads, h, block, i, j);
        ++states[pairs == 0 ? 0 : pairs == block.q * block.kv ? 2 : 1];
        visited += pairs > 0;
      }
      heaviest = std::max(heaviest, visited);
    }
  CHECK(size.q_blocks == rows);
  CHECK(size.kv_blocks == columns);
  CHECK(size.empty_blocks == states[0]);
  CHECK(size.partial_blocks == states[1]);
  CHECK(size.full_blocks == states[2]);
  CHECK(size.pairs_computed == (states[1] + states[2]) * block.q * block.kv);
  CHECK(size.cost == static_cast<double>((states[1] + states[2]) * (block.q * block.kv + block_cost)));
  CHECK(size.heaviest_row_blocks == heaviest);
  const double all_rows = static_cast<double>(rows) * static_cast<double>(heads.masks.size());
  CHECK(size.mean_row_blocks == doctest::Approx(static_cast<double>(states[1] + states[2]) / all_rows));
  if (heaviest > 0) {
    std::int64_t visited = 0;
    for (std::int64_t j = 0; j < columns; ++j)
      visited +=
          allowed(heads, static_cast<std::size_t>(size.heaviest_head), block, size.heaviest_row, j) > 0;
    CHECK(visited == heaviest);
  }

  // Padding: the part of visited blocks beyond the edge.
  std::int64_t padding = 0;
  for (std::size_t h = 0; h < heads.masks.size(); ++h)
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        if (allowed(heads, h, block, i, j) > 0)
          padding += block.q * block.kv - (std::min((i + 1) * block.q, heads.q) - i * block.q) *
                                              (std::min((j + 1) * block.kv, heads.kv) - j * block.kv);
  CHECK(size.padding_pairs == padding);

  ProcessMaskOptions options;
  options.pad = true;
  const MaskInfo info = process_mask(heads.masks, block, options);
  CHECK(size.distinct_partial_blocks == info.distinct_partial_blocks);
  CHECK(size.metadata_bytes == metadata_of(info));
  REQUIRE(size.pictures.size() == info.summaries.size());
  for (std::size_t u = 0; u < size.pictures.size(); ++u) {
    CHECK(test::all_states(*size.pictures[u].states) == test::all_states(*info.summaries[u].states));
  }
}

// The rank of each query, straight from the definitions.
std::vector<std::int64_t> plain_ranks(const Heads& heads, BlockShape block, std::int64_t ranks,
                                      Distribution distribution) {
  std::vector<std::int64_t> rank_of(static_cast<std::size_t>(heads.q));
  const std::int64_t blocks = (heads.q + block.q - 1) / block.q;
  if (distribution == Distribution::ptrr) {
    std::vector<std::pair<std::int64_t, std::int64_t>> rows;  // fewer visited blocks last, then by index
    for (std::int64_t i = 0; i < blocks; ++i) {
      std::int64_t visited = 0;
      for (std::int64_t j = 0; j * block.kv < heads.kv; ++j) visited += allowed(heads, 0, block, i, j) > 0;
      rows.emplace_back(-visited, i);
    }
    std::sort(rows.begin(), rows.end());
    for (std::size_t n = 0; n < rows.size(); ++n) {
      const auto at = static_cast<std::int64_t>(n) % (2 * ranks);
      for (std::int64_t q = rows[n].second * block.q; q < std::min((rows[n].second + 1) * block.q, heads.q);
           ++q)
        rank_of[static_cast<std::size_t>(q)] = at < ranks ? at : 2 * ranks - 1 - at;
    }
    return rank_of;
  }
  if (distribution != Distribution::balanced) {
    const std::int64_t runs = distribution == Distribution::contiguous ? ranks : 2 * ranks;
    std::int64_t q = 0;
    for (std::int64_t run = 0; run < runs; ++run)
      for (std::int64_t n = heads.q / runs + (run < heads.q % runs ? 1 : 0); n > 0; --n)
        rank_of[static_cast<std::size_t>(q++)] = run < ranks ? run : 2 * ranks - 1 - run;
    return rank_of;
  }
  std::vector<std::int64_t> work;
  for (std::int64_t i = 0; i < blocks; ++i) {
    work.push_back(0);
    for (std::size_t h = 0; h < heads.masks.size(); ++h)
      work.back() += allowed(heads, h, {block.q, heads.kv}, i, 0);
  }
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks)), count(load.size());
  std::set<std::int64_t> left;
  for (std::int64_t i = 0; i < blocks; ++i) left.insert(i);
  while (!left.empty()) {
    std::int64_t block_at = *left.begin();
    for (const std::int64_t i : left)
      if (work[static_cast<std::size_t>(i)] > work[static_cast<std::size_t>(block_at)]) block_at = i;
    // With one more, as many ranks as there are too many may have one more than the others.
    std::int64_t best = -1;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t more =
          std::count_if(count.begin(), count.end(), [&](std::int64_t n) { return n > blocks / ranks; });
      const std::int64_t mine = count[static_cast<std::size_t>(r)];
      const bool may = mine < blocks / ranks || (mine == blocks / ranks && more < blocks % ranks);
      if (may && (best < 0 || load[static_cast<std::size_t>(r)] < load[static_cast<std::size_t>(best)]))
        best = r;
    }
    ++count[static_cast<std::size_t>(best)];
    load[static_cast<std::size_t>(best)] += work[static_cast<std::size_t>(block_at)];
    for (std::int64_t q = block_at * block.q; q < std::min((block_at + 1) * block.q, heads.q); ++q)
      rank_of[static_cast<std::size_t>(q)] = best;
    left.erase(block_at);
  }
  return rank_of;
}

void check_ranks(const Heads& heads, BlockShape block, std::int64_t ranks, const ContextParallel& found) {
  CAPTURE(name_of(found.distribution));
  const std::vector<std::int64_t> rank_of = plain_ranks(heads, block, ranks, found.distribution);
  REQUIRE(std::ssize(found.ranks) == ranks);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    RankLoad expected;
    std::set<std::int64_t> held, seen;
    for (std::int64_t q = 0; q < heads.q; ++q) {
      if (rank_of[static_cast<std::size_t>(q)] != rank) continue;
      ++expected.queries;
      for (std::int64_t k = q * heads.kv / heads.q; k < (q + 1) * heads.kv / heads.q; ++k) held.insert(k);
      for (std::size_t h = 0; h < heads.masks.size(); ++h) {
        for (std::int64_t k = 0; k < heads.kv; ++k)
          if (heads.elements[h][static_cast<std::size_t>(q * heads.kv + k)] != 0)
            seen.insert(k), ++expected.pairs_allowed;
        for (std::int64_t j = 0; j * block.kv < heads.kv; ++j)
          if (allowed(heads, h, block, q / block.q, j) > 0) expected.pairs_computed += block.kv;
      }
    }
    for (const std::int64_t k : held) seen.erase(k);
    const RankLoad& load = found.ranks[static_cast<std::size_t>(rank)];
    CHECK(load.queries == expected.queries);
    CHECK(load.pairs_allowed == expected.pairs_allowed);
    CHECK(load.pairs_computed == expected.pairs_computed);
    CHECK(load.keys_held == std::ssize(held));
    CHECK(load.keys_received == std::ssize(seen));
  }
}

Array random_array(plain::Random& random, std::int64_t q, std::int64_t kv) {
  Array array(DType::boolean, {q, kv});
  for (bool& element : array.elements<bool>()) element = between(random, 0, 1) == 1;
  return array;
}

}  // namespace

TEST_CASE("random masks at random block sizes cost what plain loops and process_mask count") {
  plain::Random random(71);
  int with_ptrr = 0;
  for (int round = 0; round < 150; ++round) {
    CAPTURE(round);
    const Threads threads(round % 5 == 0 ? 3 : 1);
    const Heads heads = random_heads(random);
    std::vector<BlockShape> blocks = random_blocks(random);
    if (round % 3 == 0) blocks[0].kv = blocks[0].q;
    SparsityOptions options;
    options.ranks = between(random, 0, std::min<std::int64_t>(heads.q, round % 3 == 0 ? 3 : 7));
    options.block_cost = between(random, 0, 1) * between(random, 0, 5000);
    const Sparsity sparsity = measure_sparsity(heads.masks, blocks, options);
    CHECK(sparsity.shape == Shape{std::ssize(heads.masks), heads.q, heads.kv});
    std::int64_t pairs = 0;
    for (const Elements& elements : heads.elements)
      pairs += std::count(elements.begin(), elements.end(), std::uint8_t{1});
    CHECK(sparsity.pairs_allowed == pairs);
    REQUIRE(sparsity.sizes.size() == blocks.size());
    for (std::size_t s = 0; s < blocks.size(); ++s) {
      CAPTURE(to_string(blocks[s]));
      CHECK(to_string(sparsity.sizes[s].block) == to_string(blocks[s]));
      check_size(heads, sparsity.sizes[s], options.block_cost);
    }
    const BlockShape first = blocks[0];
    const bool has_ptrr = options.ranks > 0 && first.q == first.kv && sparsity.masks.size() == 1 &&
                          (heads.q + first.q - 1) / first.q % options.ranks == 0;
    with_ptrr += has_ptrr;
    REQUIRE(std::ssize(sparsity.parallel) == (options.ranks > 0 ? 3 : 0) + (has_ptrr ? 1 : 0));
    for (const ContextParallel& parallel : sparsity.parallel)
      check_ranks(heads, blocks[0], options.ranks, parallel);
  }
  CHECK(with_ptrr > 5);
}

TEST_CASE("orders of torch's PTRR are those of its load balancer") {
  int cases = 0;
  for (const golden::Case& c : golden::load("cp_order_ptrr")) {
    CAPTURE(c.name);
    const Array& elements = c.in.at("mask");
    const std::int64_t tokens = elements.shape()[0], block = c.params.at("block"),
                       ranks = c.params.at("ranks");
    const Mask mask = array_mask(make_source(elements.view(), "mask"), Polarity::keep);
    const Sparsity sparsity = measure_sparsity({mask, mask}, {{block, block}}, {.ranks = ranks});
    REQUIRE(sparsity.parallel.back().distribution == Distribution::ptrr);
    const CpTokens made = make_cp_order({.order = CpOrder::ptrr,
                                         .ranks = ranks,
                                         .tokens = tokens,
                                         .block = block,
                                         .block_ranks = sparsity.parallel.back().block_ranks});
    golden::check_equal(made.order, c, "order");
    golden::check_equal(made.inverse, c, "inverse");
    ++cases;
  }
  CHECK(cases == 12);
}

TEST_CASE("loads of any order are those of plain loops") {
  plain::Random random(73);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const Threads threads(round % 3 == 0 ? 3 : 1);
    const std::int64_t tokens = between(random, 0, 150), ranks = between(random, 1, 5);
    if (tokens == 0) continue;
    const plain::Pair one = plain::random_mask(random, tokens, tokens, 2);
    std::vector<std::int32_t> order(static_cast<std::size_t>(tokens));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t rank = 1; rank < ranks; ++rank)
      offsets.push_back(between(random, offsets.back(), tokens));
    offsets.push_back(tokens);
    const std::vector<RankLoad> loads = loads_of_order(one.mask, order, offsets);
    REQUIRE(std::ssize(loads) == ranks);
    for (std::size_t rank = 0; rank < loads.size(); ++rank) {
      std::set<std::int64_t> seen;
      std::int64_t pairs = 0;
      for (std::int64_t place = offsets[rank]; place < offsets[rank + 1]; ++place)
        for (std::int64_t k = 0; k < tokens; ++k)
          if (one.elements[static_cast<std::size_t>(order[static_cast<std::size_t>(place)] * tokens + k)] !=
              0)
            ++pairs, seen.insert(k);
      for (std::int64_t place = offsets[rank]; place < offsets[rank + 1]; ++place)
        seen.erase(order[static_cast<std::size_t>(place)]);
      CHECK(loads[rank].queries == offsets[rank + 1] - offsets[rank]);
      CHECK(loads[rank].pairs_allowed == pairs);
      CHECK(loads[rank].keys_received == std::ssize(seen));
    }
  }
}

TEST_CASE("a block is the same one whether bands or elements tell what is in it") {
  plain::Random random(72);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const std::int64_t q = between(random, 1, 300), kv = between(random, 1, 300);
    Mask told = plain::random_mask(random, q, kv, 2).mask;
    while (told.node().bands() == 0) told = plain::random_mask(random, q, kv, 2).mask;
    const Mask read = told | array_mask(make_source(Array(DType::boolean, {q, kv})));
    REQUIRE(read.node().bands() == 0);
    std::vector<BlockShape> blocks = random_blocks(random);
    blocks.push_back({between(random, 1, 200), between(random, 64, 200)});
    const Sparsity one = measure_sparsity({told}, blocks, {}),
                   both = measure_sparsity({told, read}, blocks, {});
    for (std::size_t s = 0; s < blocks.size(); ++s) {
      CHECK(one.sizes[s].distinct_partial_blocks == both.sizes[s].distinct_partial_blocks);
      CHECK(2 * one.sizes[s].partial_blocks == both.sizes[s].partial_blocks);
    }
  }
}

TEST_CASE("a stored mask is read once for each size, and once for ranks") {
  plain::Random random(6);
  const Array array = random_array(random, 700, 500);
  const Threads one(1);
  for (const auto order : {ArrayAccess::Order::sequential, ArrayAccess::Order::any}) {
    const auto read_by = [&](const std::vector<BlockShape>& blocks, std::int64_t ranks) {
      const auto source = std::make_shared<plain::CountedSource>(array, order);
      SparsityOptions options;
      options.ranks = ranks;
      const Sparsity sparsity = measure_sparsity({array_mask(source)}, blocks, options);
      CHECK(sparsity.sizes[0].partial_blocks == 11 * 8);
      if (source->elements == array.size()) CHECK(source->in_order);
      return source->elements;
    };
    CHECK(read_by({{64, 64}}, 0) == array.size());
    CHECK(read_by({{64, 64}, {48, 100}, {128, 128}, {700, 7}}, 0) == 4 * array.size());
    CHECK(read_by({{64, 64}}, 3) == 2 * array.size());
  }
  // What the rest of an expression decides is not read.
  const auto source = std::make_shared<plain::CountedSource>(array, ArrayAccess::Order::any);
  measure_sparsity({array_mask(source) & prefix_mask(700, 500, 64)}, {{64, 64}, {64, 128}});
  CHECK(source->elements == 700 * (64 + 128));
}

TEST_CASE(
    "the size that costs least has the fewest pairs, with those of its blocks, or bytes, and fits the budget") {
  const std::vector<Mask> heads{causal_mask(1000, 1000) & array_mask(make_source([] {
                                  Array all(DType::boolean, {1000, 1000});
                                  std::fill(all.elements<bool>().begin(), all.elements<bool>().end(), true);
                                  return all;
                                }()))};
  const std::vector<BlockShape> blocks{{100, 100}, {10, 10}, {50, 50}, {500, 500}};
  SparsityOptions options;
  options.block_cost = 0;
  const Sparsity by_pairs = measure_sparsity(heads, blocks, options);
  CHECK(by_pairs.least == 1);
  CHECK(by_pairs.fewest_pairs == 1);
  // 5,050 blocks of 10 x 10, 210 of 50 x 50, 55 of 100 x 100, 3 of 500 x 500.
  for (const auto& [cost, least] : {std::pair{4, 1}, {5, 2}, {161, 2}, {162, 0}, {3846, 0}, {3847, 3}}) {
    options.block_cost = cost;
    const Sparsity sparsity = measure_sparsity(heads, blocks, options);
    CHECK(sparsity.least == static_cast<std::size_t>(least));
    CHECK(sparsity.fewest_pairs == 1);
  }
  options.block_cost = -1;
  CHECK_THROWS_AS(measure_sparsity(heads, blocks, options), Error);
  options.block_cost = 0;
  options.measure = SparsityMeasure::metadata;
  const Sparsity by_metadata = measure_sparsity(heads, blocks, options);
  for (const BlockSizeCost& size : by_metadata.sizes)
    CHECK(by_metadata.sizes[by_metadata.least.value()].metadata_bytes <= size.metadata_bytes);
  options.measure = SparsityMeasure::pairs;
  options.metadata_budget = by_pairs.sizes[1].metadata_bytes - 1;
  const Sparsity small = measure_sparsity(heads, blocks, options);
  CHECK(small.least == 2);
  options.metadata_budget = 10;
  CHECK(!measure_sparsity(heads, blocks, options).least);
  // Of equals the one with less metadata; of those the first.
  SparsityOptions pairs_alone;
  pairs_alone.block_cost = 0;
  const Sparsity full =
      measure_sparsity({full_mask(64, 64)}, {{8, 8}, {32, 32}, {64, 16}, {32, 32}}, pairs_alone);
  CHECK(full.least == 1);
}

TEST_CASE("arguments that make no sense are refused") {
  const auto kind_of = [](auto&& f) {
    try {
      f();
    } catch (const Error& error) {
      return std::pair(error.kind(), error.message());
    }
    return std::pair(Error::Kind::internal, std::string("no error"));
  };
  const std::vector<Mask> heads{causal_mask(8, 8)};
  SparsityOptions options;
  options.ranks = 9;
  CHECK(kind_of([&] {
          SparsityPlan(heads, {{2, 2}}, options);
        }) == std::pair(Error::Kind::usage, std::string("8 queries cannot be shared among 9 ranks")));
  options.ranks = -1;
  CHECK(kind_of([&] { SparsityPlan(heads, {{2, 2}}, options); }).first == Error::Kind::usage);
  CHECK(kind_of([&] { SparsityPlan(heads, {}); }).first == Error::Kind::input);
  CHECK(kind_of([&] { SparsityPlan({}, {{2, 2}}); }).first == Error::Kind::input);
  CHECK(kind_of([&] { SparsityPlan(heads, {{2, 2}, {0, 4}}); }).first == Error::Kind::input);
  CHECK(kind_of([&] {
          SparsityPlan(heads, {{std::int64_t{1} << 47, std::int64_t{1} << 47}});
        }).first == Error::Kind::input);
}

TEST_CASE("the partial blocks of each size have a limit") {
  plain::Random random(8);
  const std::vector<Mask> heads{array_mask(make_source(random_array(random, 512, 512)))};
  const SparsityPlan plan(heads, {{64, 64}, {128, 128}});
  constexpr std::int64_t kOfBlock = 128;  // a digest, and bookkeeping
  CHECK_THROWS_AS(plan.run({}, 56 * kOfBlock), Error);
  CHECK(plan.run({}, 64 * kOfBlock).sizes[1].distinct_partial_blocks == 16);
}
