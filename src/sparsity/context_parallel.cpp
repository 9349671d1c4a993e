// Context parallelism. Queries are partitioned at every bound of any distribution: the work of a rank is the
// sum over its ranges, its keys their union.
// tests: tests/sparsity/test_sparsity.cpp
#include "sparsity/context_parallel.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/threads.hpp"
#include "kernels/kernels.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

__extension__ using Exact = __int128;

constexpr std::int64_t kQueriesAtOnce = 64;  // whose elements a thread reads

std::int64_t chunk_begin(std::int64_t length, std::int64_t chunks, std::int64_t c) {
  return length / chunks * c + std::min(c, length % chunks);
}

// The rank of each range, by the chunk that contains it.
template <class RankOf>
std::vector<std::int64_t> by_chunk(const QueryRuns& runs, std::int64_t chunks, RankOf&& rank_of) {
  const std::int64_t length = runs.bounds.back();
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(runs.count()));
  std::int64_t c = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    while (runs.bounds[r] >= chunk_begin(length, chunks, c + 1)) ++c;
    ranks[r] = rank_of(c);
  }
  return ranks;
}

// Query blocks in order of decreasing work; of equals the first one first.
std::vector<std::size_t> heaviest_first(const std::vector<std::int64_t>& work) {
  std::vector<std::size_t> order(work.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  return order;
}

// The rank of each query block.
std::vector<std::int64_t> balanced(const QueryRuns& runs, std::int64_t q_block, std::int64_t ranks) {
  const std::int64_t blocks = core::ceil_div(runs.bounds.back(), q_block);
  std::vector<std::int64_t> work(static_cast<std::size_t>(blocks)), rank_of(work.size());
  for (std::int64_t r = 0; r < runs.count(); ++r)
    work[static_cast<std::size_t>(runs.bounds[static_cast<std::size_t>(r)] / q_block)] +=
        runs.pairs[static_cast<std::size_t>(r)];

  // `extra` ranks get one block more than `most`. Queues by load, then by rank: ranks with fewer blocks than
  // `most`, and those with as many, which may take one more.
  const std::int64_t most = blocks / ranks;
  std::int64_t extra = blocks % ranks;
  using Load = std::pair<std::int64_t, std::int64_t>;  // and rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> below, at_most;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
  for (std::int64_t r = 0; r < ranks; ++r) (most > 0 ? below : at_most).emplace(0, r);
  for (const std::size_t block : heaviest_first(work)) {
    const bool is_extra = below.empty() || (extra > 0 && !at_most.empty() && at_most.top() < below.top());
    auto& from = is_extra ? at_most : below;
    const auto [load, rank] = from.top();
    from.pop();
    extra -= is_extra ? 1 : 0;
    if (++counts[static_cast<std::size_t>(rank)] <= most) {
      const Load more{load + work[block], rank};
      (counts[static_cast<std::size_t>(rank)] < most ? below : at_most).push(more);
    }
    rank_of[block] = rank;
  }
  return rank_of;
}

std::vector<std::int64_t> ptrr(const QueryRuns& runs, const std::vector<std::int64_t>& computed,
                               std::int64_t q_block, std::int64_t ranks) {
  std::vector<std::int64_t> work(static_cast<std::size_t>(core::ceil_div(runs.bounds.back(), q_block)));
  // Of a query: as many keys as its row has in visited blocks.
  for (std::size_t r = 0; r < computed.size(); ++r)
    work[static_cast<std::size_t>(runs.bounds[r] / q_block)] =
        computed[r] / (runs.bounds[r + 1] - runs.bounds[r]);
  std::vector<std::int64_t> rank_of(work.size());
  std::int64_t n = 0;
  for (const std::size_t block : heaviest_first(work)) {
    const std::int64_t round = n / ranks, at = n++ % ranks;
    rank_of[block] = round % 2 == 0 ? at : ranks - 1 - at;
  }
  return rank_of;
}

std::vector<std::int64_t> of_runs(const QueryRuns& runs, const std::vector<std::int64_t>& block_ranks,
                                  std::int64_t q_block) {
  std::vector<std::int64_t> ranks;
  for (std::size_t r = 0; r + 1 < runs.bounds.size(); ++r)
    ranks.push_back(block_ranks[static_cast<std::size_t>(runs.bounds[r] / q_block)]);
  return ranks;
}

std::vector<std::vector<std::int64_t>> by_rank(const std::vector<std::int64_t>& rank_of, std::int64_t ranks) {
  std::vector<std::vector<std::int64_t>> runs_of(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < rank_of.size(); ++r)
    runs_of[static_cast<std::size_t>(rank_of[r])].push_back(static_cast<std::int64_t>(r));
  return runs_of;
}

std::vector<Word> keys_seen(const QueryRuns& runs, const std::vector<std::int64_t>& of) {
  std::vector<Word> seen(static_cast<std::size_t>(runs.row_words));
  for (const std::int64_t r : of) {
    const Word* keys = runs.keys_of(r);
    for (std::size_t w = 0; w < seen.size(); ++w) seen[w] |= keys[w];
  }
  return seen;
}

// The load of a rank with the ranges `of`, whose queries attend to the keys `seen`.
RankLoad load_of(const QueryRuns& runs, const std::vector<std::int64_t>& computed, std::int64_t kv_length,
                 const std::vector<std::int64_t>& of, std::vector<Word> seen) {
  const auto key_at = [&](std::int64_t query) {
    return static_cast<std::int64_t>(Exact{query} * kv_length / runs.bounds.back());
  };
  RankLoad load;
  std::vector<Word> keys(seen.size());
  for (const std::int64_t r : of) {
    const auto at = static_cast<std::size_t>(r);
    load.queries += runs.bounds[at + 1] - runs.bounds[at];
    load.pairs_allowed += runs.pairs[at];
    load.pairs_computed += computed[at];
    const std::int64_t k_begin = key_at(runs.bounds[at]), k_end = key_at(runs.bounds[at + 1]);
    load.keys_held += k_end - k_begin;
    set_bits(keys.data(), k_begin, k_end);
  }
  for (std::size_t w = 0; w < seen.size(); ++w) seen[w] &= ~keys[w];
  load.keys_received = kernels::active().count_bits(seen.data(), runs.row_words);
  return load;
}

std::vector<RankLoad> loads(const QueryRuns& runs, const std::vector<std::int64_t>& computed,
                            std::int64_t kv_length, const std::vector<std::int64_t>& rank_of,
                            std::int64_t ranks) {
  const auto runs_of = by_rank(rank_of, ranks);
  const double work = static_cast<double>(runs.count()) * static_cast<double>(runs.row_words) / 4;
  std::vector<RankLoad> all(static_cast<std::size_t>(ranks));
  core::parallel_for(ranks, work, [&](std::int64_t rank) {
    const std::vector<std::int64_t>& of = runs_of[static_cast<std::size_t>(rank)];
    all[static_cast<std::size_t>(rank)] = load_of(runs, computed, kv_length, of, keys_seen(runs, of));
  });
  return all;
}

// The workspace of a thread.
struct KeyPanel {
  BitBuffer bits;
  std::vector<Word> any, all;  // of its rows
};

// Adds the pairs of these queries and keys, and the keys to `seen`.
std::int64_t add_read(KeyPanel& panel, const MaskNode& node, const Rectangle& where, Word* seen) {
  std::int64_t pairs = 0;
  for (std::int64_t q = where.q_begin; q < where.q_end; q += kQueriesAtOnce) {
    const Rectangle some{q, std::min(where.q_end, q + kQueriesAtOnce), where.k_begin, where.k_end};
    const BitRows bits = panel.bits.rows(some.rows(), some.columns());
    node.fill(some, bits);
    const kernels::Kernels& kernel = kernels::active();
    pairs += kernel.count_bits(bits.words, bits.rows * bits.row_words);
    panel.any.assign(static_cast<std::size_t>(bits.row_words), Word{0});
    panel.all.resize(panel.any.size());
    for (std::int64_t r = 0; r < bits.rows; ++r)
      kernel.fold_bits(bits.row(r), bits.row_words, panel.any.data(), panel.all.data());
    put_bits(seen, some.k_begin, panel.any.data(), some.columns());
  }
  return pairs;
}

}  // namespace

