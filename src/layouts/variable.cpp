// Layout of FlashInfer's VariableBlockSparseAttentionWrapper: which blocks of queries and keys of any sizes attend.
//
// block_mask_map (heads, MB, NB) is True for the blocks that a kernel computes, whole. Block i has block_row_sz[i]
// queries of its head, block j block_col_sz[j] keys; those of a head add up to its lengths, which are the same for
// all heads: a kernel finds the tokens of a head behind those of the heads before. Written are masks whose blocks
// are all True or all False; others are computed whole, and their hidden pairs counted.
// Source: flashinfer 0.7 sparse.py (VariableBlockSparseAttentionWrapper.plan), prefill kernels with pages of 1.
// tests: tests/layouts/test_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "layouts/layouts.hpp"
#include "layouts/writing.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

// --- reading

// The cells of one head: boundaries of rows and columns (from 0, never decreasing), and a byte for each cell.
struct Cells {
  std::vector<std::int64_t> rows, columns;
  std::shared_ptr<const std::vector<std::uint8_t>> all;  // of all heads
  std::int64_t first = 0;                                // of this head

  std::int64_t width() const { return std::ssize(columns) - 1; }
  bool at(std::int64_t i, std::int64_t j) const {
    return (*all)[static_cast<std::size_t>(first + i * width() + j)] != 0;
  }
  /// The cell of a position, or their number behind the last one.
  static std::int64_t cell_of(const std::vector<std::int64_t>& bounds, std::int64_t position) {
    return std::upper_bound(bounds.begin(), bounds.end(), position) - bounds.begin() - 1;
  }
};

// Calls f(cell, begin, end) for the non-empty cells that a range has positions of, cut to it.
template <class F>
void for_each_cell(const std::vector<std::int64_t>& bounds, IndexRange range, F&& f) {
  std::int64_t c = Cells::cell_of(bounds, range.begin);
  for (; c + 1 < std::ssize(bounds) && bounds[static_cast<std::size_t>(c)] < range.end; ++c) {
    const std::int64_t begin = std::max(range.begin, bounds[static_cast<std::size_t>(c)]),
                       end = std::min(range.end, bounds[static_cast<std::size_t>(c) + 1]);
    if (begin < end) f(c, begin, end);
  }
}

class CellsMask final : public MaskNode {
 public:
  CellsMask(std::int64_t q_length, std::int64_t kv_length, Cells cells, std::string text)
      : MaskNode(q_length, kv_length), cells_(std::move(cells)), text_(std::move(text)) {
    for (std::int64_t i = 0; i + 1 < std::ssize(cells_.rows); ++i) {
      IndexRange keys{kv_length, 0};
      for (std::int64_t j = 0; j < cells_.width(); ++j) {
        const auto c = static_cast<std::size_t>(j);
        if (!cells_.at(i, j) || cells_.columns[c] == cells_.columns[c + 1]) continue;
        keys = {std::min(keys.begin, cells_.columns[c]), cells_.columns[c + 1]};
      }
      reach_.push_back(keys);
    }
  }

  std::string text() const override { return text_; }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    const Cells& o = static_cast<const CellsMask&>(other).cells_;
    if (queries.begin >= queries.end) return true;
    const auto cells = (std::ssize(cells_.rows) - 1) * cells_.width();
    return cells_.rows == o.rows && cells_.columns == o.columns &&
           std::equal(cells_.all->begin() + cells_.first, cells_.all->begin() + cells_.first + cells,
                      o.all->begin() + o.first);
  }
  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    for (std::int64_t r = 0; r < where.rows(); ++r)
      std::fill(out.row(r), out.row(r) + words_for(out.columns), Word{0});
    for_each_cell(cells_.rows, {where.q_begin, where.q_end},
                  [&](std::int64_t i, std::int64_t q, std::int64_t q_end) {
                    Word* const first = out.row(q - where.q_begin);
                    for_each_cell(cells_.columns, {where.k_begin, where.k_end},
                                  [&](std::int64_t j, std::int64_t k, std::int64_t k_end) {
                                    if (cells_.at(i, j))
                                      set_bits(first, k - where.k_begin, k_end - where.k_begin);
                                  });
                    while (++q < q_end)
                      std::copy_n(first, words_for(out.columns), out.row(q - where.q_begin));
                  });
  }

  const Cells& cells() const { return cells_; }
  /// From the first to the last key of a row of cells.
  IndexRange keys_of(std::int64_t i) const { return reach_[static_cast<std::size_t>(i)]; }

 private:
  Cells cells_;
  std::vector<IndexRange> reach_;
  std::string text_;
};

