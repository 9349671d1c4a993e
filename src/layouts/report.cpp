// Sparsity report of a MaskInfo and of the arrays of other layouts: the work of a block-sparse kernel.
// tests: tests/layouts/test_report.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "blocks/plan.hpp"
#include "core/checked.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/mask_layouts.hpp"
#include "ejk/program/text.hpp"
#include "layouts/writing.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace {

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::int64_t length_of(const std::vector<IndexRange>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t n, const IndexRange& r) { return n + r.count(); });
}

void add_ranges(Report& report, const ScannedMasks& info, const char* key, const char* title, Unit unit,
                std::vector<IndexRange> MaskSummary::*ranges) {
  constexpr std::size_t kMost = 10'000;  // ranges that a report lists
  Table table{
      key, title, {{"mask", "mask"}, {"begin", "first"}, {"end", "end"}, {"count", "count", unit}}, {}, 8};
  std::size_t all = 0;
  for (std::size_t u = 0; u < info.summaries.size(); ++u) {
    const auto& found = info.summaries[u].*ranges;
    all += found.size();
    for (const IndexRange& r : found)
      if (table.rows.size() < kMost)
        table.rows.push_back({static_cast<std::int64_t>(u), r.begin, r.end, r.count()});
  }
  if (all > kMost)
    report.warnings.push_back(fmt::format("{}: {} ranges, the first {} are listed", title, all, kMost));
  report.add(std::move(table));
}

// A block row is the work of one query block, a block column (dkv) that of one key block.
void add_loads(Report& report, const ScannedMasks& info, bool dkv) {
  Table table{dkv ? "columns_of_blocks" : "rows_of_blocks",
              dkv ? "heaviest and lightest columns of blocks" : "heaviest and lightest rows of blocks",
              {{"mask", "mask"},
               {"rank", ""},
               dkv ? TableColumn{"column", "column"} : TableColumn{"row", "row"},
               dkv ? TableColumn{"kv_begin", "first key"} : TableColumn{"q_begin", "first query"},
               {"blocks", "blocks to compute", Unit::blocks},
               {"share", dkv ? "of the column" : "of the row", Unit::share}},
              {}};
  const std::int64_t side = dkv ? info.block.kv : info.block.q;
  for (std::size_t u = 0; u < info.summaries.size(); ++u) {
    const BlockStates& states = *info.summaries[u].states;
    const std::int64_t rows = states.rows(), columns = states.columns();
    std::vector<std::int64_t> load(static_cast<std::size_t>(dkv ? columns : rows)), order(load.size());
    for (std::int64_t i = 0; i < rows; ++i) {
      std::int64_t j = states.run(i).begin;
      for (const std::uint8_t state : states.states(i)) {
        load[static_cast<std::size_t>(dkv ? j : i)] += state != 0;
        ++j;
      }
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return load[static_cast<std::size_t>(a)] > load[static_cast<std::size_t>(b)];
    });
    const auto listed = std::min<std::size_t>(3, order.size());
    const auto add = [&](std::int64_t at, const char* rank) {
      const std::int64_t blocks = load[static_cast<std::size_t>(at)];
      table.rows.push_back({static_cast<std::int64_t>(u), std::string(rank), at, at * side, blocks,
                            share(blocks, dkv ? rows : columns)});
    };
    for (std::size_t n = 0; n < listed; ++n) add(order[n], "heaviest");
    for (std::size_t n = std::max(listed, order.size() - listed); n < order.size(); ++n)
      add(order[n], "lightest");
  }
  table.text_rows = 12;
  report.add(std::move(table));
}

