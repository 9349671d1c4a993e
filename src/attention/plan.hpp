// What an AttentionPlan holds: checked arguments, the masks and, once they are read, their blocks.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "ejk/attention.hpp"

namespace ejk::attn {

struct Plan {
  /// Throws what the constructor of AttentionPlan throws.
  Plan(const AttentionTypes& arguments, const AttentionSettings& wanted);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Reads the masks, the first time.
  const MaskPlan& blocks() const;

  AttentionTypes types;
  AttentionSettings settings;
  CheckedArguments setup;
  MaskSet masks;  // refers to setup
  std::vector<PlannedArray> results;
  std::optional<DType> rounded_first;  // gradients, before they are rounded to their own dtype

 private:
  mutable std::once_flag read_;
  mutable std::optional<MaskPlan> blocks_;
};

}  // namespace ejk::attn