class CellsClassifier final : public BlockClassifier {
 public:
  CellsClassifier(const CellsMask& mask, std::int64_t kv_block) : mask_(mask), kv_block_(kv_block) {}

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    std::int64_t begin = INT64_MAX, end = 0;
    for_each_cell(mask_.cells().rows, {q_begin, q_end}, [&](std::int64_t i, std::int64_t, std::int64_t) {
      const IndexRange keys = mask_.keys_of(i);
      if (keys.begin < keys.end) begin = std::min(begin, keys.begin), end = std::max(end, keys.end);
    });
    return begin < end ? IndexRange{begin / kv_block_, core::ceil_div(end, kv_block_)} : IndexRange{};
  }

  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange blocks, BlockState* out) const override {
    const Cells& cells = mask_.cells();
    std::vector<std::int64_t> rows;
    std::int64_t queries = 0;  // that have a cell
    for_each_cell(cells.rows, {q_begin, q_end}, [&](std::int64_t i, std::int64_t q, std::int64_t end) {
      rows.push_back(i);
      queries += end - q;
    });
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      const std::int64_t k = block * kv_block_, k_end = std::min(k + kv_block_, mask_.kv_length());
      bool any = false, all = queries == q_end - q_begin;
      std::int64_t keys = 0;
      for_each_cell(cells.columns, {k, k_end}, [&](std::int64_t j, std::int64_t begin, std::int64_t end) {
        keys += end - begin;
        for (const std::int64_t i : rows) (cells.at(i, j) ? any : all) = cells.at(i, j);
      });
      *out++ = !any ? BlockState::empty : all && keys == k_end - k ? BlockState::full : BlockState::undecided;
    }
  }

 private:
  const CellsMask& mask_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> CellsMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<CellsClassifier>(*this, kv_block);
}

class VariableRule final : public PairRule {
 public:
  VariableRule(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    has_whole_blocks = true;
    const StoredSettings set = settings_of(group, given);
    const auto map = group.find(kMap);
    if (!map) throw wrong(kMap, "{}: there is no {}", group.name, kMap);
    const Shape& stored = map->shape();
    if (stored.size() != 3 || element_count(stored) == 0 || map->dtype() != DType::boolean)
      throw wrong(kMap, "{} is {}; it is bool (heads, q blocks, kv blocks)", map->name(),
                  to_string(type_of(*map)));
    rows = stored[0];
    auto cells = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(element_count(stored)));
    map->read(Shape{0, 0, 0}, stored, cells->data());
    cells_ = std::move(cells);
    q_sizes_ = read_index(group, "block_row_sz", 2);
    kv_sizes_ = read_index(group, "block_col_sz", 2);
    for (const auto& [sizes, blocks] : {std::pair{&q_sizes_, stored[1]}, std::pair{&kv_sizes_, stored[2]}})
      if (sizes->shape() != Shape{rows, blocks})
        throw wrong(sizes->name, "{} has the shape {}, {} {}", sizes->source->name(),
                    to_string(sizes->shape()), kMap, to_string(stored));
    shape = set.shape ? shape_in(*set.shape, rows)
                      : MaskShape{rows, bounds_of(q_sizes_, 0, kLongestMask).back(),
                                  bounds_of(kv_sizes_, 0, kLongestMask).back()};
    if (shape.q_length == 0 || shape.kv_length == 0) throw unknown_lengths(group.name);
    indices = {&q_sizes_, &kv_sizes_};
  }

  void check(std::int64_t q_length, std::int64_t kv_length, const ArrayWalk& to) const override {
    for (const auto& [sizes, length, what] :
         {std::tuple{&q_sizes_, q_length, "queries"}, std::tuple{&kv_sizes_, kv_length, "keys"}}) {
      const std::int64_t blocks = sizes->shape()[1];
      for (std::int64_t head = 0; head < rows; ++head) {
        std::int64_t left = length, at = head * blocks;
        for (const std::int64_t end = at + blocks; at < end && (*sizes)[at] >= 0 && (*sizes)[at] <= left;
             ++at)
          left -= (*sizes)[at];
        const bool is_size = at == (head + 1) * blocks;
        if (is_size && left == 0) continue;
        if (is_size) --at;
        const std::int64_t size = (*sizes)[at];
        to.fault("range", {sizes->name, at}, size,
                 size < 0  ? "a size is not negative"
                 : is_size ? fmt::format("the blocks of head {} end {} {} before the last of {}", head, left,
                                         what, length)
                           : fmt::format("{} {} of {} are left", left, what, length));
      }
    }
  }

  Mask mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t row) const override {
    const std::int64_t q_blocks = q_sizes_.shape()[1], kv_blocks = kv_sizes_.shape()[1];
    return Mask(std::make_shared<CellsMask>(
        q_length, kv_length,
        Cells{bounds_of(q_sizes_, row, q_length), bounds_of(kv_sizes_, row, kv_length), cells_,
              row * q_blocks * kv_blocks},
        fmt::format("from({})", name)));
  }

  BlockBounds bounds(std::int64_t row) const override {
    return {bounds_of(q_sizes_, row, kLongestMask), bounds_of(kv_sizes_, row, kLongestMask)};
  }

  std::pair<const char*, Shape> place(std::int64_t row, std::int64_t q, std::int64_t k) const override {
    const BlockBounds all = bounds(row);
    const std::int64_t i = Cells::cell_of(all.q, q), j = Cells::cell_of(all.kv, k);
    if (i >= q_sizes_.shape()[1]) return {q_sizes_.name, {row, q_sizes_.shape()[1] - 1}};
    if (j >= kv_sizes_.shape()[1]) return {kv_sizes_.name, {row, kv_sizes_.shape()[1] - 1}};
    return {kMap, {row, i, j}};
  }

  static constexpr const char* kMap = "block_mask_map";

 private:
  // Boundaries of the blocks of a head, up to a length.
  static std::vector<std::int64_t> bounds_of(const IndexArray& sizes, std::int64_t head,
                                             std::int64_t length) {
    const std::int64_t blocks = sizes.shape()[1];
    std::vector<std::int64_t> bounds{0};
    for (std::int64_t at = head * blocks; at < (head + 1) * blocks; ++at)
      bounds.push_back(bounds.back() + std::clamp<std::int64_t>(sizes[at], 0, length - bounds.back()));
    return bounds;
  }

  std::shared_ptr<const std::vector<std::uint8_t>> cells_;
  IndexArray q_sizes_, kv_sizes_;
};

