// Group metadata of other libraries: a table with one row a layout. Each follows from the rows of the groups
// and the order of the choices. Time: O(rows with padding).
// tests: tests/matmul/test_group_layouts.cpp
#include "ejk/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "matmul/tiles.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostInt16 = std::numeric_limits<std::int16_t>::max();

using Arrays = std::vector<Array>;

// Rows of the groups and their choices, with padding.
class Groups {
 public:
  Groups(const Route& route, std::int64_t align)
      : sizes_(route.group_sizes.elements<std::int32_t>()),
        order_(route.order.elements<std::int32_t>()),
        choices_(route.choices),
        align_(align) {}

  std::int64_t count() const { return std::ssize(sizes_); }
  std::int64_t align() const { return align_; }
  std::int64_t size(std::int64_t g) const { return sizes_[static_cast<std::size_t>(g)]; }
  std::int64_t padded(std::int64_t g) const {
    if (size(g) > 0 && align_ > kMostInt32 + 1) checked(std::nullopt);
    return size(g) == 0 ? 0 : core::round_up(size(g), align_);
  }
  /// Entries of the ids, those of no expert too.
  std::int64_t entries() const { return std::ssize(order_); }
  std::int64_t choices() const { return choices_; }
  std::int64_t no_expert() const { return entries() - choices_; }
  /// The choice of a row; rows of no expert come last.
  std::int32_t choice(std::int64_t row) const { return order_[static_cast<std::size_t>(row)]; }

  std::int64_t padded_rows() const {
    std::int64_t rows = 0;
    for (std::int64_t g = 0; g < count(); ++g) rows = checked(core::checked_add(rows, padded(g)));
    return rows;
  }
  static std::int64_t checked(std::optional<std::int64_t> rows) {
    if (!rows || *rows > kMostInt32)
      throw core::invalid("the groups have more rows with padding than int32 counts (at most {})",
                          kMostInt32);
    return *rows;
  }

 private:
  std::span<const std::int32_t> sizes_, order_;
  std::int64_t choices_, align_;
};

Array filled_int32(std::int64_t length, std::int32_t value = 0) {
  Array array(DType::int32, {Groups::checked(length)});
  std::fill_n(array.elements<std::int32_t>().data(), length, value);
  return array;
}

// f(group) for each group, one after the other.
template <class F>
Array for_each_group(const Groups& groups, F&& f) {
  Array array = filled_int32(groups.count());
  for (std::int64_t g = 0; g < groups.count(); ++g)
    array.elements<std::int32_t>()[static_cast<std::size_t>(g)] = static_cast<std::int32_t>(f(g));
  return array;
}

Array running_ends(const Groups& groups) {
  std::int64_t end = 0;
  return for_each_group(groups, [&](std::int64_t g) { return end += groups.padded(g); });
}

Arrays offsets(const Groups& groups, const GroupLayoutSettings& settings) {
  const std::int64_t rows = groups.padded_rows(), all = settings.rows.value_or(rows);
  if (all < rows) throw core::invalid("the groups have {} rows with padding, more than m = {}", rows, all);
  Array ends = running_ends(groups);
  if (settings.last_is_total && groups.count() > 0)
    ends.elements<std::int32_t>().back() = static_cast<std::int32_t>(Groups::checked(all));
  Arrays arrays;
  arrays.push_back(std::move(ends));
  return arrays;
}

// The choices of each group in blocks of `align` rows; entries without one are the number of choices.
class Blocks {
 public:
  Blocks(const Groups& groups, std::int64_t length)
      : groups_(groups),
        tokens_(filled_int32(length, static_cast<std::int32_t>(groups.entries()))),
        experts_(filled_int32(core::ceil_div(length, groups.align()), -1)) {}

  // `size` rows from `row` on, as blocks of `expert`.
  void add(std::int64_t row, std::int64_t size, std::int32_t expert) {
    for (std::int64_t i = 0; i < size; ++i)
      tokens_.elements<std::int32_t>()[static_cast<std::size_t>(end_ + i)] = groups_.choice(row + i);
    const std::int64_t padded = core::round_up(size, groups_.align());
    std::fill_n(experts_.elements<std::int32_t>().data() + end_ / groups_.align(), padded / groups_.align(),
                expert);
    end_ += padded;
  }
  void add_groups() {
    for (std::int64_t g = 0, row = 0; g < groups_.count(); row += groups_.size(g++))
      add(row, groups_.size(g), static_cast<std::int32_t>(g));
  }

  /// Choices, experts of blocks, and the number of rows of all blocks.
  Arrays arrays() && {
    Arrays arrays;
    arrays.push_back(std::move(tokens_));
    arrays.push_back(std::move(experts_));
    arrays.push_back(filled_int32(1, static_cast<std::int32_t>(end_)));
    return arrays;
  }

