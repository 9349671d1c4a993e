// Layout of Tokamax's splash attention (MaskInfo of its second version): the active blocks of a mask as lists,
// for each shard of queries and keys in turn.
//
// A step has the row and column of its block within the shard, its state, and the partial block to load next:
// its own, or that of the next step with one, wrapping to the shard's first; -1 in a shard without any. Lists
// of shards are as long as the longest, padded with -1. In dkv rows are key blocks; one without a block has a
// step of state 0, which initialises its output. Forward lists have no step of state 0: the kernels of out and dQ
// mask a block of state 1 and compute any other one whole. Without a dynamic grid every block is a step, and rows
// and columns are implied. A mask of full blocks has no arrays. Elements of a computable mask are not stored.
//
// A dynamic mask, which a program computes as it runs, has lists as long as the grid, filled up with -1 and 0,
// the elements of every block, and no look-ahead: a partial block loads its own, others block 0.
// Source: tokamax 0.0.12 splash_attention_mask_info.py, splash_attention_kernel.py (flash_attention_kernel).
// tests: tests/layouts/test_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "blocks/index_arrays.hpp"
#include "core/checked.hpp"
#include "layouts/layouts.hpp"
#include "layouts/writing.hpp"

namespace ejk::blocks {

namespace {

// --- reading

class TokamaxBlocks final : public ListedBlocks {
 public:
  TokamaxBlocks(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    full_blocks_end_with_mask = false;
    const StoredSettings set = settings_of(group, given);
    direction_ = set.direction.value_or(Direction::forward);
    q_shards_ = set.q_seq_shards.value_or(1), kv_shards_ = set.kv_seq_shards.value_or(1);
    mask_next_ = read_index(group, "mask_next", 1, false);
    active_rows_ = read_index(group, "active_rows", 1, false);
    active_cols_ = read_index(group, "active_cols", 1, static_cast<bool>(active_rows_));
    block_mask_ = read_index(group, "block_mask", 1);
    num_active_ = read_index(group, "num_active_blocks", 1, static_cast<bool>(active_rows_));
    q_sequence_ = read_index(group, "q_sequence", 1, false);
    patterns = group.find("partial_mask_blocks");
    std::optional<BlockShape> stored;
    if (patterns) {
      stored = block_in(*patterns, "int8");
      if (!forward()) std::swap(stored->q, stored->kv);
      if (!mask_next_) throw wrong("mask_next", "{}: there is no mask_next", group.name);
    }
    block = required_block(group, agreed_block(group, set.block, stored));
    if (!set.shape) throw unknown_lengths(group.name);
    shape = shape_in(*set.shape);
    q_blocks = core::ceil_div(shape.q_length, block.q);
    kv_blocks = core::ceil_div(shape.kv_length, block.kv);
    if (q_blocks > INT32_MAX || kv_blocks > INT32_MAX)
      throw wrong("shape", "{}: more than 2^31 blocks in a row", name);
    const std::int64_t shards = core::checked_mul(q_shards_, kv_shards_).value_or(INT64_MAX);
    if (q_blocks % q_shards_ != 0 || kv_blocks % kv_shards_ != 0)
      throw wrong("shape", "{}: {} x {} blocks do not divide into {} x {} shards", name, q_blocks, kv_blocks,
                  q_shards_, kv_shards_);
    if (num_active_ && num_active_.size() != shards)
      throw wrong("num_active_blocks", "{} has {} elements, and there are {} shards",
                  num_active_.source->name(), num_active_.size(), shards);
    if (block_mask_.size() % shards != 0 || (!active_rows_ && block_mask_.size() != q_blocks * kv_blocks))
      throw wrong("block_mask", "{} has {} elements for {} blocks in {} shard{}", block_mask_.source->name(),
                  block_mask_.size(), q_blocks * kv_blocks, shards, shards == 1 ? "" : "s");
    for (const IndexArray* other : {&mask_next_, &active_rows_, &active_cols_})
      if (*other && other->size() != block_mask_.size())
        throw wrong(other->name, "{} has {} elements, block_mask {}", other->source->name(), other->size(),
                    block_mask_.size());
    every_block = num_active_ && patterns && block_mask_.size() == q_blocks * kv_blocks &&
                  patterns->shape()[0] == block_mask_.size();
    for (const IndexArray* index :
         {&mask_next_, &active_rows_, &active_cols_, &block_mask_, &num_active_, &q_sequence_})
      if (*index) indices.push_back(index);
  }

  bool is_computed(std::int64_t) const override { return q_sequence_ && !mask_next_; }

