// Decode path: forward pass of entries with few queries.
#pragma once

#include <cstdint>

#include "attention/problem.hpp"
#include "attention/row_writer.hpp"
#include "attention/tasks.hpp"

namespace ejk::attn {

/// So many rows, the queries of all heads that share a key, or queries of one head are few.
inline constexpr std::int64_t kMostDecodeRows = 32;

/// Keys and values are best read in place by all query heads that share them: packing takes longer than the
/// products. Fewer queries where bfloat16 has a unit of its own. Shapes, dtypes and instruction set decide.
bool is_decode(const CheckedArguments& setup, std::int64_t entry);

/// Workspace of a thread, and memory of the states to merge.
std::int64_t decode_thread_bytes(const CheckedArguments& setup);
std::int64_t decode_bytes(const CheckedArguments& setup, const Region& queries);

/// As forward(), of those entries of a region alone; `work`: nanoseconds of one thread for all of it.
void decode_forward(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double work,
                    const RowWriter& out, void* lse, Progress& progress);

}  // namespace ejk::attn
