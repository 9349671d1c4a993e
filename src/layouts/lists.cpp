// Layouts of FlexAttention (BlockMask) and FlashAttention-4: for each row of blocks, or each column, the number
// of blocks that a kernel visits and their indices, partial and full ones apart.
//
// A kernel applies mask_mod to partial blocks; what it computes is stored as the distinct partial blocks and
// the number of each one's pattern. Entries behind the count are never read: the other blocks in FlexAttention
// (its lists are sorted), 0 in FlashAttention-4. At a cut edge FlexAttention counts the padding as hidden,
// FlashAttention-4 does not.
// Source: torch 2.13 torch/nn/attention/flex_attention.py; flash_attn/cute/block_sparsity.py.
// tests: tests/layouts/test_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "core/checked.hpp"
#include "layouts/lists.hpp"

namespace ejk::blocks {

namespace {

constexpr ListNames kFlexRows{"kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"};
constexpr ListNames kFlexColumns{"q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"};
constexpr const char* kWriteOrders[] = {"dq_write_order",
                                        "dq_write_order_full"};  // of partial and of full blocks
constexpr const char* kFlexDescending = "dq_kv_order_spt";
constexpr const char* kFa4Descending = "spt";

// --- reading

// The lists of one walk: over the key blocks of a query block, or the query blocks of a key block.
struct Lists {
  ListNames names{};
  Direction direction = Direction::forward;
  IndexArray partial_count, partial, full_count, full;  // (1, rows, lines), (1, rows, lines, entries)

  std::int64_t lines() const { return partial_count.shape()[2]; }
};

class BlockLists final : public ListedBlocks {
 public:
  BlockLists(const ArrayGroup& group, const StoredSettings& given, std::vector<Lists> lists)
      : lists_(std::move(lists)) {
    name = group.name;
    walks = std::ssize(lists_);
    for (Lists& one : lists_) read_lists(group, one);
    const StoredSettings set = settings_of(group, given);
    Lists& first = lists_.front();
    const bool forward = first.direction == Direction::forward;
    rows = first.partial_count.shape()[1];
    patterns = group.find("partial_mask_blocks");
    std::optional<BlockShape> stored;
    if (patterns) stored = block_in(*patterns, "bool");
    block = required_block(group, agreed_block(group, set.block, stored));
    ids_ = read_index(group, "partial_block_ids", 4, false);
    if (ids_ && ids_.shape() != first.partial.shape())
      throw wrong("partial_block_ids", "{} has the shape {}, {} {}", ids_.source->name(),
                  to_string(ids_.shape()), first.names.partial, to_string(first.partial.shape()));
    std::int64_t& of_lines = forward ? q_blocks : kv_blocks;
    std::int64_t& of_entries = forward ? kv_blocks : q_blocks;
    of_lines = first.lines();
    // Compact lists are narrower than the mask, which the lengths, or the lists of columns, tell.
    of_entries = walks > 1 ? lists_[1].lines() : first.partial.shape()[3];
    if (set.shape) {
      shape = shape_in(*set.shape, rows);
      of_entries = core::ceil_div(forward ? shape.kv_length : shape.q_length, forward ? block.kv : block.q);
      require_lengths(*this, shape.q_length, shape.kv_length);
    } else {
      shape = {rows, q_blocks * block.q, kv_blocks * block.kv, true, true};
    }
    if (q_blocks > INT32_MAX || kv_blocks > INT32_MAX)
      throw wrong(first.names.partial, "{}: more than 2^31 blocks in a row", name);
    for (const Lists& one : lists_) {
      const bool by_rows = one.direction == Direction::forward;
      if (one.lines() != (by_rows ? q_blocks : kv_blocks) || one.partial_count.shape()[1] != rows ||
          one.partial.shape()[3] > (by_rows ? kv_blocks : q_blocks))
        throw wrong(one.names.partial, "{} has the shape {}, and there are {} masks of {} x {} blocks",
                    one.partial.source->name(), to_string(one.partial.shape()), rows, q_blocks, kv_blocks);
      for (const IndexArray* index : {&one.partial_count, &one.partial, &one.full_count, &one.full})
        if (*index) indices.push_back(index);
      walk_lists.push_back(one.full ? fmt::format("{} or {}", one.names.partial, one.names.full)
                                    : one.names.partial);
    }
    if (ids_) indices.push_back(&ids_);
    if (patterns && !ids_) number_patterns();
    read_write_orders(group);
  }

