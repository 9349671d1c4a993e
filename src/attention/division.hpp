// Partition of attention among ranks: work in one order, cut into a contiguous range for each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/part.hpp"
#include "ejk/program/attention_ranks.hpp"

namespace ejk::attn {

/// The positions of all heads of all entries in turn, in units that are never cut: `step` positions of a
/// head, all of its positions, or all heads of an entry.
class Line {
 public:
  /// `makes` determines the rows. Units are multiples of `step`, about `wanted` of them.
  Line(const CheckedArguments& setup, AttentionPart::Makes makes, std::int64_t step, std::int64_t wanted);

  AttentionPart::Makes makes() const { return makes_; }
  std::int64_t units() const { return first_.back(); }
  /// Units [begin, end), as few regions as hold them and nothing else.
  std::vector<Region> regions(std::int64_t begin, std::int64_t end) const;

 private:
  struct Place {
    std::int64_t entry, head, position;
  };
  Place place(std::int64_t unit) const;
  std::int64_t length(std::int64_t entry) const { return lengths_[static_cast<std::size_t>(entry)]; }

  AttentionPart::Makes makes_;
  std::int64_t heads_, step_, longest_ = 0;
  bool whole_entries_ = false;
  std::vector<std::int64_t> lengths_;  // positions of each entry
  std::vector<std::int64_t> first_;    // unit of each entry; at last their number
};

struct Division {
  std::shared_ptr<const Plan> plan;
  std::int64_t ranks = 1;
  // Of several ranks; one does the whole.
  std::vector<Line> lines;           // in turn
  std::vector<double> costs_before;  // of units; at last of all
  std::vector<std::int64_t> bounds;  // units of each rank
  double cost(std::int64_t rank) const {
    const auto m = static_cast<std::size_t>(rank);
    return costs_before[static_cast<std::size_t>(bounds[m + 1])] -
           costs_before[static_cast<std::size_t>(bounds[m])];
  }
};

}  // namespace ejk::attn