  void walk(std::int64_t, std::int64_t, const ArrayWalk& to) const override {
    check_positions(to);
    const std::int64_t shards = q_shards_ * kv_shards_, length = block_mask_.size() / shards;
    for (std::int64_t shard = 0; shard < shards; ++shard) walk_shard(shard, shard * length, length, to);
  }

  // A step without a partial block loads that of the next step with one.
  void check(const ArrayWalk& to) const override {
    const std::int64_t shards = q_shards_ * kv_shards_, length = block_mask_.size() / shards;
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      const std::int64_t first = shard * length;
      const std::int64_t steps =
          num_active_ ? std::clamp<std::int64_t>(num_active_[shard], 0, length) : length;
      for (std::int64_t at = first; computes_empty() && at < first + steps; ++at)
        if (block_mask_[at] == 0)
          to.fault("assumed", {block_mask_.name, at}, 0,
                   "listed as empty: the forward kernel computes it whole");
      if (!mask_next_ || every_block) continue;
      std::optional<std::int64_t> next;
      for (std::int64_t at = first; at < first + steps && !next; ++at)
        if (block_mask_[at] == 1) next = mask_next_[at];
      for (std::int64_t at = first + steps - 1; at >= first && next; --at) {
        if (block_mask_[at] == 1)
          next = mask_next_[at];
        else if (mask_next_[at] != *next && mask_next_[at] >= 0)
          to.fault("look-ahead", {mask_next_.name, at}, mask_next_[at],
                   fmt::format("fetched for nothing: {} is needed next", *next));
      }
    }
  }

  std::shared_ptr<const BlockElements> elements(std::int64_t) const override {
    return patterns ? pattern_elements(patterns, direction_) : nullptr;
  }

  ArrayPlace home(std::int64_t, std::int64_t, std::int64_t i, std::int64_t j) const override {
    const std::int64_t shard = i / (q_blocks / q_shards_) * kv_shards_ + j / (kv_blocks / kv_shards_);
    if (num_active_) return {num_active_.name, shard};
    const auto [rows_here, columns_here] = shard_shape();
    const std::int64_t r = forward() ? i : j, c = forward() ? j : i;
    return {block_mask_.name,
            shard * rows_here * columns_here + r % rows_here * columns_here + c % columns_here};
  }

  std::pair<const char*, Shape> element_place(std::int64_t, std::int64_t, std::int64_t, std::int32_t pattern,
                                              std::int64_t q, std::int64_t k) const override {
    Shape index{pattern, q % block.q, k % block.kv};
    if (!forward()) std::swap(index[1], index[2]);
    return {"partial_mask_blocks", std::move(index)};
  }

 private:
  bool forward() const { return direction_ == Direction::forward; }
  // The kernels of out and dQ do not skip listed blocks.
  bool computes_empty() const { return forward() && active_rows_; }
  // Rows and columns of the walk in a shard.
  std::pair<std::int64_t, std::int64_t> shard_shape() const {
    const std::int64_t q = q_blocks / q_shards_, kv = kv_blocks / kv_shards_;
    return forward() ? std::pair(q, kv) : std::pair(kv, q);
  }

  void check_positions(const ArrayWalk& to) const {
    if (!q_sequence_) return;
    for (std::int64_t q = 0; q < q_sequence_.size(); ++q)
      if (q_sequence_[q] != q) {
        to.fault("positions", {q_sequence_.name, q}, q_sequence_[q], fmt::format("query {} is there", q));
        return;
      }
    if (q_sequence_.size() != shape.q_length)
      to.fault("positions", {q_sequence_.name, 0}, q_sequence_.size(),
               fmt::format("it has {} elements for {} queries", q_sequence_.size(), shape.q_length));
  }