  // The orders of the backward walk: the n-th key block that adds to a query block has n there. Without a flag,
  // the direction with fewer faults applies.
  void check(const ArrayWalk& to) const override {
    if (!write_orders_[0] && !write_orders_[1]) return;
    const auto count_faults = [&](WriteOrder direction) {
      std::int64_t faults = 0;
      each_wrong_order(direction, [&](int, std::int64_t, std::int64_t, std::size_t) { ++faults; });
      return faults;
    };
    const auto likely = [&] {
      const bool descends = count_faults(WriteOrder::descending) < count_faults(WriteOrder::ascending);
      return descends ? WriteOrder::descending : WriteOrder::ascending;
    };
    each_wrong_order(write_order_ ? *write_order_ : likely(), [&](int list, std::int64_t at,
                                                                  std::int64_t wanted, std::size_t i) {
      const IndexArray& order = write_orders_[list];
      to.fault("write-order", {order.name, at}, order[at],
               fmt::format("{} key blocks add to query block {} before this one", wanted, i));
    });
  }

  bool is_computed(std::int64_t walk) const override { return walk > 0 || !patterns; }

  void walk(std::int64_t walk, std::int64_t row, const ArrayWalk& to) const override {
    const Lists& of = lists_[static_cast<std::size_t>(walk)];
    const std::int64_t lines = of.lines();
    std::int64_t order = patterns && !ids_ && walk == 0 ? before_row_[static_cast<std::size_t>(row)] : 0;
    for (std::int64_t line = 0; line < lines; ++line) {
      walk_list(of, of.partial_count, of.partial, row, line, to,
                [&](std::int64_t at, std::int64_t entry) -> std::optional<std::int32_t> {
                  if (is_computed(walk))
                    return static_cast<std::int32_t>(of.direction == Direction::forward ? entry : line);
                  const std::int64_t pattern = ids_ ? ids_[at] : order++;
                  if (pattern >= 0 && pattern < patterns->shape()[0])
                    return static_cast<std::int32_t>(pattern);
                  to.fault("range", {ids_.name, at}, pattern,
                           fmt::format("partial_mask_blocks has {}", patterns->shape()[0]));
                  return std::nullopt;
                });
      if (of.full_count)
        walk_list(of, of.full_count, of.full, row, line, to,
                  [](std::int64_t, std::int64_t) { return std::optional(BlockGrid::kFull); });
    }
  }

  std::shared_ptr<const BlockElements> elements(std::int64_t) const override {
    return patterns ? pattern_elements(patterns, Direction::forward) : nullptr;
  }

  ArrayPlace home(std::int64_t walk, std::int64_t row, std::int64_t i, std::int64_t j) const override {
    const Lists& of = lists_[static_cast<std::size_t>(walk)];
    return {of.names.partial_count, row * of.lines() + (of.direction == Direction::forward ? i : j)};
  }

  std::pair<const char*, Shape> element_place(std::int64_t, std::int64_t, std::int64_t, std::int32_t pattern,
                                              std::int64_t q, std::int64_t k) const override {
    return {"partial_mask_blocks", {pattern, q % block.q, k % block.kv}};
  }

 private:
  static void read_lists(const ArrayGroup& group, Lists& of) {
    of.partial_count = read_index(group, of.names.partial_count, 3);
    of.partial = read_index(group, of.names.partial, 4);
    of.full_count = read_index(group, of.names.full_count, 3, false);
    of.full = read_index(group, of.names.full, 4, static_cast<bool>(of.full_count));
    if (of.full && !of.full_count) of.full_count = read_index(group, of.names.full_count, 3);
    for (const auto& [count, list] :
         {std::pair{&of.partial_count, &of.partial}, std::pair{&of.full_count, &of.full}}) {
      if (!*count) continue;
      const Shape& counts = count->shape();
      require_one_entry(*count);
      if (counts != of.partial_count.shape() ||
          !std::equal(counts.begin(), counts.end(), list->shape().begin()) || element_count(counts) == 0)
        throw wrong(list->name, "{} has the shape {}, {} {}", list->source->name(), to_string(list->shape()),
                    count->name, to_string(counts));
    }
  }

