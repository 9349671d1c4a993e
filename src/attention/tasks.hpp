// The cut of attention into tasks: blocks of queries (or of keys) of all problems, dealt out to threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"

namespace ejk::attn {

/// Tells what was done, from any thread, one at a time.
class Progress {
 public:
  Progress(const std::function<void(std::int64_t, std::int64_t)>& tell, std::int64_t all)
      : tell_(tell), all_(all) {}
  void add(std::int64_t done) {
    if (!tell_) return;
    const std::scoped_lock lock(mutex_);
    tell_(done_ += done, all_);
  }

 private:
  const std::function<void(std::int64_t, std::int64_t)>& tell_;
  std::int64_t all_, done_ = 0;
  std::mutex mutex_;
};

enum class Along { queries, keys };

/// f(entry, head, block) for every block of queries and query head, or of keys and key/value head. The last
/// blocks come first: under a causal mask those of queries have the most to do.
template <class F>
void for_each_block(const Setup& setup, Along along, F&& f) {
  const bool queries = along == Along::queries;
  const std::int64_t heads = queries ? setup.shape.heads : setup.shape.kv_heads;
  std::vector<std::int64_t> first{0};  // block of each entry, over all its heads
  for (std::int64_t e = 0; e < setup.shape.entries; ++e) {
    const std::int64_t blocks = queries ? core::ceil_div(setup.q_length(e), setup.block.q)
                                        : core::ceil_div(setup.kv_length(e), setup.block.kv);
    first.push_back(first.back() + blocks * heads);
  }
  core::parallel_for(first.back(), [&](std::int64_t n) {
    const auto after = std::upper_bound(first.begin(), first.end(), n);
    const std::int64_t entry = after - first.begin() - 1, in_entry = n - after[-1];
    const std::int64_t blocks = (*after - after[-1]) / heads;
    const std::int64_t block = in_entry / heads;
    f(entry, in_entry % heads, queries ? blocks - 1 - block : block);
  });
}

}  // namespace ejk::attn
