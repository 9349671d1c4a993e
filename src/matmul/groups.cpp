// Group sizes as offsets, and the metadata with which a tiled kernel walks them: a group's id once for each
// of its tiles, a tile's id once for each group that intersects it. Both ascend, so one walk over tiles
// suffices. Counts are 64-bit integers (a histogram of float32, as in JAX and ejkernel, is wrong from about
// four thousand tiles on). Time is O(L + G). Source: include/ejk/groups.hpp.
// tests: tests/matmul/test_groups.cpp
#include "ejk/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "matmul/tiles.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

Error invalid(const ArraySource& source, std::string why, Error::Code code = Error::Code::other) {
  return std::move(Error(Error::Kind::input, std::move(why), code).at(source.name()));
}

// Sizes that passed all checks, and how long the lists get.
struct Layout {
  std::vector<std::int64_t> offsets;
  std::int64_t groups = 0;
  std::int64_t tiles = 0;   // T
  std::int64_t length = 0;  // L
};

Layout checked_layout(const IntegerArray& group_sizes, std::int64_t m, std::int64_t tm,
                      const GroupMetadataOptions& options) {
  const auto require = [](const char* what, std::int64_t value, std::int64_t least) {
    if (value < least) throw core::invalid("{} is {}; it must be at least {}", what, value, least);
  };
  require("tm", tm, 1);
  require("m", m, 0);
  require("start_group", options.start_group, 0);
  require("num_nonzero_groups", options.num_nonzero_groups.value_or(0), 0);
  if (options.strict && m % tm != 0)
    throw core::invalid("tm = {} does not divide m = {}", tm, m)
        .hint("unless it has to be strict, the last tile is cut short");

  Layout layout;
  layout.offsets = group_offsets(group_sizes, m, options.strict);
  layout.groups = static_cast<std::int64_t>(layout.offsets.size()) - 1;
  layout.tiles = core::ceil_div(m, tm);
  if (options.start_group > layout.groups)
    throw std::move(
        core::usage("start_group is {}, but there {}", options.start_group,
                    layout.groups == 1 ? "is only 1 group" : fmt::format("are only {} groups", layout.groups))
            .at(group_sizes->name()));
  if (layout.offsets.back() > kMost) {
    const auto& offsets = layout.offsets;
    const auto g = std::upper_bound(offsets.begin(), offsets.end(), kMost) - offsets.begin();
    throw invalid(
        group_sizes,
        fmt::format("group_sizes sum to {} at index {}, which int32 offsets cannot hold (at most {})",
                    offsets[static_cast<std::size_t>(g)], g - 1, kMost));
  }
  if (layout.groups == 0) return layout;
  const auto length = core::checked_add(layout.tiles, layout.groups - 1);
  if (!length || std::max(*length, layout.groups) > kMost)
    throw invalid(group_sizes, fmt::format("{} tiles (m = {}, tm = {}) and {} groups make more entries than "
                                           "int32 counts (at most {})",
                                           layout.tiles, m, tm, layout.groups, kMost))
        .hint("a larger tm makes fewer");
  layout.length = *length;
  return layout;
}

Array int32_array(std::int64_t length) { return Array(DType::int32, {length}); }

// Each group's id once for each of its tiles.
void fill_group_ids(const Layout& layout, std::int64_t tm, EmptyGroups empty, std::span<std::int32_t> ids) {
  auto rest = ids.begin();
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    const auto i = static_cast<std::size_t>(g);
    const std::int64_t tiles = matmul::tiles_of(layout.offsets[i], layout.offsets[i + 1], tm, empty);
    rest = std::fill_n(rest, std::min<std::int64_t>(tiles, ids.end() - rest), static_cast<std::int32_t>(g));
  }
  std::fill(rest, ids.end(), static_cast<std::int32_t>(layout.groups - 1));
}

// Each tile's id once, and once more for each group that begins within it, or is visited empty there.
void fill_tile_ids(const Layout& layout, std::int64_t tm, EmptyGroups empty, std::span<std::int32_t> ids) {
  auto rest = ids.begin();
  std::int64_t g = 0;
  for (std::int64_t t = 0; t < layout.tiles && rest != ids.end(); ++t) {
    std::int64_t visits = 1;
    for (; g < layout.groups; ++g) {
      const auto i = static_cast<std::size_t>(g);
      const std::int64_t begin = layout.offsets[i], end = layout.offsets[i + 1];
      if (begin / tm > t) break;
      visits += end > begin ? begin % tm != 0 : empty == EmptyGroups::visit;
    }
    rest = std::fill_n(rest, std::min<std::int64_t>(visits, ids.end() - rest), static_cast<std::int32_t>(t));
  }
  std::fill(rest, ids.end(), static_cast<std::int32_t>(layout.tiles - 1));
}

}  // namespace