void add_arrays(Report& report, const std::vector<MaskArray>& arrays, std::int64_t dense_bytes) {
  Table table{"arrays",
              "arrays",
              {{"name", "name"}, {"dtype", "dtype"}, {"shape", "shape"}, {"size", "size", Unit::bytes}},
              {}};
  std::int64_t bytes = 0;
  for (const MaskArray& array : arrays) {
    if (array.name == "is_dynamic_mask") continue;  // a flag, which is no data
    const ArrayType type = type_of(*array.elements);
    bytes = core::sum_of_bytes({bytes, type.bytes()});
    table.rows.push_back({array.name, std::string(name_of(type.dtype)), type.shape, type.bytes()});
  }
  report.add(std::move(table));
  report.add("arrays", "all arrays", bytes, Unit::bytes);
  report.add("dense_mask", "the dense mask", dense_bytes, Unit::bytes);
  report.add("arrays_of_dense", "arrays of dense mask", share(bytes, dense_bytes), Unit::share);
}

std::optional<std::int64_t> keys_of_middle_query(const Mask& m) {
  if (!m.node().random_access()) return std::nullopt;
  blocks::BitBuffer buffer;
  const blocks::BitRows row = buffer.rows(1, m.kv_length());
  const std::int64_t q = m.q_length() / 2;
  m.node().fill({q, q + 1, 0, m.kv_length()}, row);
  std::int64_t keys = 0;
  for (std::int64_t w = 0; w < row.row_words; ++w) keys += std::popcount(row.words[w]);
  return keys;
}

}  // namespace

std::string blocks::heads_with(const std::vector<std::int64_t>& head_mask, std::int64_t u) {
  std::string text;
  const auto heads = static_cast<std::int64_t>(head_mask.size());
  for (std::int64_t h = 0; h < heads;) {
    std::int64_t end = h;
    while (end < heads && head_mask[static_cast<std::size_t>(end)] == u) ++end;
    if (end > h)
      text += fmt::format("{}{}", text.empty() ? "" : ", ",
                          end - h == 1 ? fmt::format("{}", h) : fmt::format("{}-{}", h, end - 1));
    h = std::max(end, h + 1);
  }
  return text;
}