  void walk_shard(std::int64_t shard, std::int64_t first, std::int64_t length, const ArrayWalk& to) const {
    const auto [rows_here, columns_here] = shard_shape();
    std::int64_t steps = length;
    if (num_active_ && (num_active_[shard] < 0 || num_active_[shard] > length)) {
      to.fault("range", {num_active_.name, shard}, num_active_[shard],
               fmt::format("its lists have {} entries", length));
    } else if (num_active_) {
      steps = num_active_[shard];
    }
    const std::int64_t end = first + steps;
    const bool has_partial = std::any_of(block_mask_.values.begin() + first, block_mask_.values.begin() + end,
                                         [](std::int64_t state) { return state == 1; });
    // In a grid of steps a row's output is initialised at its first step, and stored at its last.
    std::vector<bool> begun(static_cast<std::size_t>(rows_here));
    std::int64_t last_row = -1;
    for (std::int64_t at = first; at < end; ++at) {
      std::int64_t row = (at - first) / columns_here, column = (at - first) % columns_here;
      if (active_rows_) {
        row = active_rows_[at], column = active_cols_[at];
        if (row < 0 || row >= rows_here) {
          to.fault("range", {active_rows_.name, at}, row, fmt::format("a shard has {} rows", rows_here));
          continue;
        }
        if (column < 0 || column >= columns_here) {
          to.fault("range", {active_cols_.name, at}, column,
                   fmt::format("a shard has {} columns", columns_here));
          continue;
        }
        if (row != last_row && begun[static_cast<std::size_t>(row)])
          to.fault("order", {active_rows_.name, at}, row, "the steps of a row do not follow one another");
        begun[static_cast<std::size_t>(row)] = true;
        last_row = row;
      }
      const std::int64_t state = block_mask_[at];
      if (mask_next_ && !check_next(at, has_partial, to)) continue;
      if (state < 0 || state > 2) {
        to.fault("state", {block_mask_.name, at}, state, "a block is 0, 1 or 2");
        continue;
      }
      const bool is_whole = state == 2 || (state == 0 && computes_empty());
      if (state == 0 && !is_whole) continue;
      if (state == 1 && !mask_next_ && !is_computed(0)) {
        to.fault("elements", {block_mask_.name, at}, state, "partial, and there is no mask_next");
        continue;
      }
      const std::int64_t i = shard / kv_shards_ * (q_blocks / q_shards_) + (forward() ? row : column),
                         j = shard % kv_shards_ * (kv_blocks / kv_shards_) + (forward() ? column : row);
      to.visit(i, j,
               is_whole         ? BlockGrid::kFull
               : is_computed(0) ? static_cast<std::int32_t>(j)
                                : static_cast<std::int32_t>(mask_next_[at]),
               {active_cols_ && state != 0 ? active_cols_.name : block_mask_.name, at});
    }
    if (forward() || !active_rows_) return;
    const auto missed = std::find(begun.begin(), begun.end(), false);
    if (missed != begun.end())
      to.fault("order", {num_active_.name, shard}, num_active_[shard],
               fmt::format("no step initialises the gradients of key block {}", missed - begun.begin()));
  }

  // Every step loads the block that mask_next names, used or not.
  bool check_next(std::int64_t at, bool has_partial, const ArrayWalk& to) const {
    const std::int64_t next = mask_next_[at];
    const std::int64_t limit = patterns ? patterns->shape()[0] : 0;
    if (next >= 0 && next < limit) return true;
    if (next == -1 && !has_partial) return true;
    to.fault("range", {mask_next_.name, at}, next, fmt::format("partial_mask_blocks has {}", limit));
    return false;
  }

  Direction direction_ = Direction::forward;
  std::int64_t q_shards_ = 1, kv_shards_ = 1;
  IndexArray mask_next_, active_rows_, active_cols_, block_mask_, num_active_, q_sequence_;
};

bool is_tokamax(const ArrayGroup& group) {
  const auto states = group.find("block_mask");
  if (states) return states->shape().size() == 1;
  return group.find("active_rows") || group.find("num_active_blocks");
}

// A mask of full blocks has its block and shape alone.
class FullRule final : public PairRule {
 public:
  FullRule(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    shape = shape_in(settings_of(group, given).shape.value());
    has_whole_blocks = true;
  }
  void check(std::int64_t, std::int64_t, const ArrayWalk&) const override {}
  Mask mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t) const override {
    return full_mask(q_length, kv_length);
  }
  std::pair<const char*, Shape> place(std::int64_t, std::int64_t, std::int64_t) const override {
    return {"shape", {}};
  }
};

bool is_full(const ArrayGroup& group) {
  for (const auto& [name, array] : group.arrays)
    if (array && name != "q_sequence" &&
        std::find(std::begin(kSettingArrays), std::end(kSettingArrays), name) == std::end(kSettingArrays))
      return false;
  return group.find("block") && group.find("shape");
}

std::shared_ptr<const PairRule> rule_of_full(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<FullRule>(group, settings);
}

std::shared_ptr<const ListedBlocks> list_tokamax(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<TokamaxBlocks>(group, settings);
}

// --- writing

struct Step {
  std::int64_t row, column;
  std::uint8_t state;
  std::int32_t pattern;
};

