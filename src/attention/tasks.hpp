// The cut of attention into tasks: blocks of queries (or of keys) of all problems, dealt out to threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "attention/packing.hpp"
#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"

namespace ejk::attn {

/// Tells what was done, from any thread, one at a time.
class Progress {
 public:
  Progress(const PairProgress& tell, std::int64_t all) : tell_(tell), all_(all) {}
  void add(std::int64_t done) {
    if (!tell_) return;
    const std::scoped_lock lock(mutex_);
    tell_(done_ += done, all_);
  }

 private:
  const PairProgress& tell_;
  std::int64_t all_, done_ = 0;
  std::mutex mutex_;
};

/// How many pieces of `rows` positions come before each entry, and at last all: `length` tells an entry's
/// positions, every piece is there for each of `heads` heads.
template <class Length>
std::vector<std::int64_t> first_pieces(std::int64_t entries, std::int64_t heads, Length&& length,
                                       std::int64_t rows) {
  std::vector<std::int64_t> first{0};
  for (std::int64_t e = 0; e < entries; ++e)
    first.push_back(first.back() + core::ceil_div(length(e), rows) * heads);
  return first;
}

/// Rows of a forward task, a multiple of `group`: enough that packing keys and values is little, few enough
/// that they stay in a core's cache and all threads have several tasks. No result depends on it.
inline std::int64_t rows_of_task(const CheckedArguments& setup, std::int64_t group) {
  constexpr std::int64_t kRows = 512, kFewRows = 96, kTasks = 8, kBytes = std::int64_t{1} << 19;
  const std::int64_t row_bytes = 8 * (setup.shape.head_size + setup.shape.value_size);
  std::int64_t rows = std::clamp(kBytes / row_bytes, kFewRows, kRows);
  const auto tasks = [&] {
    const auto length = [&](std::int64_t e) { return setup.q_length(e); };
    return first_pieces(setup.shape.entries, setup.shape.heads, length, rows).back();
  };
  while (rows > kFewRows && tasks() < kTasks * threads()) rows /= 2;
  return std::max<std::int64_t>(1, rows / group) * group;
}

/// Of pieces of one entry: the last queries have the most to do under a causal mask, and the first keys.
enum class Order { first_first, last_first };

/// f(entry, head, positions) for all pieces of `rows` positions of every entry, of `heads` heads; `length`
/// tells an entry's. Pieces are dealt out in order; all of them take one thread about `work` nanoseconds.
template <class Length, class F>
void for_each_piece(std::int64_t entries, std::int64_t heads, Length&& length, std::int64_t rows, Order order,
                    double work, F&& f) {
  const std::vector<std::int64_t> first = first_pieces(entries, heads, length, rows);
  core::parallel_for(first.back(), work, [&](std::int64_t n) {
    const auto after = std::upper_bound(first.begin(), first.end(), n);
    const std::int64_t entry = after - first.begin() - 1, in_entry = n - after[-1];
    const std::int64_t pieces = (*after - after[-1]) / heads, piece = in_entry / heads;
    f(entry, in_entry % heads,
      block_of(order == Order::last_first ? pieces - 1 - piece : piece, rows, length(entry)));
  });
}

}  // namespace ejk::attn