bool is_variable(const ArrayGroup& group) {
  return group.find(VariableRule::kMap) || group.find("block_row_sz") || group.find("block_col_sz");
}

std::shared_ptr<const PairRule> rule_of_cells(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<VariableRule>(group, settings);
}

// --- writing

// The cells of a mask: those with a True element; and the False elements in them, with the first.
struct MadeCells {
  std::vector<std::uint8_t> cells;
  std::int64_t hidden = 0;
  Shape first_hidden;
};

class CellWriter {
 public:
  CellWriter(std::span<const std::int64_t> q_sizes, std::span<const std::int64_t> kv_sizes)
      : q_sizes_(q_sizes),
        kv_sizes_(kv_sizes),
        bounds_(kv_sizes.size() + 1),
        seen_(kv_sizes.size()),
        whole_(kv_sizes.size() + 1),
        first_(kv_sizes.size()) {
    std::partial_sum(kv_sizes.begin(), kv_sizes.end(), bounds_.begin() + 1);
  }

  void add(std::int64_t query, std::span<const IndexRange> ranges) {
    while (query == end_ + q_sizes_[row_]) finish_row();
    const auto same = [](IndexRange a, IndexRange b) { return a.begin == b.begin && a.end == b.end; };
    if (lines_ == 0 || !std::equal(ranges.begin(), ranges.end(), ranges_.begin(), ranges_.end(), same)) {
      add_lines();
      query_ = query;
      ranges_.assign(ranges.begin(), ranges.end());
    }
    ++lines_;
  }

  MadeCells finish() && {
    while (row_ < q_sizes_.size()) finish_row();
    return std::move(made_);
  }

 private:
  // Queries of equal ranges, from query_ on.
  void add_lines() {
    if (lines_ > 0 && made_.first_hidden.empty()) find_first_hidden();
    for (const IndexRange& range : ranges_) {
      const std::int64_t j = Cells::cell_of(bounds_, range.begin),
                         last = Cells::cell_of(bounds_, range.end - 1);
      const auto n = static_cast<std::size_t>(j), m = static_cast<std::size_t>(last);
      if (n == m) {
        seen_[n] += lines_ * range.count();
        continue;
      }
      seen_[n] += lines_ * (bounds_[n + 1] - range.begin);
      seen_[m] += lines_ * (range.end - bounds_[m]);
      whole_[n + 1] += lines_;
      whole_[m] -= lines_;
    }
    lines_ = 0;
  }

