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

/// What all threads work in.
std::int64_t thread_bytes(const CheckedArguments& setup);

struct Plan {
  /// Throws what the constructor of AttentionPlan throws.
  Plan(const AttentionTypes& arguments, const AttentionSettings& wanted);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Reads the masks, the first time.
  const MaskPlan& blocks() const;
  /// Memory of the masks, and for reading them.
  std::int64_t mask_bytes() const;
  std::int64_t result_bytes() const;

  /// The pairs of their blocks, for divisions; counted the first time.
  const ComputedPairs& pairs() const;

  AttentionTypes types;
  AttentionSettings settings;
  CheckedArguments setup;
  MaskSet masks;  // refers to setup
  std::vector<PlannedArray> results;
  std::optional<DType> rounded_first;  // gradients, before they are rounded to their own dtype

 private:
  mutable std::once_flag read_;
  mutable std::optional<MaskPlan> blocks_;
  mutable std::once_flag counted_;
  mutable std::shared_ptr<const ComputedPairs> pairs_;
};

}  // namespace ejk::attn