namespace {

bool is_padded(const ScannedMasks& of) {
  const MaskSummary& first = of.summaries.front();
  return first.states->rows() * of.block.q != first.q_length ||
         first.states->columns() * of.block.kv != first.kv_length;
}

void add_shapes(Report& report, const ScannedMasks& of, bool has_blocks = true) {
  const MaskSummary& first = of.summaries.front();
  const auto heads = std::ssize(of.head_mask);
  report.add("shape", "heads, queries, keys", Shape{heads, first.q_length, first.kv_length});
  report.add("block", has_blocks ? "block" : "counted in blocks of", Shape{of.block.q, of.block.kv});
  if (has_blocks && is_padded(of))
    report.add("padded_shape", "padded with False to",
               Shape{heads, first.states->rows() * of.block.q, first.states->columns() * of.block.kv});
}

void add_alignments(Report& report, const ScannedMasks& of) {
  std::set<std::string> alignment;
  for (const Mask& m : of.masks) blocks::add_alignment(m.node(), alignment);
  if (!alignment.empty()) report.add("alignment", "alignment", fmt::format("{}", fmt::join(alignment, "; ")));
}

bool has(const MaskArrays& made, AbsentArray why) {
  return std::any_of(made.absent.begin(), made.absent.end(),
                     [&](const auto& absent) { return absent.second == why; });
}

void add_masks(Report& report, const ScannedMasks& info, bool is_dynamic) {
  const auto q = info.summaries.front().q_length, kv = info.summaries.front().kv_length;
  Table masks{"masks",
              "masks",
              {{"mask", "mask"},
               {"heads", "heads"},
               {"expression", "is"},
               {"empty_blocks", "empty", Unit::blocks},
               {"partial_blocks", "partial", Unit::blocks},
               {"full_blocks", "full", Unit::blocks},
               {"block_sparsity", "skipped", Unit::share},
               {"element_sparsity", "False", Unit::share},
               {"distinct_partial_blocks", "distinct", Unit::blocks, true},
               {"mean_keys_per_query", "keys/query"},
               {"keys_of_middle_query", "middle query", Unit::keys, true}},
              {}};
  for (std::size_t u = 0; u < info.summaries.size(); ++u) {
    const MaskSummary& s = info.summaries[u];
    const std::int64_t grid = s.states->blocks();
    const auto middle = keys_of_middle_query(info.masks[u]);
    masks.rows.push_back({static_cast<std::int64_t>(u),
                          blocks::heads_with(info.head_mask, static_cast<std::int64_t>(u)),
                          printable(info.masks[u].text(), 1000), s.empty_blocks, s.partial_blocks,
                          s.full_blocks, share(s.empty_blocks, grid), 1 - share(s.true_elements, q * kv),
                          is_dynamic ? ReportValue() : ReportValue(s.distinct_partial_blocks),
                          share(s.true_elements, q), middle ? ReportValue(*middle) : ReportValue()});
  }
  report.add(std::move(masks));
}

// Tables and pictures of the blocks.
void add_blocks(Report& report, const MaskArrays& info, bool is_dynamic, bool dkv) {
  const MaskSummary& first = info.summaries.front();
  const auto heads = std::ssize(info.head_mask);
  const std::int64_t q = first.q_length, kv = first.kv_length;

  // Sums over heads, not over distinct masks.
  std::int64_t empty = 0, partial = 0, full = 0, elements = 0, blind_rows = 0, unseen_keys = 0;
  for (const std::int64_t u : info.head_mask) {
    const MaskSummary& s = info.summaries[static_cast<std::size_t>(u)];
    empty += s.empty_blocks, partial += s.partial_blocks, full += s.full_blocks, elements += s.true_elements;
    blind_rows += length_of(s.rows_without_key), unseen_keys += length_of(s.keys_without_row);
  }
  const std::int64_t blocks = empty + partial + full, dense = heads * q * kv;

  add_masks(report, info, is_dynamic);

  Report in_all;
  in_all.add("blocks", "blocks", blocks, Unit::count);
  in_all.add("empty_blocks", "empty", empty, Unit::count);
  in_all.add("partial_blocks", "partial", partial, Unit::count);
  in_all.add("full_blocks", "full", full, Unit::count);
  in_all.add("block_sparsity", "blocks skipped", share(empty, blocks), Unit::share);
  in_all.add("work_left", "matmul work left", share(partial + full, blocks), Unit::share);
  in_all.add("element_sparsity", "elements False", 1 - share(elements, dense), Unit::share);
  in_all.add("true_elements", "elements True", elements, Unit::count);
  if (!is_dynamic)
    in_all.add("distinct_partial_blocks", "distinct partial blocks", info.distinct_partial_blocks,
               Unit::count);
  in_all.add("rows_without_key", "queries without a key", blind_rows, Unit::count);
  in_all.add("keys_without_row", "keys without a query", unseen_keys, Unit::count);
  if (!info.unshrunk_grid.empty())
    in_all.add("grid", "grid before shrinking", info.unshrunk_grid)
        .add("shrunk_grid", "grid of the arrays", info.arrays.front().elements->shape());
  report.add(Section{"total", heads == 1 ? "in all" : "over all heads",
                     std::make_shared<Report>(std::move(in_all))});

  add_ranges(report, info, "rows_without_key", "queries without a key", Unit::rows,
             &MaskSummary::rows_without_key);
  add_ranges(report, info, "keys_without_row", "keys without a query", Unit::keys,
             &MaskSummary::keys_without_row);
  add_arrays(report, info.arrays, dense);
  add_loads(report, info, dkv);

  constexpr std::size_t kScreens = 4;  // of distinct masks
  for (std::size_t u = 0; u < std::min<std::size_t>(kMostPictures, info.summaries.size()); ++u) {
    BlockPicture picture = blocks::picture_of(info.block, info.summaries[u]);
    picture.key = fmt::format("picture_{}", u);
    picture.title = fmt::format("blocks of mask {} (queries down, keys across)", u);
    picture.subject = info.masks[u].text();
    picture.page_only = u >= kScreens;
    report.add(std::move(picture));
  }
  report.pictures_left_out = std::max<std::int64_t>(0, std::ssize(info.summaries) - kMostPictures);
  if (blind_rows > 0)
    report.warnings.push_back(fmt::format("{} of {} queries have no key: a softmax over them is undefined",
                                          format_count(blind_rows), format_count(heads * q)));
}

}  // namespace

