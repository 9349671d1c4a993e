// Context parallelism. Queries are partitioned at every bound of any distribution: the work of a rank is the
// sum over its ranges, its keys their union.
// tests: tests/blocks/test_sparsity.cpp
#include "blocks/context_parallel.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"

namespace ejk::blocks {

namespace {

__extension__ using Exact = __int128;

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

std::vector<std::int64_t> balanced(const QueryRuns& runs, std::int64_t q_block, std::int64_t ranks) {
  const std::int64_t blocks = core::ceil_div(runs.bounds.back(), q_block);
  std::vector<std::int64_t> work(static_cast<std::size_t>(blocks)), order(work.size()), rank_of(work.size());
  for (std::int64_t r = 0; r < runs.count(); ++r)
    work[static_cast<std::size_t>(runs.bounds[static_cast<std::size_t>(r)] / q_block)] +=
        runs.pairs[static_cast<std::size_t>(r)];
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return work[static_cast<std::size_t>(a)] > work[static_cast<std::size_t>(b)];
  });

  // `extra` ranks get one block more than `most`. Queues by load, then by rank: ranks with fewer blocks than
  // `most`, and those with as many, which may take one more.
  const std::int64_t most = blocks / ranks;
  std::int64_t extra = blocks % ranks;
  using Load = std::pair<std::int64_t, std::int64_t>;  // and rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> below, at_most;
  std::vector<std::int64_t> held(static_cast<std::size_t>(ranks));
  for (std::int64_t r = 0; r < ranks; ++r) (most > 0 ? below : at_most).emplace(0, r);
  for (const std::int64_t block : order) {
    const bool is_extra = below.empty() || (extra > 0 && !at_most.empty() && at_most.top() < below.top());
    auto& from = is_extra ? at_most : below;
    const auto [load, rank] = from.top();
    from.pop();
    extra -= is_extra ? 1 : 0;
    if (++held[static_cast<std::size_t>(rank)] <= most) {
      const Load more{load + work[static_cast<std::size_t>(block)], rank};
      (held[static_cast<std::size_t>(rank)] < most ? below : at_most).push(more);
    }
    rank_of[static_cast<std::size_t>(block)] = rank;
  }
  std::vector<std::int64_t> of_runs;
  for (std::int64_t r = 0; r < runs.count(); ++r)
    of_runs.push_back(rank_of[static_cast<std::size_t>(runs.bounds[static_cast<std::size_t>(r)] / q_block)]);
  return of_runs;
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
  std::vector<Word> held(seen.size());
  for (const std::int64_t r : of) {
    const auto at = static_cast<std::size_t>(r);
    load.queries += runs.bounds[at + 1] - runs.bounds[at];
    load.pairs_allowed += runs.pairs[at];
    load.pairs_computed += computed[at];
    const std::int64_t k_begin = key_at(runs.bounds[at]), k_end = key_at(runs.bounds[at + 1]);
    load.keys_held += k_end - k_begin;
    set_bits(held.data(), k_begin, k_end);
  }
  for (std::size_t w = 0; w < seen.size(); ++w) seen[w] &= ~held[w];
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

}  // namespace

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
                                        std::int64_t kv_length, std::int64_t q_block, std::int64_t ranks) {
  std::vector<ContextParallel> all;
  const auto add = [&](Distribution distribution, const std::vector<std::int64_t>& rank_of) {
    all.push_back({distribution, loads(runs, computed, kv_length, rank_of, ranks)});
  };
  add(Distribution::contiguous, by_chunk(runs, ranks, [](std::int64_t c) { return c; }));
  add(Distribution::zigzag,
      by_chunk(runs, 2 * ranks, [&](std::int64_t c) { return std::min(c, 2 * ranks - 1 - c); }));
  add(Distribution::balanced, balanced(runs, q_block, ranks));
  return all;
}

std::optional<std::int64_t> rank_bytes(std::int64_t q_length, std::int64_t kv_length, std::int64_t q_block,
                                       std::int64_t ranks) {
  // A range has bounds, pairs twice and a rank; so has a block, and a rank has loads of three distributions.
  // Each thread has the keys that a rank attends to and those that it stores.
  const std::int64_t runs = core::ceil_div(q_length, q_block) + 3 * ranks, words = words_for(kv_length);
  const auto keys = core::checked_mul(8 * words, runs),
             threads_keys = core::checked_mul(16 * words, threads());
  if (!keys || !threads_keys || std::max({*keys, *threads_keys, runs}) > core::kMostBytes / 1024)
    return std::nullopt;
  return *keys + *threads_keys + 128 * runs + 256 * ranks;
}

}  // namespace ejk::blocks
