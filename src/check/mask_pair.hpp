// Two masks of one shape, compared block by block: where both are known to be empty or full no element is
// looked at.
// tests: tests/check/test_mask.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/parallel.hpp"
#include "ejk/check.hpp"
#include "mask/node.hpp"

namespace ejk::check {

/// A block of which two masks differ.
struct BlockDifference {
  std::int64_t i = 0, j = 0;                  // row and column of blocks
  std::int64_t missing = 0;                   // pairs of the second alone
  std::int64_t outside = 0;                   // pairs of the first alone
  std::int64_t missing_q = 0, missing_k = 0;  // the first of each, row by row
  std::int64_t outside_q = 0, outside_k = 0;
  std::int64_t wanted = 0;  // pairs of the second
};

class MaskPair {
 public:
  MaskPair(const Mask& first, const Mask& second, BlockShape block);

  /// f(found, difference) for each block that differs, on several threads, each with findings of its own,
  /// which are then taken over into `into`. done(rows) counts rows of blocks, one thread at a time.
  template <class F, class Done>
  void compare(Findings& into, const CheckOptions& options, F&& f, Done&& done) const {
    struct Part {
      Findings found;
      Scratch scratch;
    };
    std::mutex telling;
    core::parallel_reduce(
        rows_, threads(),
        [&] {
          return Part{Findings(into.rules(), options.most_findings), {}};
        },
        [&](Part& part, std::int64_t i) {
          find_differences(i, part.scratch,
                           [&](const BlockDifference& difference) { f(part.found, difference); });
          const std::scoped_lock lock(telling);
          done(1);
        },
        [&](Part& part) { into.merge(std::move(part.found)); });
  }

  /// Puts differences in order: by head, then by block.
  std::int64_t place(std::int64_t head, const BlockDifference& d) const {
    return (head * rows_ + d.i) * columns_ + d.j;
  }

 private:
  struct Scratch {
    std::vector<mask::BlockState> first, second;
    mask::BitBuffer first_bits, second_bits;
  };

  int threads() const;
  /// The blocks of row i that differ, in order.
  void find_differences(std::int64_t i, Scratch& scratch,
                        const std::function<void(const BlockDifference&)>& found) const;

  Mask first_, second_;
  BlockShape block_;
  std::int64_t rows_, columns_;
  std::unique_ptr<mask::BlockClassifier> first_states_, second_states_;
};

}  // namespace ejk::check