// The steps of a shard.
std::vector<Step> steps_of(const MaskScans& scans, const ScanGrid& grid, IndexRange q, IndexRange kv) {
  const bool forward = scans.settings.direction == Direction::forward,
             every_block = !scans.settings.shrink_grid;
  std::vector<Step> steps;
  const std::int64_t rows = forward ? q.count() : kv.count(), columns = forward ? kv.count() : q.count();
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::size_t begin = steps.size();
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t i = q.begin + (forward ? r : c), j = kv.begin + (forward ? c : r);
      const std::uint8_t state = grid.state(i, j);
      if (state != 0 || every_block)
        steps.push_back({r, c, state, state == kPartial ? grid.pattern(i, j) : -1});
    }
    if (!forward && !every_block && steps.size() == begin) steps.push_back({r, 0, 0, -1});
  }
  return steps;
}

Array narrowed_to_small(Array array, bool downcast) {
  if (!downcast || array.size() == 0) return array;
  const auto values = array.elements<std::int32_t>();
  return narrowed(std::move(array), narrowest(*std::max_element(values.begin(), values.end())));
}

// The distinct partial blocks as int8.
class AsInt8 final : public ForwardingSource {
 public:
  explicit AsInt8(const std::shared_ptr<const ArraySource>& blocks)
      : ForwardingSource(blocks, {DType::int8, blocks->shape()}, ArrayAccess(ArrayAccess::Order::any)) {}
};

// As process_dynamic_mask does, of one shard.
void write_dynamic(const MaskScans& scans, const Scan& scan, ArraysMade& to) {
  const ScanGrid grid(scan);
  const bool downcast = scans.settings.downcast;
  const std::int64_t q_blocks = scans.q_blocks(), kv_blocks = scans.kv_blocks(), all = q_blocks * kv_blocks;
  Array next = index_array("mask_next", {all}, all), rows(DType::int32, {all}), columns(DType::int32, {all}),
        states(DType::int32, {all}), count(DType::int32, {1});
  for (Array* list : {&rows, &columns})
    std::fill(list->elements<std::int32_t>().begin(), list->elements<std::int32_t>().end(), -1);
  const std::vector<Step> steps = steps_of(scans, grid, {0, q_blocks}, {0, kv_blocks});
  for (std::size_t n = 0; n < steps.size(); ++n) {
    const Step& step = steps[n];
    const std::int64_t block = scans.settings.direction == Direction::forward
                                   ? step.row * kv_blocks + step.column
                                   : step.column * kv_blocks + step.row;
    rows.elements<std::int32_t>()[n] = static_cast<std::int32_t>(step.row);
    columns.elements<std::int32_t>()[n] = static_cast<std::int32_t>(step.column);
    states.elements<std::int32_t>()[n] = step.state;
    if (step.state == kPartial) next.elements<std::int32_t>()[n] = static_cast<std::int32_t>(block);
  }
  count.elements<std::int32_t>()[0] = static_cast<std::int32_t>(steps.size());
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(all), kEmptyBlock);
  for (std::int64_t i = 0; i < q_blocks; ++i)
    grid.for_each(i, [&](std::int64_t j, std::uint8_t state) {
      blocks[static_cast<std::size_t>(i * kv_blocks + j)] =
          state == kPartial ? grid.pattern(i, j) : BlockGrid::kFull;
    });
  to.add("mask_next", narrowed(std::move(next), downcast ? narrowest(all) : DType::int32));
  to.add("active_rows", std::move(rows));
  to.add("active_cols", std::move(columns));
  to.add("block_mask", narrowed(std::move(states), downcast ? DType::int8 : DType::int32));
  to.add("num_active_blocks", std::move(count));
  to.add("partial_mask_blocks",
         std::make_shared<AsInt8>(
             blocks_source("partial_mask_blocks", std::move(blocks), scans, scans.settings.direction)));
}

