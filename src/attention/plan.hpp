// State of an AttentionPlan: checked arguments, masks, and the blocks of the masks once they are read.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "ejk/attention.hpp"

namespace ejk::attn {

class ComputedPairs;

std::int64_t thread_bytes(const CheckedArguments& setup);

struct Plan {
  Plan(const AttentionTypes& arguments, const AttentionSettings& wanted);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Reads the masks, the first time.
  const MaskPlan& blocks() const;
  std::int64_t mask_bytes() const;
  std::int64_t result_bytes() const;

  const ComputedPairs& pairs() const;

  AttentionTypes types;
  AttentionSettings settings;
  CheckedArguments setup;
  std::vector<std::string> masks_of_either;  // the number of their first axis fits entries and heads
  MaskSet masks;                             // refers to setup
  std::vector<PlannedArray> results;
  std::optional<DType> rounded_first;  // gradients, before they are rounded to their own dtype

 private:
  mutable std::once_flag read_;
  mutable std::optional<MaskPlan> blocks_;
  mutable std::once_flag counted_;
  mutable std::shared_ptr<const ComputedPairs> pairs_;
};

}  // namespace ejk::attn
