// A part of a plan's work: the boxes that it reads and writes, and its run. The whole is a part, too.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/plan.hpp"
#include "ejk/program/attention_ranks.hpp"

namespace ejk::attn {

AttentionPart whole_part(const Plan& plan);

/// The queries and keys of a part: those of its results, and the heads that belong to them.
Region queries_of(const CheckedArguments& setup, const AttentionPart& part);
Region keys_of(const CheckedArguments& setup, const AttentionPart& part);

AttentionOperands<ArrayBox> needs_of(const Plan& plan, const AttentionPart& part);
std::vector<std::optional<ArrayBox>> made_by(const Plan& plan, const AttentionPart& part);

/// Workspace of its run beside arrays, masks and threads' workspaces.
std::int64_t part_bytes(const Plan& plan, const AttentionPart& part);

/// The pairs that its run reports as progress.
std::int64_t reported_pairs(const Plan& plan, const AttentionPart& part);

/// Adds those of the part that comes next in the order of entries and heads.
void add(AttentionPasses& sum, const AttentionPasses& next);

/// Runs it on its boxes. With `key_sources` the views of k and v have no elements.
/// Throws Error{input} for other types, before anything is written.
AttentionPasses run_part(const Plan& plan, const AttentionPart& part, const AttentionArrays& arrays,
                         const std::vector<MutableArrayView>& results, const PairProgress& progress,
                         const KeySources& key_sources = {});

}  // namespace ejk::attn