  void read_write_orders(const ArrayGroup& group) {
    const Lists& of = lists_.back();
    const bool has_orders = group.find(kWriteOrders[0]) || group.find(kWriteOrders[1]);
    for (int list = 0; list < 2; ++list) {
      const IndexArray& listed = list == 0 ? of.partial : of.full;
      IndexArray& order = write_orders_[list] =
          read_index(group, kWriteOrders[list], 4, has_orders && static_cast<bool>(listed));
      if (!order) continue;
      if (of.direction == Direction::forward || !listed || listed.shape() != order.shape())
        throw wrong(order.name, "{} has the shape {}: it is beside the query blocks of each key block",
                    order.source->name(), to_string(order.shape()));
      indices.push_back(&order);
    }
    if (const auto descends = flag_in(group, walks > 1 ? kFlexDescending : kFa4Descending))
      write_order_ = *descends ? WriteOrder::descending : WriteOrder::ascending;
  }

  // f(list, element, order, query block) where the stored order differs.
  template <class F>
  void each_wrong_order(WriteOrder direction, F&& f) const {
    const Lists& of = lists_.back();
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(q_blocks)), seen(all.size());
      each_entry(of, row, [&](int, std::int64_t, std::size_t i) { ++all[i]; });
      each_entry(of, row, [&](int list, std::int64_t at, std::size_t i) {
        const std::int64_t nth = seen[i]++,
                           wanted = direction == WriteOrder::descending ? all[i] - 1 - nth : nth;
        if (write_orders_[list] && write_orders_[list][at] != wanted) f(list, at, wanted, i);
      });
    }
  }

  // Calls f(list, element, query block) for the entries of one backward walk, key block by key block.
  template <class F>
  void each_entry(const Lists& of, std::int64_t row, F&& f) const {
    for (std::int64_t line = row * of.lines(); line < (row + 1) * of.lines(); ++line)
      for (const int list : {0, 1}) {
        const IndexArray &counts = list == 0 ? of.partial_count : of.full_count,
                         &entries = list == 0 ? of.partial : of.full;
        if (!counts) continue;
        const std::int64_t width = entries.shape()[3], count = counts[line];
        for (std::int64_t at = line * width; count <= width && at < line * width + count; ++at)
          if (entries[at] >= 0 && entries[at] < q_blocks) f(list, at, static_cast<std::size_t>(entries[at]));
      }
  }

  // Patterns without numbers are one for each partial block, in the order of the lists.
  void number_patterns() {
    const IndexArray& counts = lists_.front().partial_count;
    std::int64_t before = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      before_row_.push_back(before);
      for (std::int64_t line = 0; line < lists_.front().lines(); ++line)
        before += std::clamp<std::int64_t>(counts[row * lists_.front().lines() + line], 0,
                                           lists_.front().partial.shape()[3]);
    }
    if (before != patterns->shape()[0])
      throw wrong("partial_block_ids",
                  "{}: it has {} partial blocks and {} patterns, and no partial_block_ids", name, before,
                  patterns->shape()[0]);
  }

  template <class Pattern>
  void walk_list(const Lists& of, const IndexArray& counts, const IndexArray& list, std::int64_t row,
                 std::int64_t line, const ArrayWalk& to, Pattern&& pattern_of) const {
    const bool forward = of.direction == Direction::forward;
    const std::int64_t at_line = row * of.lines() + line, width = list.shape()[3];
    const std::int64_t limit = forward ? kv_blocks : q_blocks;
    std::int64_t count = counts[at_line];
    if (count < 0 || count > width) {
      to.fault("range", {counts.name, at_line}, count, fmt::format("{} has {} entries", list.name, width));
      count = 0;
    }
    for (std::int64_t at = at_line * width; at < at_line * width + count; ++at) {
      const std::int64_t entry = list[at];
      if (entry < 0 || entry >= limit) {
        to.fault("range", {list.name, at}, entry,
                 fmt::format("there are {} {} blocks", limit, forward ? "key" : "query"));
        continue;
      }
      if (const auto pattern = pattern_of(at, entry))
        to.visit(forward ? line : entry, forward ? entry : line, *pattern, {list.name, at});
    }
  }

  std::vector<Lists> lists_;
  IndexArray ids_, write_orders_[2];
  std::optional<WriteOrder> write_order_;  // of write_orders_
  std::vector<std::int64_t> before_row_;
};

