// Tasks of attention: blocks of queries or keys of all problems, distributed over threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "attention/packing.hpp"
#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"

namespace ejk::attn {

using core::Progress;

/// Blocks of `rows` positions before each entry of a region, and of all; `length`: an entry's positions.
template <class Length>
std::vector<std::int64_t> first_pieces(const Region& region, Length&& length, std::int64_t rows) {
  const std::int64_t heads = region.heads.count();
  std::vector<std::int64_t> first{0};
  for (std::int64_t e = region.entries.begin; e < region.entries.end; ++e)
    first.push_back(first.back() + core::ceil_div(region.positions_of(length(e)).count(), rows) * heads);
  return first;
}

/// Rows of a forward task, a multiple of `group`: enough to amortize packing, few enough for the cache and
/// several tasks a thread.
inline std::int64_t rows_of_task(const CheckedArguments& setup, const Region& queries, std::int64_t group) {
  constexpr std::int64_t kRows = 512, kDecodeRows = 96, kTasks = 8, kBytes = std::int64_t{1} << 19;
  const std::int64_t row_bytes = 8 * (setup.shape.head_size + setup.shape.value_size);
  std::int64_t rows = std::clamp(kBytes / row_bytes, kDecodeRows, kRows);
  const auto tasks = [&] {
    const auto length = [&](std::int64_t e) { return setup.q_length(e); };
    return first_pieces(queries, length, rows).back();
  };
  while (rows > kDecodeRows && tasks() < kTasks * threads()) rows /= 2;
  return std::max<std::int64_t>(1, rows / group) * group;
}

/// Of pieces of one entry: the last queries have the most to do under a causal mask, and the first keys.
enum class Order { first_first, last_first };

/// f(entry, head, positions) for all chunks of `rows` positions of a region; `length`: an entry's positions.
/// All of them take one thread about `work` nanoseconds.
template <class Length, class F>
void for_each_piece(const Region& region, Length&& length, std::int64_t rows, Order order, double work,
                    F&& f) {
  const std::int64_t heads = region.heads.count();
  const std::vector<std::int64_t> first = first_pieces(region, length, rows);
  core::parallel_for(first.back(), work, [&](std::int64_t n) {
    const auto after = std::upper_bound(first.begin(), first.end(), n);
    const std::int64_t entry = region.entries.begin + (after - first.begin() - 1), in_entry = n - after[-1];
    const std::int64_t pieces = (*after - after[-1]) / heads, piece = in_entry / heads;
    const Positions all = region.positions_of(length(entry));
    const Positions some =
        block_of(order == Order::last_first ? pieces - 1 - piece : piece, rows, all.count());
    f(entry, region.heads.begin + in_entry % heads, Positions{all.begin + some.begin, all.begin + some.end});
  });
}

/// Pairs of a query and a key of its entry, of a region of queries.
inline std::int64_t pairs_of_queries(const CheckedArguments& setup, const Region& queries) {
  std::int64_t pairs = 0;
  for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e)
    pairs += queries.positions_of(setup.q_length(e)).count() * setup.kv_length(e);
  return pairs * queries.heads.count();
}
/// The same of a region of keys, for all query heads.
inline std::int64_t pairs_of_keys(const CheckedArguments& setup, const Region& keys) {
  std::int64_t pairs = 0;
  for (std::int64_t e = keys.entries.begin; e < keys.entries.end; ++e)
    pairs += keys.positions_of(setup.kv_length(e)).count() * setup.q_length(e);
  return pairs * keys.heads.count() * setup.group();
}

/// The same that a region of a bias serves.
inline std::int64_t pairs_of_bias(const CheckedArguments& setup, const Region& bias) {
  const Region queries = setup.queries_of_bias(bias);
  return queries.positions_of(setup.q.shape[2]).count() * setup.k.shape[2] * queries.entries.count() *
         queries.heads.count();
}

}  // namespace ejk::attn