QueryRuns::QueryRuns(std::vector<std::int64_t> run_bounds, std::int64_t kv_length)
    : bounds(std::move(run_bounds)),
      row_words(words_for(kv_length)),
      pairs(bounds.size() - 1),
      keys(pairs.size() * static_cast<std::size_t>(row_words)) {}

void add_scanned(QueryRuns& runs, std::int64_t weight, const Mask& mask, BlockShape block,
                 const BlockStates& states) {
  constexpr auto kEmpty = static_cast<std::uint8_t>(BlockState::empty),
                 kFull = static_cast<std::uint8_t>(BlockState::full);
  const MaskNode& node = mask.node();
  const double work = static_cast<double>(mask.q_length()) * static_cast<double>(mask.kv_length()) / 8;
  core::parallel_reduce(
      runs.count(), node.random_access() ? core::threads_for(runs.count(), work) : 1,
      [] { return KeyPanel{}; },
      [&](KeyPanel& panel, std::int64_t run) {
        const auto r = static_cast<std::size_t>(run);
        const std::int64_t begin = runs.bounds[r], end = runs.bounds[r + 1], i = begin / block.q;
        const auto row = states.states(i);
        const std::int64_t first = states.run(i).begin;
        Word* const seen = runs.keys_of(run);
        std::int64_t pairs = 0;
        for (std::int64_t j = 0; j < std::ssize(row);) {  // blocks of one state together
          // Sequential sources are read by whole rows, with what the states determine.
          const std::uint8_t state = node.random_access() ? row[static_cast<std::size_t>(j)] : kPartial;
          const std::int64_t k_begin = (first + j) * block.kv;
          while (j < std::ssize(row) && (row[static_cast<std::size_t>(j)] == state || !node.random_access()))
            ++j;
          const std::int64_t k_end = std::min((first + j) * block.kv, mask.kv_length());
          if (state == kEmpty) continue;
          if (state == kFull) {
            pairs += (end - begin) * (k_end - k_begin);
            set_bits(seen, k_begin, k_end);
          } else {
            pairs += add_read(panel, node, {begin, end, k_begin, k_end}, seen);
          }
        }
        runs.pairs[r] += weight * pairs;
      },
      [](const KeyPanel&) {});
}