bool is_flex(const ArrayGroup& group) { return group.find("kv_num_blocks") || group.find("kv_indices"); }
bool is_fa4(const ArrayGroup& group) { return group.find("mask_block_cnt") || group.find("mask_block_idx"); }

std::shared_ptr<const ListedBlocks> list_flex(const ArrayGroup& group, const StoredSettings& settings) {
  std::vector<Lists> lists{{kFlexRows, Direction::forward, {}, {}, {}, {}}};
  const ListNames& columns = kFlexColumns;
  if (group.find(columns.partial_count) || group.find(columns.partial) || group.find(columns.full_count) ||
      group.find(columns.full))
    lists.push_back({columns, Direction::dkv, {}, {}, {}, {}});
  return std::make_shared<BlockLists>(group, settings, std::move(lists));
}

std::shared_ptr<const ListedBlocks> list_fa4(const ArrayGroup& group, const StoredSettings& settings) {
  if (is_varlen(group)) return list_varlen(group, settings);
  const Direction direction = settings_of(group, settings).direction.value_or(Direction::forward);
  return std::make_shared<BlockLists>(group, settings,
                                      std::vector<Lists>{{kFa4Lists, direction, {}, {}, {}, {}}});
}

// --- writing

enum class Tail { other_blocks, zeros };

bool is_full_at_edge(const MaskScans& scans, const ScanGrid& grid, std::int64_t i, std::int64_t j) {
  if (i != scans.q_blocks() - 1 && j != scans.kv_blocks() - 1) return false;
  const BlockShape block = scans.plan.block;
  const std::int64_t rows = std::min(block.q, scans.q_length() - i * block.q),
                     columns = std::min(block.kv, scans.kv_length() - j * block.kv);
  return (rows < block.q || columns < block.kv) && is_all_true(scans, grid.pattern(i, j), rows, columns);
}

class ListWriter {
 public:
  ListWriter(const MaskScans& scans, Tail tail) : scans_(scans), tail_(tail), patterns_(scans.table) {}

  void write(const ListNames& names, Direction direction, ArraysMade& to) {
    const bool forward = direction == Direction::forward;
    const std::int64_t rows = scans_.rows(), lines = forward ? scans_.q_blocks() : scans_.kv_blocks(),
                       width = forward ? scans_.kv_blocks() : scans_.q_blocks();
    Array counts[2] = {index_array(names.partial_count, {1, rows, lines}, width),
                       index_array(names.full_count, {1, rows, lines}, width)};
    Array lists[2] = {index_array(names.partial, {1, rows, lines, width}, width),
                      index_array(names.full, {1, rows, lines, width}, width)};
    const bool numbers = ids_.size() == 0;
    if (numbers) ids_ = index_array("partial_block_ids", lists[0].shape(), scans_.table->size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const ScanGrid grid(scans_.of_row(row));
      const auto line_of = [&](std::int64_t i, std::int64_t j) { return row * lines + (forward ? i : j); };
      const auto enter = [&](int list, std::int64_t line, std::int64_t entry) {
        const auto at = static_cast<std::size_t>(line);
        std::int32_t& count = counts[list].elements<std::int32_t>()[at];
        const std::int64_t place = line * width + count++;
        lists[list].elements<std::int32_t>()[static_cast<std::size_t>(place)] =
            static_cast<std::int32_t>(entry);
        return static_cast<std::size_t>(place);
      };
      for (std::int64_t i = 0; i < scans_.q_blocks(); ++i)
        grid.for_each(i, [&](std::int64_t j, std::uint8_t state) {
          const bool full =
              state != kPartial || (tail_ == Tail::zeros && is_full_at_edge(scans_, grid, i, j));
          const std::size_t at = enter(full, line_of(i, j), forward ? j : i);
          if (!full && numbers) ids_.elements<std::int32_t>()[at] = patterns_.number_of(grid.pattern(i, j));
        });
    }
    if (tail_ == Tail::other_blocks)
      for (int list = 0; list < 2; ++list) fill_tails(counts[list], lists[list], rows * lines, width);
    if (!forward && scans_.settings.dq_write_order) add_write_orders(lists, to);
    to.add(names.partial_count, std::move(counts[0]));
    to.add(names.partial, std::move(lists[0]));
    to.add(names.full_count, std::move(counts[1]));
    to.add(names.full, std::move(lists[1]));
  }