Report describe(const MaskInfo& info) {
  MaskArrays made;
  static_cast<ScannedMasks&>(made) = info;
  made.settings.direction = info.direction;
  made.settings.head_shards = info.settings.head_shards;
  made.settings.q_seq_shards = info.settings.q_seq_shards;
  made.settings.dynamic = info.is_dynamic_mask;
  made.unshrunk_grid = info.unshrunk_grid;
  const ArrayGroup stored = stored_arrays(info);
  for (const std::string& name : mask_array_names(MaskLayout::jax))
    if (auto elements = stored.find(name); elements) made.arrays.push_back({name, std::move(elements)});
  if (info.mask_function) made.absent.emplace_back("mask_next", AbsentArray::computed);
  return describe(made);
}

Report describe(const MaskArrays& arrays) {
  Report report;
  const MaskLayoutSettings& how = arrays.settings;
  const bool dkv = how.direction == Direction::dkv, has_walk = !arrays.unshrunk_grid.empty();
  if (!has_walk) report.add("layout", "layout", std::string(name_of(how.layout)));
  if (has_walk || dkv) report.add("direction", "walk", std::string(dkv ? "dkv" : "forward"));
  const bool is_dynamic = has_walk && how.dynamic;
  if (has_walk)
    report.add("kind", "kind",
               std::string(is_dynamic                           ? "dynamic"
                           : has(arrays, AbsentArray::computed) ? "static, computable"
                                                                : "static"));
  add_shapes(report, arrays, has_blocks(how.layout));
  if (how.head_shards > 1) report.add("head_shards", "head shards", how.head_shards);
  if (has_walk && how.q_seq_shards > 1) report.add("q_seq_shards", "query shards", how.q_seq_shards);
  if (!has_walk) report.add("exact", "exact", arrays.differing == 0);
  if (arrays.differing > 0)
    report.add("differing_elements", "elements that differ", arrays.differing, Unit::count)
        .add("first_difference", "the first (head, query, key)", arrays.first_difference);
  add_alignments(report, arrays);
  add_blocks(report, arrays, is_dynamic, dkv);
  return report;
}

Report describe(const MaskArraysPlan& plan) {
  const auto& [settings, layout, info] = *plan.plan_;
  const bool is_divided = plan.is_divided();
  Report report;
  if (!is_divided) report.add("layout", "layout", std::string(layout.name));
  report.add("heads", "heads", info.head_count())
      .add("queries", "queries", info.q_length(), is_divided ? Unit::rows : Unit::count)
      .add("keys", "keys", info.kv_length(), is_divided ? Unit::keys : Unit::count)
      .add("block", "block", Shape{info.block.q, info.block.kv}, is_divided ? Unit::count : Unit::none);
  if (is_divided)
    report.add("grid", "grid", Shape{info.head_count(), info.layout.q_blocks, info.layout.kv_blocks},
               Unit::blocks);
  report.add("dense_mask", "dense mask as bools",
             byte_count(Shape{info.head_count(), info.q_length(), info.kv_length()}, DType::boolean),
             Unit::bytes);
  if (!is_divided) return report;
  Table table{"arrays",
              "arrays, at most",
              {{"name", "array"}, {"shape", "shape"}, {"dtype", "dtype"}, {"size", "size", Unit::bytes}},
              {}};
  for (const auto& [name, type] : info.arrays())
    table.rows.push_back({name, type.shape, std::string(name_of(type.dtype)), type.bytes()});
  report.add(std::move(table));
  return report;
}

}  // namespace ejk
