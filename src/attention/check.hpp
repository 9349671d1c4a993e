// Check of attention results against the reference. The effort is a parameter: tests sample small problems
// with it.
#pragma once

#include <cstdint>

#include <vector>

#include "attention/plan.hpp"
#include "ejk/attention_check.hpp"

namespace ejk::attn {

/// Multiply-adds of the reference: up to this number all rows are evaluated, else as many as it allows.
inline constexpr double kCheckEffort = 0x1p30;

AttentionCheck check(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& results,
                     double effort);

/// Workspace of it: rows of the reference, and for gradients lse, δ and a forward pass.
std::int64_t check_bytes(const Plan& plan);

}  // namespace ejk::attn