std::vector<std::int64_t> run_bounds(std::int64_t q_length, std::int64_t q_block, std::int64_t ranks) {
  std::vector<std::int64_t> bounds;
  for (std::int64_t q = 0; q < q_length; q += q_block) bounds.push_back(q);
  for (const std::int64_t chunks : {ranks, 2 * ranks})
    for (std::int64_t c = 0; c <= chunks; ++c) bounds.push_back(chunk_begin(q_length, chunks, c));
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  return bounds;
}

std::vector<ContextParallel> rank_loads(const QueryRuns& runs, const std::vector<std::int64_t>& computed,
                                        std::int64_t kv_length, BlockShape block, std::int64_t ranks,
                                        bool one_mask) {
  std::vector<ContextParallel> all;
  const auto add = [&](Distribution distribution, const std::vector<std::int64_t>& rank_of) {
    all.push_back({distribution, loads(runs, computed, kv_length, rank_of, ranks)});
  };
  const auto add_blocks = [&](Distribution distribution, std::vector<std::int64_t> block_ranks) {
    add(distribution, of_runs(runs, block_ranks, block.q));
    all.back().block_ranks = std::move(block_ranks);
  };
  add(Distribution::contiguous, by_chunk(runs, ranks, [](std::int64_t c) { return c; }));
  add(Distribution::zigzag,
      by_chunk(runs, 2 * ranks, [&](std::int64_t c) { return std::min(c, 2 * ranks - 1 - c); }));
  add_blocks(Distribution::balanced, balanced(runs, block.q, ranks));
  if (one_mask && block.q == block.kv && core::ceil_div(runs.bounds.back(), block.q) % ranks == 0)
    add_blocks(Distribution::ptrr, ptrr(runs, computed, block.q, ranks));
  return all;
}

std::optional<std::int64_t> rank_bytes(std::int64_t q_length, std::int64_t kv_length, std::int64_t q_block,
                                       std::int64_t ranks) {
  // A range has bounds, pairs twice and a rank; so has a block, and a rank has loads of four distributions.
  // Each thread has the keys that a rank attends to and those that it stores, and elements of some queries,
  // with as many of an operand of a composed mask.
  const std::int64_t runs = core::ceil_div(q_length, q_block) + 3 * ranks, words = words_for(kv_length);
  const auto keys = core::checked_mul(8 * words, runs),
             threads_keys = core::checked_mul(16 * (kQueriesAtOnce + 1) * words, threads());
  if (!keys || !threads_keys || std::max({*keys, *threads_keys, runs}) > core::kMostBytes / 1024)
    return std::nullopt;
  return *keys + *threads_keys + 160 * runs + 320 * ranks;
}

}  // namespace ejk::blocks