  void write_patterns(ArraysMade& to) { patterns_.write(std::move(ids_), to); }

 private:
  // Beside each list of query blocks (1, rows, key blocks, entries): how many key blocks add to each entry
  // before. Entries behind the count have the same of the block that they are.
  void add_write_orders(const Array (&lists)[2], ArraysMade& to) const {
    const std::int64_t q_blocks = scans_.q_blocks(), kv_blocks = scans_.kv_blocks();
    Array orders[2];
    for (const int list : {0, 1})
      orders[list] = index_array(kWriteOrders[list], lists[list].shape(), kv_blocks);
    std::vector<std::int32_t> before(
        static_cast<std::size_t>(q_blocks * kv_blocks));  // of each block, in its row
    const auto line_of = static_cast<std::size_t>(q_blocks);
    std::size_t first = 0;  // of a key block's entries
    for (std::int64_t row = 0; row < scans_.rows(); ++row) {
      const ScanGrid grid(scans_.of_row(row));
      for (std::int64_t i = 0; i < q_blocks; ++i) {
        const auto line = std::span(before).subspan(static_cast<std::size_t>(i * kv_blocks),
                                                    static_cast<std::size_t>(kv_blocks));
        std::fill(line.begin(), line.end(), 0);
        grid.for_each(i, [&](std::int64_t j, std::uint8_t) { line[static_cast<std::size_t>(j)] = 1; });
        const std::int32_t all = std::reduce(line.begin(), line.end());
        std::exclusive_scan(line.begin(), line.end(), line.begin(), 0);
        if (scans_.settings.dq_write_order == WriteOrder::descending)
          for (std::int32_t& n : line) n = all - 1 - n;
      }
      for (std::int64_t j = 0; j < kv_blocks; ++j, first += line_of)
        for (const int list : {0, 1})
          for (std::size_t at = first; at < first + line_of; ++at)
            orders[list].elements<std::int32_t>()[at] =
                before[static_cast<std::size_t>(lists[list].elements<std::int32_t>()[at] * kv_blocks + j)];
    }
    for (const int list : {0, 1}) to.add(kWriteOrders[list], std::move(orders[list]));
  }

  // The blocks that are not listed, ascending.
  static void fill_tails(const Array& counts, Array& list, std::int64_t lines, std::int64_t width) {
    for (std::int64_t line = 0; line < lines; ++line) {
      const auto entries = list.elements<std::int32_t>().subspan(static_cast<std::size_t>(line * width),
                                                                 static_cast<std::size_t>(width));
      const std::int32_t count = counts.elements<std::int32_t>()[static_cast<std::size_t>(line)];
      auto to = static_cast<std::size_t>(count);
      std::int32_t next = 0;
      for (std::int32_t n = 0; n < count; ++n) {
        for (; next < entries[static_cast<std::size_t>(n)]; ++next) entries[to++] = next;
        next = entries[static_cast<std::size_t>(n)] + 1;
      }
      for (; next < width; ++next) entries[to++] = next;
    }
  }

  const MaskScans& scans_;
  Tail tail_;
  Array ids_;
  UsedPatterns patterns_;
};