  // Of the first row with a cell that is neither all True nor all False, which has the first of all.
  void find_first_hidden() {
    std::size_t at = 0;
    for (std::size_t j = 0; j < kv_sizes_.size(); ++j) {
      std::int64_t hidden = bounds_[j];
      while (at < ranges_.size() && ranges_[at].end <= hidden) ++at;
      if (at < ranges_.size() && ranges_[at].begin <= hidden) hidden = ranges_[at].end;
      if (hidden < bounds_[j + 1] && first_[j].empty()) first_[j] = {query_, hidden};
    }
  }

  void finish_row() {
    add_lines();
    const std::int64_t queries = q_sizes_[row_++];
    end_ += queries;
    const bool is_found = !made_.first_hidden.empty();
    std::int64_t whole = 0;
    for (std::size_t j = 0; j < kv_sizes_.size(); ++j) {
      whole += whole_[j];
      const std::int64_t seen = seen_[j] + whole * kv_sizes_[j], hidden = queries * kv_sizes_[j] - seen;
      made_.cells.push_back(seen > 0);
      if (seen > 0 && hidden > 0) {
        made_.hidden += hidden;
        if (!is_found && (made_.first_hidden.empty() || first_[j] < made_.first_hidden))
          made_.first_hidden = first_[j];
      }
      seen_[j] = whole_[j] = 0;
      first_[j].clear();
    }
  }

  std::span<const std::int64_t> q_sizes_, kv_sizes_;
  std::vector<std::int64_t> bounds_;  // of the cells of a row
  std::size_t row_ = 0;
  std::int64_t end_ = 0;                    // of the rows before
  std::vector<std::int64_t> seen_, whole_;  // of each cell of the row; changes of the lines that fill it
  std::vector<Shape> first_;                // its first False element: query, key
  std::vector<IndexRange> ranges_;          // of the last lines
  std::int64_t query_ = 0, lines_ = 0;
  MadeCells made_;
};

Array sizes_of(const char* name, std::int64_t heads, const std::vector<std::int64_t>& sizes) {
  Array array = index_array(name, {heads, std::ssize(sizes)}, *std::max_element(sizes.begin(), sizes.end()));
  auto to = array.elements<std::int32_t>().begin();
  for (std::int64_t head = 0; head < heads; ++head) to = std::copy(sizes.begin(), sizes.end(), to);
  return array;
}

void write_variable(const MaskScans& scans, ArraysMade& to) {
  const auto q_sizes = q_block_sizes(scans.settings, scans.q_length(), scans.plan.block),
             kv_sizes = kv_block_sizes(scans.settings, scans.kv_length(), scans.plan.block);
  const std::int64_t heads = scans.plan.head_count();
  std::vector<MadeCells> masks;
  for (const Scan& scan : scans.scans) {
    CellWriter writer(q_sizes, kv_sizes);
    for_each_line(scans, scan, Lines::queries,
                  [&](std::int64_t query, std::span<const IndexRange> ranges) { writer.add(query, ranges); });
    masks.push_back(std::move(writer).finish());
  }
  Array map(DType::boolean, {heads, std::ssize(q_sizes), std::ssize(kv_sizes)});
  auto cell = map.elements<bool>().begin();
  MaskArrays& made = to.into;
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto mask = static_cast<std::size_t>(scans.distinct.of_head[static_cast<std::size_t>(head)]);
    const MadeCells& of = masks[mask];
    cell = std::copy(of.cells.begin(), of.cells.end(), cell);
    if (of.hidden > 0 && made.differing == 0)
      made.first_difference = {head, of.first_hidden[0], of.first_hidden[1]};
    made.differing += of.hidden;
  }
  to.add(VariableRule::kMap, std::move(map));
  to.add("block_row_sz", sizes_of("block_row_sz", heads, q_sizes));
  to.add("block_col_sz", sizes_of("block_col_sz", heads, kv_sizes));
  to.add("shape", {scans.q_length(), scans.kv_length()}, {2});
}

constexpr const char* kVariableArrays[] = {VariableRule::kMap, "block_row_sz", "block_col_sz", "shape"};
constexpr LayoutSetting kVariableSettings[] = {{"block"}, {"q_sizes"}, {"kv_sizes"}};

}  // namespace

extern const StoredMaskLayout kVariable;
const StoredMaskLayout kVariable{.name = "flashinfer-variable",
                                 .arrays = kVariableArrays,
                                 .is_of = is_variable,
                                 .rule = rule_of_cells,
                                 .written_as = MaskLayout::flashinfer_variable,
                                 .write = write_variable,
                                 .takes = kVariableSettings};

}  // namespace ejk::blocks