// The arrays of a mask that is known before a program runs.
void write_static(const MaskScans& scans, const Scan& scan, ArraysMade& to) {
  const MaskLayoutSettings& how = scans.settings;
  const MaskSummary& summary = scan.summary;
  const bool is_computed = scans.plan.is_left_to_kernel(scans.distinct);
  const bool all_full = summary.full_blocks == summary.states->blocks();
  const bool has_patterns = summary.partial_blocks > 0 && !is_computed;
  if (!all_full) {
    const ScanGrid grid(scan);
    const std::int64_t q_shard = scans.q_blocks() / how.q_seq_shards,
                       kv_shard = scans.kv_blocks() / how.kv_seq_shards;
    std::vector<std::vector<Step>> shards;
    std::size_t longest = 0;
    for (std::int64_t q = 0; q < scans.q_blocks(); q += q_shard)
      for (std::int64_t kv = 0; kv < scans.kv_blocks(); kv += kv_shard) {
        shards.push_back(steps_of(scans, grid, {q, q + q_shard}, {kv, kv + kv_shard}));
        longest = std::max(longest, shards.back().size());
      }
    const Shape length{std::ssize(shards) * static_cast<std::int64_t>(longest)};
    Array arrays[4];
    for (Array& array : arrays) {
      array = index_array("active_rows", length, std::max(scans.q_blocks(), scans.kv_blocks()));
      std::fill(array.elements<std::int32_t>().begin(), array.elements<std::int32_t>().end(), -1);
    }
    Array counts(DType::int32, {std::ssize(shards)});
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const std::vector<Step>& steps = shards[s];
      counts.elements<std::int32_t>()[s] = static_cast<std::int32_t>(steps.size());
      // From the last step on: the next partial block, which wraps to the first.
      std::int32_t next = -1;
      for (const Step& step : steps)
        if (next < 0) next = step.pattern;
      for (std::size_t n = steps.size(); n-- > 0;) {
        if (steps[n].state == kPartial) next = steps[n].pattern;
        const std::int64_t values[] = {next, steps[n].row, steps[n].column, steps[n].state};
        for (std::size_t a = 0; a < 4; ++a)
          arrays[a].elements<std::int32_t>()[s * longest + n] = static_cast<std::int32_t>(values[a]);
      }
    }
    const char* const names[] = {"mask_next", "active_rows", "active_cols", "block_mask"};
    for (std::size_t a = 0; a < 4; ++a) {
      if (a == 0 && !has_patterns) continue;
      if ((a == 1 || a == 2) && !how.shrink_grid) continue;
      to.add(names[a], narrowed_to_small(std::move(arrays[a]), how.downcast));
    }
    if (how.shrink_grid) to.add("num_active_blocks", std::move(counts));
    if (has_patterns)
      to.add("partial_mask_blocks",
             std::make_shared<AsInt8>(pattern_source(scans.table, scans.settings.direction)));
  }
  if (is_computed) {
    Array positions = index_array("q_sequence", {scans.q_length()}, scans.q_length());
    std::iota(positions.elements<std::int32_t>().begin(), positions.elements<std::int32_t>().end(), 0);
    to.add("q_sequence", std::move(positions));
  }
}

void write_tokamax(const MaskScans& scans, ArraysMade& to) {
  const MaskLayoutSettings& how = scans.settings;
  (how.dynamic ? write_dynamic : write_static)(scans, scans.of_all_heads(), to);
  to.add("block", {scans.plan.block.q, scans.plan.block.kv}, {2});
  to.add("shape", {scans.q_length(), scans.kv_length()}, {2});
  if (how.direction == Direction::dkv) to.add("dkv", true);
  if (how.q_seq_shards > 1) to.add("q_seq_shards", {how.q_seq_shards}, {});
  if (how.kv_seq_shards > 1) to.add("kv_seq_shards", {how.kv_seq_shards}, {});
}

constexpr const char* kTokamaxArrays[] = {
    "mask_next",  "active_rows", "active_cols", "block_mask", "num_active_blocks", "partial_mask_blocks",
    "q_sequence", "block",       "shape",       "dkv",        "q_seq_shards",      "kv_seq_shards"};
constexpr LayoutSetting kTokamaxSettings[] = {{"block"},
                                              {"dkv"},
                                              {"dynamic"},
                                              {"q_seq_shards", {}, true},
                                              {"kv_seq_shards", {}, true},
                                              {"shrink_grid", {}, true},
                                              {"downcast"},
                                              {"computable"}};
constexpr std::pair<std::string_view, AbsentArray> kTokamaxAbsent[] = {
    {"q_sequence", AbsentArray::not_computable},
    {"active_", AbsentArray::every_block},
    {"num_active", AbsentArray::every_block},
    {"block_mask", AbsentArray::every_block},
    {"dkv", AbsentArray::forward},
    {"q_seq", AbsentArray::one_shard},
    {"kv_seq", AbsentArray::one_shard}};

}  // namespace

extern const StoredMaskLayout kTokamax, kTokamaxFull;
const StoredMaskLayout kTokamaxFull{
    .name = "tokamax", .arrays = kTokamaxArrays, .is_of = is_full, .rule = rule_of_full};
const StoredMaskLayout kTokamax{.name = "tokamax",
                                .arrays = kTokamaxArrays,
                                .is_of = is_tokamax,
                                .list = list_tokamax,
                                .written_as = MaskLayout::tokamax,
                                .write = write_tokamax,
                                .takes = kTokamaxSettings,
                                .absent = kTokamaxAbsent};

}  // namespace ejk::blocks