std::vector<std::int64_t> group_offsets(const IntegerArray& group_sizes, std::int64_t m, bool strict) {
  if (m < 0) throw core::invalid("m is {}; it must be at least 0", m);
  const std::vector<std::int64_t> sizes = core::read_integers(group_sizes, "group_sizes");
  std::vector<std::int64_t> offsets{0};
  offsets.reserve(sizes.size() + 1);
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    if (sizes[g] < 0)
      throw invalid(group_sizes, fmt::format("group_sizes[{}] is {}; a size is at least 0", g, sizes[g]));
    const auto end = core::checked_add(offsets.back(), sizes[g]);
    if (!end)
      throw invalid(group_sizes,
                    fmt::format("group_sizes[{}] is {}: the sum up to it passes 63 bits", g, sizes[g]));
    if (*end > m)
      throw invalid(group_sizes,
                    fmt::format("group_sizes[{}] is {}: the sum up to it is {}, more than m = {}", g,
                                sizes[g], *end, m),
                    std::ssize(sizes) != m && sizes.back() <= m && std::is_sorted(sizes.begin(), sizes.end())
                        ? Error::Code::group_ends
                        : Error::Code::other)
          .hint(
              std::ssize(sizes) == m
                  ? "as many as rows: the group of each row, of which sizes are the counts, or where each group ends"
                  : "");
    offsets.push_back(*end);
  }
  if (strict && offsets.back() < m)
    throw invalid(group_sizes, fmt::format("group_sizes of {} groups sum to {}, less than m = {}",
                                           sizes.size(), offsets.back(), m))
        .hint("unless it has to be strict, rows past the last group belong to none");
  return offsets;
}

Array group_sizes_from_ends(const IntegerArray& ends) {
  std::vector<std::int64_t> sizes = core::read_integers(ends, "ends of groups");
  std::int64_t before = 0;
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    const std::int64_t end = sizes[g];
    if (end < before)
      throw invalid(ends,
                    g == 0 ? fmt::format("ends of groups[0] is {}; it is at least 0", end)
                           : fmt::format("ends of groups[{}] is {}, less than {} before it", g, end, before));
    sizes[g] = end - before;
    before = end;
  }
  return core::to_array(sizes, DType::int64, "group_sizes");
}

bool likely_group_ends(const IntegerArray& group_sizes, std::int64_t m) {
  const std::vector<std::int64_t> sizes = core::read_integers(group_sizes, "group_sizes");
  // Few sizes often happen to ascend; those that leave rows over are more suspicious.
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) sum = core::checked_add(sum, size).value_or(m);
  const bool leaves_rows = m < std::numeric_limits<std::int64_t>::max() && sum != m;
  const std::size_t fewest = leaves_rows ? 2 : 4;
  return sizes.size() >= fewest && sizes.front() >= 0 && sizes.front() < sizes.back() && sizes.back() <= m &&
         std::is_sorted(sizes.begin(), sizes.end());
}

std::int64_t group_metadata_length(const IntegerArray& group_sizes, std::int64_t m, std::int64_t tm,
                                   const GroupMetadataOptions& options) {
  return checked_layout(group_sizes, m, tm, options).length;
}

GroupMetadata make_group_metadata(const IntegerArray& group_sizes, std::int64_t m, std::int64_t tm,
                                  const GroupMetadataOptions& options) {
  const Layout layout = checked_layout(group_sizes, m, tm, options);
  const std::int64_t begin = options.start_group;
  const std::int64_t wanted = matmul::groups_wanted(layout.groups, options);
  const auto tiles_between = [&](std::int64_t first, std::int64_t end) {
    std::int64_t tiles = 0;
    for (auto g = static_cast<std::size_t>(first); g < static_cast<std::size_t>(end); ++g)
      tiles += matmul::tiles_of(layout.offsets[g], layout.offsets[g + 1], tm, options.empty_groups);
    return tiles;
  };

  GroupMetadata made{int32_array(layout.groups + 1),
                     int32_array(layout.length),
                     int32_array(layout.tiles == 0 ? 0 : layout.length),
                     Array(DType::int32, {}),
                     m,
                     tm,
                     options};
  std::transform(layout.offsets.begin(), layout.offsets.end(),
                 made.group_offsets.elements<std::int32_t>().begin(),
                 [](std::int64_t offset) { return static_cast<std::int32_t>(offset); });
  made.num_tiles.elements<std::int32_t>()[0] =
      static_cast<std::int32_t>(tiles_between(begin, begin + wanted));

  const auto group_ids = made.group_ids.elements<std::int32_t>();
  const auto tile_ids = made.m_tile_ids.elements<std::int32_t>();
  fill_group_ids(layout, tm, options.empty_groups, group_ids);
  fill_tile_ids(layout, tm, options.empty_groups, tile_ids);
  // Entries of groups before the first one wanted go to the end; filler counts as the last group.
  const std::int64_t before =
      begin == layout.groups ? layout.length : std::min(tiles_between(0, begin), layout.length);
  for (const auto ids : {group_ids, tile_ids})
    if (!ids.empty()) std::rotate(ids.begin(), ids.begin() + before, ids.end());
  return made;
}

// The sizes as they are and widened, their offsets in two widths, and sorted for the report.
std::int64_t group_metadata_bytes(std::int64_t groups, std::int64_t length) {
  return core::bytes_of_estimate(6 * 8 * static_cast<double>(groups) + 2 * 4 * static_cast<double>(length));
}

}  // namespace ejk
