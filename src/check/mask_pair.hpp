// Comparison of two masks of one shape, block by block, without the elements of blocks known to be empty or
// full.
// tests: tests/check/test_mask.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/parallel.hpp"
#include "core/progress.hpp"
#include "ejk/check.hpp"
#include "mask/node.hpp"

namespace ejk::check {

struct BlockDifference {
  std::int64_t i = 0, j = 0;                  // block row and column
  std::int64_t missing = 0, outside = 0;      // pairs of the second, of the first mask only
  std::int64_t missing_q = 0, missing_k = 0;  // the first of each, row by row
  std::int64_t outside_q = 0, outside_k = 0;
  std::int64_t wanted = 0;  // pairs of the second
};

/// Adds the pairs of a part of the same block. The first pair is the first by query, then by key.
void add(BlockDifference& into, const BlockDifference& part);

struct SharedHeads {
  std::int64_t first, count;
};
template <class Same>
std::vector<SharedHeads> shared_heads(std::int64_t heads, Same&& same) {
  std::vector<SharedHeads> all;
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& of) { return same(of.first, h); });
    if (found == all.end())
      all.push_back({h, 1});
    else
      ++found->count;
  }
  return all;
}

/// The mask of a head, from one a head or one for all.
inline const Mask& of_head(const std::vector<Mask>& masks, std::int64_t head) {
  return masks.size() == 1 ? masks.front() : masks[static_cast<std::size_t>(head)];
}

class MaskPair {
 public:
  MaskPair(const Mask& first, const Mask& second, BlockShape block);

  /// Calls f(found, difference) for each differing block, on several threads with findings of their own,
  /// which are merged into `into`. Adds `weight` to the progress for each block row.
  template <class F>
  void compare(Findings& into, const CheckOptions& options, core::Progress& progress, std::int64_t weight,
               F&& f) const {
    struct Part {
      Findings found;
      Scratch scratch;
    };
    core::parallel_reduce(
        rows_, threads(),
        [&] {
          return Part{Findings(into.rules(), options.most_findings), {}};
        },
        [&](Part& part, std::int64_t i) {
          find_differences(i, part.scratch,
                           [&](const BlockDifference& difference) { f(part.found, difference); });
          progress.add(weight);
        },
        [&](Part& part) { into.merge(std::move(part.found)); });
  }

  /// The differences within a rectangle.
  BlockDifference difference(const mask::Rectangle& where) const;
  /// The pairs of a differing block.
  mask::Rectangle pairs_of(const BlockDifference& d) const;

  /// Sort key of differences: by head, then by block.
  std::int64_t place(std::int64_t head, const BlockDifference& d) const {
    return (head * rows_ + d.i) * columns_ + d.j;
  }

 private:
  struct Scratch {
    std::vector<mask::BlockState> first, second;
    mask::BitBuffer first_bits, second_bits;
  };

  int threads() const;
  void find_differences(std::int64_t i, Scratch& scratch,
                        const std::function<void(const BlockDifference&)>& found) const;

  Mask first_, second_;
  BlockShape block_;
  std::int64_t rows_, columns_;
  std::unique_ptr<mask::BlockClassifier> first_states_, second_states_;
};

}  // namespace ejk::check