namespace ejk {

namespace {

using blocks::Word;

struct SeenByRanks {
  std::vector<RankLoad> loads;
  std::vector<Word> keys;  // (ranks, row_words)
  blocks::BitBuffer rows;
};

}  // namespace

std::int64_t loads_of_order_bytes(std::int64_t tokens, std::int64_t ranks) {
  const auto words = 8 * static_cast<double>(blocks::words_for(tokens));
  return core::bytes_of_estimate(
      8 * static_cast<double>(tokens) +
      (threads() + 1) *
          (words * static_cast<double>(blocks::kQueriesAtOnce + ranks) + 40 * static_cast<double>(ranks)));
}

std::vector<RankLoad> loads_of_order(const Mask& mask, std::span<const std::int32_t> order,
                                     std::span<const std::int64_t> rank_offsets) {
  const std::int64_t tokens = std::ssize(order), row_words = blocks::words_for(tokens);
  const auto ranks = std::ssize(rank_offsets) - 1;
  if (mask.q_length() != tokens || mask.kv_length() != tokens)
    throw core::usage("the order has {} tokens, the mask {} queries and {} keys", tokens, mask.q_length(),
                      mask.kv_length());
  std::vector<std::int32_t> rank_of(order.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (auto place = rank_offsets[static_cast<std::size_t>(rank)];
         place < rank_offsets[static_cast<std::size_t>(rank) + 1]; ++place)
      rank_of[static_cast<std::size_t>(order[static_cast<std::size_t>(place)])] =
          static_cast<std::int32_t>(rank);

  SeenByRanks all{std::vector<RankLoad>(static_cast<std::size_t>(ranks)),
                  std::vector<Word>(static_cast<std::size_t>(ranks * row_words)),
                  {}};
  const std::int64_t panels = core::ceil_div(tokens, blocks::kQueriesAtOnce);
  const double work = static_cast<double>(tokens) * static_cast<double>(row_words);
  core::parallel_reduce(
      panels, mask.node().random_access() ? core::threads_for(panels, work) : 1,
      [&] {
        return SeenByRanks{std::vector<RankLoad>(all.loads.size()), std::vector<Word>(all.keys.size()), {}};
      },
      [&](SeenByRanks& part, std::int64_t panel) {
        const std::int64_t begin = panel * blocks::kQueriesAtOnce,
                           end = std::min(tokens, begin + blocks::kQueriesAtOnce);
        const blocks::BitRows bits = part.rows.rows(end - begin, tokens);
        mask.node().fill({begin, end, 0, tokens}, bits);
        for (std::int64_t q = begin; q < end; ++q) {
          const std::int32_t rank = rank_of[static_cast<std::size_t>(q)];
          RankLoad& load = part.loads[static_cast<std::size_t>(rank)];
          Word* const row = bits.row(q - begin);
          ++load.queries;
          load.pairs_allowed += kernels::active().count_bits(row, row_words);
          Word* const keys = part.keys.data() + rank * row_words;
          for (std::int64_t w = 0; w < row_words; ++w) keys[w] |= row[w];
        }
      },
      [&](const SeenByRanks& part) {
        for (std::size_t rank = 0; rank < all.loads.size(); ++rank) {
          all.loads[rank].queries += part.loads[rank].queries;
          all.loads[rank].pairs_allowed += part.loads[rank].pairs_allowed;
        }
        for (std::size_t w = 0; w < all.keys.size(); ++w) all.keys[w] |= part.keys[w];
      });
  for (std::int64_t token = 0; token < tokens; ++token)
    all.keys[static_cast<std::size_t>(rank_of[static_cast<std::size_t>(token)] * row_words + token / 64)] &=
        ~(Word{1} << (token % 64));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RankLoad& load = all.loads[static_cast<std::size_t>(rank)];
    load.keys_held = load.queries;
    load.keys_received = kernels::active().count_bits(all.keys.data() + rank * row_words, row_words);
  }
  return std::move(all.loads);
}

}  // namespace ejk