 private:
  const Groups& groups_;
  Array tokens_, experts_;
  std::int64_t end_ = 0;
};

// Entries that suffice however the choices fall on `buckets` experts.
std::int64_t most_entries(const Groups& groups, std::int64_t buckets) {
  const std::int64_t n = groups.entries();
  const auto all = core::checked_mul(buckets, groups.align() - 1);
  std::int64_t most = Groups::checked(all ? core::checked_add(n, *all) : std::nullopt);
  if (n < buckets) most = std::min(most, Groups::checked(core::checked_mul(n, groups.align())));
  return most;
}

Arrays vllm(const Groups& groups, const GroupLayoutSettings&) {
  Blocks blocks(groups, most_entries(groups, groups.count()));
  blocks.add_groups();
  return std::move(blocks).arrays();
}

Arrays sglang(const Groups& groups, const GroupLayoutSettings&) {
  Blocks blocks(groups, core::round_up(most_entries(groups, groups.count() + 1), 4));
  blocks.add(groups.choices(), groups.no_expert(), -1);
  blocks.add_groups();
  return std::move(blocks).arrays();
}

Arrays deepgemm(const Groups& groups, const GroupLayoutSettings&) {
  Array labels = filled_int32(groups.padded_rows(), -1);
  std::int32_t* to = labels.elements<std::int32_t>().data();
  for (std::int64_t g = 0; g < groups.count(); to += groups.padded(g++))
    std::fill_n(to, groups.size(g), static_cast<std::int32_t>(g));
  Arrays arrays;
  arrays.push_back(std::move(labels));
  return arrays;
}

Arrays deepgemm_psum(const Groups& groups, const GroupLayoutSettings&) {
  groups.padded_rows();
  std::int64_t end = 0;
  Arrays arrays;
  arrays.push_back(for_each_group(
      groups, [&](std::int64_t g) { return end = core::round_up(end, groups.align()) + groups.size(g); }));
  return arrays;
}

Arrays deepgemm_masked(const Groups& groups, const GroupLayoutSettings&) {
  Arrays arrays;
  arrays.push_back(for_each_group(groups, [&](std::int64_t g) { return groups.size(g); }));
  return arrays;
}

Array filled_int16(std::int64_t length) { return Array(DType::int16, {Groups::checked(length)}); }

