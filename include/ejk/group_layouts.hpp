// Group metadata in the arrays of other libraries, under their names and dtypes, equal to their own to the
// element where these are defined.
//
// Rows are the choices of tokens, sorted by expert (ejk/route.hpp). A layout may pad each group to a multiple
// of `align` rows. Sources: torch 2.13 (grouped_mm), vLLM 0.33 and SGLang (moe_align_block_size), DeepGEMM,
// MegaBlocks (dmoe). How each is made: src/matmul/group_layouts.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"
#include "ejk/route.hpp"

namespace ejk {

enum class GroupLayout : std::uint8_t {
  offsets,          // offs (G,) int32: the end of each group, padded
  vllm,             // sorted_token_ids, expert_ids, num_tokens_post_padded
  sglang,           // sorted_token_ids, expert_ids, num_tokens_post_pad: choices of -1 come first
  deepgemm,         // grouped_layout (padded rows,) int32: the group of each row, -1 for padding
  deepgemm_psum,    // grouped_layout (G,) int32: the end of each group without its padding
  deepgemm_masked,  // masked_m (G,) int32: the rows of each group, each in a matrix of its own
  megablocks        // tokens_per_expert, bins, padded_bins, indices, bin_ids, and the topology of the blocks
};
inline constexpr GroupLayout kGroupLayouts[] = {GroupLayout::offsets,       GroupLayout::vllm,
                                                GroupLayout::sglang,        GroupLayout::deepgemm,
                                                GroupLayout::deepgemm_psum, GroupLayout::deepgemm_masked,
                                                GroupLayout::megablocks};

/// "deepgemm-psum".
std::string_view name_of(GroupLayout layout);

/// Of its arrays, in order; of megablocks with those of the topology.
std::vector<std::string> group_array_names(GroupLayout layout, bool with_topology = false);

/// Rows that groups are padded to by default; 0: there is no default.
std::int64_t default_alignment(GroupLayout layout);

struct GroupLayoutSettings {
  GroupLayout layout = GroupLayout::offsets;
  /// Rows that each group is padded to; of vLLM and SGLang the rows of a block. By default that of the layout:
  /// 1 of offsets and deepgemm-masked, 128 of the others; of vLLM and SGLang there is none.
  std::optional<std::int64_t> align = std::nullopt;
  /// Of offsets: the last end is the number of rows of the buffer, `rows` or those of all padded groups.
  bool last_is_total = false;
  std::optional<std::int64_t> rows = std::nullopt;
  /// Of megablocks: blocks of 128 columns of an expert's hidden layer. 0: no topology.
  std::int64_t ffn_blocks = 0;
};

struct GroupArrays {
  GroupLayoutSettings settings;  // with the default of align
  std::vector<std::pair<std::string, Array>> arrays;
  std::vector<std::int64_t> sizes;  // rows of each group
};

/// Throws Error{usage} for settings that the layout does not have or needs, Error{input} for counts beyond
/// the layout's dtype: int32, and int16 for the columns and rows of MegaBlocks' blocks.
GroupArrays make_group_arrays(const Route& route, const GroupLayoutSettings& settings);

/// Memory of make_group_arrays with the result, at most.
std::int64_t group_arrays_bytes(const Route& route, const GroupLayoutSettings& settings);

/// The route of rows that are sorted already, group_sizes[g] of each group.
Route sorted_route(std::span<const std::int64_t> group_sizes);
std::int64_t sorted_route_bytes(std::int64_t rows);

/// What padding adds, for neighbouring alignments as well.
Report describe(const GroupArrays& arrays);

}  // namespace ejk
