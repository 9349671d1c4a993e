// Forward pass of attention, and its decode path for batch entries with few queries.
#pragma once

#include <cstdint>

#include "attention/problem.hpp"
#include "attention/row_writer.hpp"
#include "attention/tasks.hpp"

namespace ejk::attn {

/// lse and, unless null, the largest score of keys: of the arithmetic's dtype, the rows that setup holds.
struct ForwardResults {
  const RowWriter& out;
  void* lse;
  void* most = nullptr;
};

/// Writes the results of some queries, beginning at a multiple of rows_together(). `share`: of the work for
/// all.
void forward(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double share,
             const ForwardResults& results, const PairProgress& progress);
void forward(const CheckedArguments& setup, const MaskPlan& plan, const ForwardResults& results,
             const PairProgress& progress);

/// Queries that are computed together: whether others are does not matter to them.
std::int64_t rows_together(const CheckedArguments& setup);

/// So many rows, the queries of all heads that share a key, or queries of one head are few.
inline constexpr std::int64_t kMostDecodeRows = 32;

/// Keys and values are best read in place by all query heads that share them: packing takes longer than the
/// products. Fewer queries where bfloat16 has a unit of its own. Shapes, dtypes and instruction set decide.
bool is_decode(const CheckedArguments& setup, std::int64_t entry);

/// Whether keys and values may be sources: all queries take the decode path, and nothing else reads values.
bool reads_keys_once(const CheckedArguments& setup);

/// Workspace of a thread, what all have beside it where keys are sources, and memory of the states to merge.
std::int64_t decode_thread_bytes(const CheckedArguments& setup);
std::int64_t decode_box_bytes(const CheckedArguments& setup);
std::int64_t decode_bytes(const CheckedArguments& setup, const Region& queries);

/// As forward(), of those entries of a region alone; `work`: nanoseconds of one thread for all of it.
void decode_forward(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double work,
                    const ForwardResults& results, Progress& progress);

}  // namespace ejk::attn