// Blocks of 128 x 128 of (rows with padding, experts · ffn): those of a row's own expert.
void add_topology(const Groups& groups, std::int64_t ffn_blocks, Arrays& arrays) {
  const std::int64_t block_rows = groups.padded_rows() / groups.align();
  const auto columns = core::checked_mul(groups.count(), ffn_blocks);
  if (!columns || *columns > kMostInt16 + 1)
    throw core::invalid("{} experts with {} blocks of columns each need column indices beyond int16",
                        groups.count(), ffn_blocks)
        .hint("MegaBlocks does not check this: its indices wrap to negative ones");
  if (block_rows > kMostInt16 + 1)
    throw core::invalid("{} rows of blocks need row indices beyond int16", block_rows)
        .hint("MegaBlocks does not check this: its indices wrap to negative ones");
  const std::int64_t blocks = Groups::checked(core::checked_mul(block_rows, ffn_blocks));
  Array offsets = filled_int32(block_rows + 1), column_indices = filled_int16(blocks),
        row_indices = filled_int16(blocks), column_indices_t = filled_int16(blocks),
        offsets_t = filled_int32(*columns + 1), block_offsets_t = filled_int32(blocks);
  std::int64_t row = 0, at = 0;
  for (std::int64_t g = 0; g < groups.count(); ++g)
    for (std::int64_t r = 0; r < groups.padded(g) / groups.align(); ++r, ++row)
      for (std::int64_t c = 0; c < ffn_blocks; ++c, ++at) {
        column_indices.elements<std::int16_t>()[static_cast<std::size_t>(at)] =
            static_cast<std::int16_t>(g * ffn_blocks + c);
        row_indices.elements<std::int16_t>()[static_cast<std::size_t>(at)] = static_cast<std::int16_t>(row);
      }
  for (std::int64_t r = 0; r <= block_rows; ++r)
    offsets.elements<std::int32_t>()[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(r * ffn_blocks);
  // By column: the rows of blocks of each expert, once for each of its columns.
  at = row = 0;
  for (std::int64_t g = 0; g < groups.count(); ++g) {
    const std::int64_t rows = groups.padded(g) / groups.align();
    for (std::int64_t c = 0; c < ffn_blocks; ++c) {
      for (std::int64_t r = 0; r < rows; ++r, ++at) {
        column_indices_t.elements<std::int16_t>()[static_cast<std::size_t>(at)] =
            static_cast<std::int16_t>(row + r);
        block_offsets_t.elements<std::int32_t>()[static_cast<std::size_t>(at)] =
            static_cast<std::int32_t>((row + r) * ffn_blocks + c);
      }
      offsets_t.elements<std::int32_t>()[static_cast<std::size_t>(g * ffn_blocks + c + 1)] =
          static_cast<std::int32_t>(at);
    }
    row += rows;
  }
  arrays.push_back(std::move(offsets));
  arrays.push_back(std::move(column_indices));
  arrays.push_back(std::move(row_indices));
  arrays.push_back(std::move(column_indices_t));
  arrays.push_back(std::move(offsets_t));
  arrays.push_back(std::move(block_offsets_t));
}

Arrays megablocks(const Groups& groups, const GroupLayoutSettings& settings) {
  if (groups.no_expert() > 0)
    throw core::invalid("{} choices are of no expert, and MegaBlocks has an expert for each",
                        groups.no_expert());
  Array indices = filled_int32(groups.choices()), bin_ids = filled_int32(groups.choices());
  for (std::int64_t g = 0, row = 0; g < groups.count(); ++g)
    for (std::int64_t i = 0; i < groups.size(g); ++i, ++row) {
      indices.elements<std::int32_t>()[static_cast<std::size_t>(row)] = groups.choice(row);
      bin_ids.elements<std::int32_t>()[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(g);
    }
  std::int64_t end = 0;
  Arrays arrays;
  arrays.push_back(for_each_group(groups, [&](std::int64_t g) { return groups.size(g); }));
  arrays.push_back(for_each_group(groups, [&](std::int64_t g) { return end += groups.size(g); }));
  groups.padded_rows();
  arrays.push_back(running_ends(groups));
  arrays.push_back(std::move(indices));
  arrays.push_back(std::move(bin_ids));
  if (settings.ffn_blocks > 0) add_topology(groups, settings.ffn_blocks, arrays);
  return arrays;
}

struct LayoutRow {
  GroupLayout layout;
  std::string_view name;
  std::int64_t align;  // by default; 0: it is to be given
  std::vector<std::string_view> arrays;
  Arrays (*make)(const Groups& groups, const GroupLayoutSettings& settings);
};
const LayoutRow kRows[] = {
    {GroupLayout::offsets, "offsets", 1, {"offs"}, offsets},
    {GroupLayout::vllm, "vllm", 0, {"sorted_token_ids", "expert_ids", "num_tokens_post_padded"}, vllm},
    {GroupLayout::sglang, "sglang", 0, {"sorted_token_ids", "expert_ids", "num_tokens_post_pad"}, sglang},
    {GroupLayout::deepgemm, "deepgemm", 128, {"grouped_layout"}, deepgemm},
    {GroupLayout::deepgemm_psum, "deepgemm-psum", 128, {"grouped_layout"}, deepgemm_psum},
    {GroupLayout::deepgemm_masked, "deepgemm-masked", 1, {"masked_m"}, deepgemm_masked},
    {GroupLayout::megablocks,
     "megablocks",
     128,
     {"tokens_per_expert", "bins", "padded_bins", "indices", "bin_ids"},
     megablocks},
};

const std::vector<std::string_view> kTopology{"offsets",          "column_indices", "row_indices",
                                              "column_indices_t", "offsets_t",      "block_offsets_t"};

const LayoutRow& row_of(GroupLayout layout) { return kRows[static_cast<std::size_t>(layout)]; }

void require_settings(const GroupLayoutSettings& settings) {
  const std::string_view name = row_of(settings.layout).name;
  const auto only = [&](bool is_given, const char* what, std::initializer_list<GroupLayout> of) {
    if (is_given && std::find(of.begin(), of.end(), settings.layout) == of.end())
      throw core::usage("layout {} has no {}", name, what);
  };
  only(settings.last_is_total, "end of the buffer", {GroupLayout::offsets});
  only(settings.rows.has_value(), "number of all rows", {GroupLayout::offsets});
  only(settings.ffn_blocks != 0, "blocks of a hidden layer", {GroupLayout::megablocks});
  if (settings.align && *settings.align < 1)
    throw core::usage("groups are padded to multiples of {} rows; it must be at least 1", *settings.align);
  if (settings.align.value_or(row_of(settings.layout).align) == 0)
    throw core::usage("layout {} has blocks of rows, whose size is not given", name);
  if (settings.layout == GroupLayout::deepgemm_masked && settings.align.value_or(1) != 1)
    throw core::usage("layout {} pads no group: each is in a matrix of its own", name);
  if (settings.ffn_blocks < 0) throw core::usage("an expert has {} blocks of columns", settings.ffn_blocks);
}

}  // namespace

std::string_view name_of(GroupLayout layout) { return row_of(layout).name; }

std::int64_t default_alignment(GroupLayout layout) { return row_of(layout).align; }

std::vector<std::string> group_array_names(GroupLayout layout, bool with_topology) {
  const std::vector<std::string_view>& arrays = row_of(layout).arrays;
  std::vector<std::string> names(arrays.begin(), arrays.end());
  if (layout == GroupLayout::megablocks && with_topology)
    names.insert(names.end(), kTopology.begin(), kTopology.end());
  return names;
}

GroupArrays make_group_arrays(const Route& route, const GroupLayoutSettings& settings) {
  require_settings(settings);
  GroupArrays made{settings, {}, {}};
  made.settings.align = settings.align.value_or(row_of(settings.layout).align);
  Arrays arrays = row_of(settings.layout).make(Groups(route, *made.settings.align), made.settings);
  const std::vector<std::string> names = group_array_names(settings.layout, settings.ffn_blocks > 0);
  for (std::size_t i = 0; i < arrays.size(); ++i) made.arrays.emplace_back(names[i], std::move(arrays[i]));
  const auto sizes = route.group_sizes.elements<std::int32_t>();
  made.sizes.assign(sizes.begin(), sizes.end());
  return made;
}

std::int64_t group_arrays_bytes(const Route& route, const GroupLayoutSettings& settings) {
  const auto align = static_cast<double>(settings.align.value_or(row_of(settings.layout).align));
  const auto groups = static_cast<double>(route.group_sizes.size());
  const double rows = static_cast<double>(route.order.size()) + (groups + 1) * align;
  // Blocks of the topology: two places of 4 bytes and three of 2 bytes, and an offset of each row and column.
  const double blocks =
      settings.ffn_blocks > 0 && align > 0 ? rows / align * static_cast<double>(settings.ffn_blocks) : 0;
  return core::bytes_of_estimate(8 * rows + 24 * groups + 10 * blocks +
                                 4 * groups * static_cast<double>(settings.ffn_blocks) +
                                 (align > 0 ? 4 * rows / align : 0));
}

std::int64_t sorted_route_bytes(std::int64_t rows) {
  return core::bytes_of_estimate(12 * static_cast<double>(rows));
}

Route sorted_route(std::span<const std::int64_t> group_sizes) {
  std::int64_t rows = 0;
  for (const std::int64_t size : group_sizes) {
    if (size < 0) throw core::invalid("a group has {} rows", size);
    rows = Groups::checked(core::checked_add(rows, size));
  }
  Route route{filled_int32(std::ssize(group_sizes)),
              filled_int32(rows),
              filled_int32(rows),
              filled_int32(rows),
              rows,
              rows};
  std::transform(group_sizes.begin(), group_sizes.end(), route.group_sizes.elements<std::int32_t>().begin(),
                 [](std::int64_t size) { return static_cast<std::int32_t>(size); });
  for (Array* array : {&route.order, &route.inverse, &route.token}) {
    const auto elements = array->elements<std::int32_t>();
    std::iota(elements.begin(), elements.end(), 0);
  }
  return route;
}

Report describe(const GroupArrays& arrays) {
  const std::int64_t align = *arrays.settings.align;
  const auto padded = [&](std::int64_t to) {
    std::int64_t rows = 0;
    for (const std::int64_t size : arrays.sizes) rows += core::round_up(size, to);
    return rows;
  };
  const std::int64_t rows = padded(1), with_padding = padded(align);
  Report report;
  report.add("layout", "layout", std::string(name_of(arrays.settings.layout)))
      .add("groups", "groups", std::ssize(arrays.sizes), Unit::count)
      .add("rows", "rows", rows, Unit::count)
      .add("align", "groups padded to", align, Unit::rows)
      .add("padded_rows", "rows with padding", with_padding, Unit::count)
      .add("padding", "of them padding", with_padding - rows, Unit::count)
      .add("padding_share", "share",
           ratio(static_cast<double>(with_padding - rows), static_cast<double>(with_padding)), Unit::share);
  if (align > 1) {
    Table table{"alignments",
                "the same groups with other padding",
                {{"align", "rows"},
                 {"padded_rows", "with padding"},
                 {"padding", "padding"},
                 {"padding_share", "share", Unit::share}},
                {}};
    for (const std::int64_t to :
         std::set<std::int64_t>{std::max<std::int64_t>(align / 4, 1), std::max<std::int64_t>(align / 2, 1),
                                align, 2 * align, 4 * align}) {
      const std::int64_t all = padded(to);
      table.rows.push_back(
          {to, all, all - rows, ratio(static_cast<double>(all - rows), static_cast<double>(all))});
    }
    report.add(std::move(table));
  }
  Table shapes{"arrays", "arrays", {{"array", "array"}, {"dtype", "dtype"}, {"shape", "shape"}}, {}};
  for (const auto& [name, array] : arrays.arrays)
    shapes.rows.push_back({name, std::string(name_of(array.dtype())), array.shape()});
  report.add(std::move(shapes));
  return report;
}

}  // namespace ejk
