// Groups: rows of a matrix that belong to experts, one run of consecutive rows a group, and the metadata by
// which a tiled kernel walks them.
//
// Group g of G has n_g ≥ 0 rows, s_g … e_g − 1, where e_g = n_0 + … + n_g and s_g = e_g − n_g. Rows from
// e_{G−1} on belong to no group. The m rows are cut into T = ceil(m/tm) tiles. Source: megablox in JAX and
// ejkernel's grouped matmul, whose arrays these equal to the element, except that tiles are counted in
// integers; src/matmul/groups.cpp states the procedure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/integer_array.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// 0, e_0, …, e_{G−1} of group_sizes (G,), any integer dtype, over m rows. Throws Error{input} that names the
/// index: another rank or dtype, a negative size, a sum above m (Error::Code::group_ends where they may be ends); with
/// `strict` also a sum below m.
std::vector<std::int64_t> group_offsets(const IntegerArray& group_sizes, std::int64_t m, bool strict = false);

/// Sizes (G,) int64 from cumulative ends (G,), as torch._grouped_mm takes them: size g is ends[g] − ends[g−1]. Throws
/// Error{input} that names the index: another rank or dtype, an end that is negative or less than the one before it.
Array group_sizes_from_ends(const IntegerArray& ends);

/// Whether these sizes are more likely ends: they never decrease, are not all equal, and end within m rows. Four or
/// more; two where m is given and is not their sum.
bool likely_group_ends(const IntegerArray& group_sizes, std::int64_t m);

/// Whether a group without rows gets a tile of its own. A transposed product visits it, to write its zeros; a
/// product of rows has nothing to do there.
enum class EmptyGroups { visit, skip };

struct GroupMetadataOptions {
  std::int64_t start_group = 0;                    // the first group that is computed; at most their number
  std::optional<std::int64_t> num_nonzero_groups;  // how many are, empty ones too; absent: all of the rest
  EmptyGroups empty_groups = EmptyGroups::visit;
  bool strict = false;  // tm divides m, and the sizes sum to m
};

/// A kernel takes num_tiles steps: step i computes the rows of group group_ids[i] in tile m_tile_ids[i].
///
/// group_ids holds each g as often as the group has tiles: ceil(e_g/tm) − floor(s_g/tm), or if it is empty 1
/// (EmptyGroups::visit) or 0. m_tile_ids holds each tile once, and once more for each group that begins
/// within it, or is visited empty there. Both have L entries: cut there, or filled up with G − 1 and T − 1,
/// then turned left so that they begin with start_group. Only the first num_tiles entries mean anything.
struct GroupMetadata {
  Array group_offsets;  // (G + 1,) int32
  Array group_ids;      // (L,) int32, L = T + G − 1; without groups 0
  Array m_tile_ids;     // (L,) int32; without tiles (m = 0) (0,)
  Array num_tiles;      // () int32: the tiles of the groups start_group … + num_nonzero_groups − 1

  std::int64_t m = 0, tm = 0;  // what they were made of
  GroupMetadataOptions options;
};

/// The metadata of group_sizes (G,), any integer dtype, over m rows in tiles of tm ≥ 1. More groups may be
/// asked for than there are from start_group on; those beyond have no tiles. Time and memory are those of the
/// arrays. Throws Error{input}, with the numbers: what group_offsets throws; tm, start_group or
/// num_nonzero_groups below their least; an offset or L beyond int32; with `strict` a tm that does not divide
/// m. Error{usage}: start_group above G.
GroupMetadata make_group_metadata(const IntegerArray& group_sizes, std::int64_t m, std::int64_t tm,
                                  const GroupMetadataOptions& options = {});

/// L, before any array is made. Makes all checks that make_group_metadata makes.
std::int64_t group_metadata_length(const IntegerArray& group_sizes, std::int64_t m, std::int64_t tm,
                                   const GroupMetadataOptions& options = {});

/// Memory of these functions for so many groups, with the result if its length L is given.
std::int64_t group_metadata_bytes(std::int64_t groups, std::int64_t length = 0);

/// What the walk costs: tiles visited against those of groups that begin at tiles, rows computed and thrown
/// away, how evenly the groups are filled, and the same tiles for neighbouring tile sizes. All but the rows
/// past the last group is of the groups asked for.
Report describe(const GroupMetadata& metadata);

}  // namespace ejk
