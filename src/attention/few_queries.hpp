// The forward pass of entries with few queries over many keys.
#pragma once

#include <cstdint>

#include "attention/problem.hpp"
#include "attention/row_writer.hpp"
#include "attention/tasks.hpp"

namespace ejk::attn {

/// The most rows, queries of all query heads of a key/value head, that are read from memory about as fast as
/// they are computed with.
inline constexpr std::int64_t kMostFewRows = 32;

/// The query heads of a key/value head have so few queries together that keys and values are best read where
/// they lie, by all of them at once. Shapes alone decide it.
bool has_few_queries(const CheckedArguments& setup, std::int64_t entry);

/// What a thread's own memory holds for them, and what the parts of their results take.
std::int64_t few_queries_thread_bytes(const CheckedArguments& setup);
std::int64_t few_queries_bytes(const CheckedArguments& setup, const Region& queries);

/// As forward(), of those entries of a region alone; all of it takes one thread about `work` nanoseconds.
void forward_of_few_queries(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries,
                            double work, const RowWriter& out, void* lse, Progress& progress);

}  // namespace ejk::attn
