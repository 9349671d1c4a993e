// Forward pass of attention.
#pragma once

#include "attention/problem.hpp"
#include "attention/row_writer.hpp"

namespace ejk::attn {

/// Writes out and lse (the arithmetic's dtype, the rows that setup holds) of some queries, beginning at a
/// multiple of rows_together(). `share`: of the work for all.
void forward(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double share,
             const RowWriter& out, void* lse, const PairProgress& progress);
void forward(const CheckedArguments& setup, const MaskPlan& plan, const RowWriter& out, void* lse,
             const PairProgress& progress);

/// Queries that are computed together: whether others are does not matter to them.
std::int64_t rows_together(const CheckedArguments& setup);

}  // namespace ejk::attn
