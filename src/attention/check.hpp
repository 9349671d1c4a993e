// The check of attention, with its threshold, so that tests can have samples of small problems.
#pragma once

#include <cstdint>

#include "ejk/attention_check.hpp"

namespace ejk::attn {

/// Multiply-adds of the plain form: up to that all rows are evaluated, else as many as it takes.
inline constexpr double kCheckEffort = 0x1p30;

AttentionCheck check(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                     const AttentionOptions& options, const ArrayView& out, const ArrayView& lse,
                     double effort);
AttentionCheck check(const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& dout,
                     const AttentionOptions& options, const ArrayView& dq, const ArrayView& dk,
                     const ArrayView& dv, double effort);

}  // namespace ejk::attn
