// Groups: contiguous rows of a matrix that belong to experts, and the metadata by which a tiled kernel walks
// them.
//
// Group g of G has n_g ≥ 0 rows, s_g … e_g − 1, where e_g = n_0 + … + n_g and s_g = e_g − n_g. Rows from
// e_{G−1} on belong to no group. The m rows are cut into T = ceil(m/tm) tiles. Source: megablox in JAX and
// ejkernel's grouped matmul, whose arrays these equal to the element. Procedure: src/matmul/groups.cpp.
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

/// 0, e_0, …, e_{G−1} of group_sizes (G,), any integer dtype, over m rows. Throws Error{input} that names the
/// index: another rank or dtype, a negative size, a sum above m (Error::Code::group_ends where they may be
/// ends); with `strict` also a sum below m.
std::vector<std::int64_t> group_offsets(const IntegerArray& group_sizes, std::int64_t m, bool strict = false);

/// Sizes (G,) int64 from cumulative ends (G,), as torch._grouped_mm takes them: size g is ends[g] −
/// ends[g−1]. Throws Error{input} that names the index: another rank or dtype, an end that is negative or
/// less than the one before it.
Array group_sizes_from_ends(const IntegerArray& ends);

/// Whether these are more likely ends: four or more (two where m is given and is not their sum) that never
/// decrease, are not all equal, and end within m rows.
bool likely_group_ends(const IntegerArray& group_sizes, std::int64_t m);

/// Whether a group without rows gets a tile of its own, as a transposed product needs to write its zeros.
enum class EmptyGroups { visit, skip };

struct GroupMetadataOptions {
  std::int64_t start_group = 0;                    // the first group that is computed; at most their number
  std::optional<std::int64_t> num_nonzero_groups;  // how many are, empty ones too; absent: all of the rest
  EmptyGroups empty_groups = EmptyGroups::visit;
  bool strict = false;  // tm divides m, and the sizes sum to m
};

/// Step i of num_tiles computes the rows of group group_ids[i] in tile m_tile_ids[i].
///
/// group_ids holds each g once for each of its tiles: ceil(e_g/tm) − floor(s_g/tm), or if it is empty 1
/// (EmptyGroups::visit) or 0. m_tile_ids holds each tile once, and once more for each group that begins
/// within it, or is visited empty there. Both are truncated or padded to L entries, with G − 1 and T − 1,
/// then rotated left to begin with start_group. Entries from num_tiles on are unused.
struct GroupMetadata {
  Array group_offsets;  // (G + 1,) int32
  Array group_ids;      // (L,) int32, L = T + G − 1; without groups 0
  Array m_tile_ids;     // (L,) int32; without tiles (m = 0) (0,)
  Array num_tiles;      // () int32: the tiles of the groups start_group … + num_nonzero_groups − 1

  std::int64_t m = 0, tm = 0;  // what they were made of
  GroupMetadataOptions options;
};

/// The metadata of group_sizes (G,), any integer dtype, over m rows in tiles of tm ≥ 1. num_nonzero_groups
/// may exceed the groups from start_group on. Throws Error{input}: that of group_offsets; tm, start_group or
/// num_nonzero_groups below their least; an offset or L beyond int32; with `strict` a tm that does not divide
/// m. Error{usage}: start_group above G.
GroupMetadata make_group_metadata(const IntegerArray& group_sizes, std::int64_t m, std::int64_t tm,
                                  const GroupMetadataOptions& options = {});

/// L, with all errors of make_group_metadata.
std::int64_t group_metadata_length(const IntegerArray& group_sizes, std::int64_t m, std::int64_t tm,
                                   const GroupMetadataOptions& options = {});

/// Memory of these functions for so many groups, with the result if its length L is given.
std::int64_t group_metadata_bytes(std::int64_t groups, std::int64_t length = 0);

/// Cost of the walk: tiles visited against those of aligned groups, rows computed and discarded, balance of
/// the groups, and the same for neighbouring tile sizes; of the computed groups.
Report describe(const GroupMetadata& metadata);

// Group metadata in the arrays of other libraries, under their names and dtypes, equal to their own to the
// element where these are defined.
//
// Rows are the choices of tokens, sorted by expert (ejk/route.hpp). A layout may pad each group to a multiple
// of `align` rows. Sources: torch 2.13 (grouped_mm), vLLM 0.33 and SGLang (moe_align_block_size), DeepGEMM,
// MegaBlocks (dmoe). How each is made: src/matmul/group_layouts.cpp.

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