void write_flex(const MaskScans& scans, ArraysMade& to) {
  ListWriter writer(scans, Tail::other_blocks);
  writer.write(kFlexRows, Direction::forward, to);
  writer.write(kFlexColumns, Direction::dkv, to);
  if (scans.settings.dq_write_order)
    to.add(kFlexDescending, scans.settings.dq_write_order == WriteOrder::descending);
  to.add("BLOCK_SIZE", {scans.plan.block.q, scans.plan.block.kv}, {2});
  to.add("seq_lengths", {scans.q_length(), scans.kv_length()}, {2});
  writer.write_patterns(to);
}

void write_fa4(const MaskScans& scans, ArraysMade& to) {
  if (scans.settings.cu_seqlens_q) return write_varlen(scans, to);
  ListWriter writer(scans, Tail::zeros);
  writer.write(kFa4Lists, scans.settings.direction, to);
  if (scans.settings.dq_write_order)
    to.add(kFa4Descending, scans.settings.dq_write_order == WriteOrder::descending);
  to.add("block_size", {scans.plan.block.q, scans.plan.block.kv}, {2});
  to.add("shape", {scans.q_length(), scans.kv_length()}, {2});
  to.add("dkv", scans.settings.direction == Direction::dkv);
  writer.write_patterns(to);
}

constexpr const char* kFlexArrays[] = {
    "kv_num_blocks",       "kv_indices",        "full_kv_num_blocks", "full_kv_indices",     "q_num_blocks",
    "q_indices",           "full_q_num_blocks", "full_q_indices",     "BLOCK_SIZE",          "seq_lengths",
    "partial_mask_blocks", "partial_block_ids", "dq_write_order",     "dq_write_order_full", kFlexDescending};
constexpr const char* kFa4Arrays[] = {"mask_block_cnt",
                                      "mask_block_idx",
                                      "full_block_cnt",
                                      "full_block_idx",
                                      "block_size",
                                      "shape",
                                      "dkv",
                                      "partial_mask_blocks",
                                      "partial_block_ids",
                                      "dq_write_order",
                                      "dq_write_order_full",
                                      kFa4Descending,
                                      "cu_total_m_blocks",
                                      "cu_block_idx_offsets",
                                      "cu_seqlens_q",
                                      "cu_seqlens_k"};
constexpr LayoutSetting kFlexSettings[] = {{"block"}, {"dq_write_order"}};
constexpr LayoutSetting kFa4Settings[] = {{"block"},
                                          {"dkv"},
                                          {"dq_write_order", Direction::dkv},
                                          {"cu_seqlens", Direction::forward},
                                          {"cu_seqlens_k", Direction::forward}};
// Of both layouts.
constexpr std::pair<std::string_view, AbsentArray> kListsAbsent[] = {
    {"dkv", AbsentArray::forward},
    {"cu_", AbsentArray::no_sequences},
    {"dq_", AbsentArray::no_write_order},
    {kFa4Descending, AbsentArray::no_write_order}};

}  // namespace

bool is_all_true(const MaskScans& scans, std::int32_t pattern, std::int64_t rows, std::int64_t columns) {
  const BlockShape block = scans.plan.block;
  const Word* bits = scans.table->bits(pattern);
  std::int64_t ones = 0;
  for (std::int64_t w = 0; w < block.q * words_for(block.kv); ++w) ones += std::popcount(bits[w]);
  return ones == rows * columns;
}

void UsedPatterns::write(Array ids, ArraysMade& to) const {
  if (used_.empty()) return;
  to.add("partial_mask_blocks", pattern_source(table_, used_, Direction::forward));
  to.add("partial_block_ids", std::move(ids));
}

extern const StoredMaskLayout kFlex, kFa4;
const StoredMaskLayout kFlex{.name = "flex",
                             .arrays = kFlexArrays,
                             .is_of = is_flex,
                             .list = list_flex,
                             .written_as = MaskLayout::flex,
                             .write = write_flex,
                             .takes = kFlexSettings,
                             .absent = kListsAbsent};
const StoredMaskLayout kFa4{.name = "fa4",
                            .arrays = kFa4Arrays,
                            .is_of = is_fa4,
                            .list = list_fa4,
                            .written_as = MaskLayout::fa4,
                            .write = write_fa4,
                            .takes = kFa4Settings,
                            .absent = kListsAbsent};

}  // namespace ejk::blocks
