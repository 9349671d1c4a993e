// Rules of splash attention's MaskInfo. The arrays are walked as the kernel walks them, slab by slab: steps
// that compute give the visited blocks, and what the other steps prefetch is compared with the next step that
// computes. A difference from the given mask is traced to the index, or element, that causes it.
//
// Cost: two passes over the index arrays, one over the distinct partial blocks. Memory: a few words for each
// visited block and each range of waiting steps, 16 bytes for each distinct partial block.
// Source of the rules: src/blocks/mask_info.cpp and src/layouts/splash.cpp.
// tests: tests/layouts/test_check_mask_info.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "check/integers.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "layouts/layout_check.hpp"
#include "layouts/splash.hpp"
#include "mask/patterns.hpp"

namespace ejk::check {

namespace {

using blocks::BlockGrid;
using blocks::StoredArrays;
using blocks::StoredFault;
using blocks::StoredLayout;
using blocks::StoredLine;
using blocks::StoredSteps;
using blocks::StoredVisit;
using blocks::Take;
using mask::BlockState;

// Consecutive steps of the walk that do not compute and have equal values.
struct Waiting {
  Shape index;  // of the first
  std::int64_t value = 0, count = 0;
};

// Prefetching steps that wait for the next computing step, whose value they should have: one list in forward,
// in dkv, whose walk is column-major, one for each column of the index arrays.
class LookAhead {
 public:
  LookAhead(const char* array, std::size_t lists, std::function<void(const Waiting&, std::int64_t)> wrong)
      : array_(array), lists_(lists), wrong_(std::move(wrong)) {}

  void wait(std::size_t list, const Shape& index, std::int64_t value) {
    std::vector<Waiting>& waiting = lists_[list].waiting;
    if (waiting.empty() || waiting.back().value != value)
      waiting.push_back({index, value, 1});
    else
      ++waiting.back().count;
  }

  void computes(std::size_t list, std::int64_t value) {
    List& of = lists_[list];
    if (!of.first) of.first = value;
    answer(of.waiting, value);
  }

  /// The end of a slab: the next computing step is in a later list, wrapping to the first.
  void end() {
    std::optional<std::int64_t> next;
    for (const List& list : lists_)
      if (!next) next = list.first;
    if (!next) next = 0;  // a slab that computes nothing
    for (std::size_t l = lists_.size(); l-- > 0;) {
      List& list = lists_[l];
      answer(list.waiting, *next);
      if (list.first) next = list.first;
      list.first.reset();
    }
  }

  const char* array() const { return array_; }

 private:
  struct List {
    std::vector<Waiting> waiting;
    std::optional<std::int64_t> first;
  };

  void answer(std::vector<Waiting>& waiting, std::int64_t value) {
    for (const Waiting& one : waiting)
      if (one.value != value) wrong_(one, value);
    waiting.clear();
  }

  const char* array_;
  std::vector<List> lists_;
  std::function<void(const Waiting&, std::int64_t)> wrong_;
};

class SplashCheck final : public LayoutCheck {
 public:
  using LayoutCheck::LayoutCheck;

  void check_rules() override {
    describe_facts();
    check_types();
    check_positions();
    may_be_shrunk_ = arrays_.is_dynamic || is_aligned();
    if (arrays_.partial_mask_blocks && !arrays_.is_dynamic)
      used_patterns_.resize(static_cast<std::size_t>(layout_.mask_limit));
    const std::int64_t per_shard = layout_.layout.rows_per_shard();
    for (std::int64_t shard = 0; shard < layout_.layout.head_shards; ++shard)
      walk(shard * per_shard, (shard + 1) * per_shard);
    if (arrays_.partial_mask_blocks && !arrays_.is_dynamic)
      check_patterns(*arrays_.partial_mask_blocks, used_patterns_,
                     [&](std::int64_t p, std::span<const mask::Word> bits) {
                       if (p < layout_.mask_limit)
                         patterns_by_hash_.emplace(mask::hash_words(bits.data(), std::ssize(bits)),
                                                   static_cast<std::int32_t>(p));
                     });
    std::int64_t partial = 0;
    for (const auto& mask : row_masks)
      for (const BlockGrid::Entry& entry : mask.grid->entries) partial += entry.pattern != BlockGrid::kFull;
    if (arrays_.is_computable()) report_assumed("block_mask", partial);
    found.facts().add("visited_blocks", "blocks visited", visited_, Unit::blocks);
  }

  bool is_computed(std::int64_t) const override { return arrays_.is_computable(); }

  Finding explain(std::int64_t row, const BlockDifference& d, const Mask& wanted,
                  const std::string& what) const override {
    const StoredSteps steps = blocks::steps_to(arrays_, layout_, row, d.i, d.j);
    const auto finding = [&](const char* array, std::size_t p, const std::vector<std::int64_t>& values,
                             const std::string& should) {
      return Finding{array, steps.index(p), values[p], fmt::format("{}: {}", should, what)};
    };
    const auto should_be = [](std::int64_t value) { return fmt::format("should be {}", value); };
    const BlockState wanted_state = state_of(wanted, d.i, d.j);
    const Visits visits = visits_of(steps, steps.wanted, &wanted);
    if (visits.again) return finding("data_next", *visits.again, steps.data, "visits it as well");
    if (const auto p = visits.step) {
      if (wanted_state == BlockState::empty) {
        if (const auto other = not_visited(steps, wanted))
          return finding("data_next", *p, steps.data, should_be(*other));
        return finding("block_mask", *p, steps.states, should_be(0));
      }
      if (steps.states[*p] != static_cast<std::int64_t>(wanted_state))
        return finding("block_mask", *p, steps.states, should_be(static_cast<std::int64_t>(wanted_state)));
      if (steps.masks.empty()) return finding("block_mask", *p, steps.states, "it has no elements");
      if (arrays_.is_dynamic) {
        const std::int64_t own = layout_.own_pattern(row, d.i, d.j);
        if (steps.masks[*p] != own) return finding("mask_next", *p, steps.masks, should_be(own));
      } else if (const auto pattern = pattern_with(wanted, d.i, d.j);
                 pattern && *pattern != steps.masks[*p]) {
        return finding("mask_next", *p, steps.masks, should_be(*pattern));
      }
      return element(row, d, steps, *p, what);
    }
    // Not visited: the step that should visit it visits another block, or none.
    for (std::size_t p = 0; p < steps.states.size(); ++p)
      if (steps.states[p] != 0 && !is_wanted(steps, p, wanted))
        return finding("data_next", p, steps.data, should_be(steps.wanted));
    const auto own = static_cast<std::size_t>(steps.wanted);
    if (is_whole(steps) && steps.states[own] == 0 && steps.data[own] == steps.wanted)
      return finding("block_mask", own, steps.states, should_be(static_cast<std::int64_t>(wanted_state)));
    for (std::size_t p = 0; p < steps.states.size(); ++p)
      if (steps.states[p] == 0 && steps.data[p] == steps.wanted)
        return finding("block_mask", p, steps.states, should_be(static_cast<std::int64_t>(wanted_state)));
    return Finding{
        "data_next",
        steps.index(0),
        {},
        fmt::format("no step of this {} visits it: {}", arrays_.forward() ? "row" : "column", what)};
  }

  Finding explain_padding(std::int64_t row, std::int64_t i, std::int64_t j, std::int64_t q, std::int64_t k,
                          const std::string& what) const override {
    const StoredSteps steps = blocks::steps_to(arrays_, layout_, row, i, j);
    const auto step = visits_of(steps, steps.wanted, wanted_of(row)).step;
    if (steps.states[*step] == 2)
      return {"block_mask", steps.index(*step), std::int64_t{2}, "should be 1: " + what};
    return {"partial_mask_blocks", element_index(row, i, steps.masks[*step], q, k), std::int64_t{1},
            "should be 0: " + what};
  }

  // Every block of a dynamic mask has elements of its own.
  void check_elements(std::int64_t row, const BlockSet& wrong) override {
    if (!arrays_.is_dynamic || arrays_.is_computable()) return;
    const BlockGrid& grid = *row_masks[static_cast<std::size_t>(row)].grid;
    const Mask padded = blocks::to_mask(row_masks[static_cast<std::size_t>(row)].padded(), "");
    mask::BitBuffer buffer;
    for (std::int64_t i = 0; i < grid.q_blocks; ++i)
      for (const BlockGrid::Entry& entry : grid.row(i)) {
        const std::int64_t j = entry.column;
        if (entry.pattern == BlockGrid::kFull || wrong.contains({row, i, j})) continue;
        const mask::Rectangle where = grid.whole_block(i, j);
        const mask::BitRows bits = buffer.rows(where.rows(), where.columns());
        padded.node().fill(where, bits);
        const auto state = decided({bits.words, static_cast<std::size_t>(bits.rows * bits.row_words)});
        if (!state) continue;
        found.add("decided", place_of_block(row, i, j), [&] {
          const StoredSteps steps = blocks::steps_to(arrays_, layout_, row, i, j);
          return Finding{"block_mask", steps.index(*visits_of(steps, steps.wanted, wanted_of(row)).step),
                         std::int64_t{1},
                         fmt::format("block ({}, {}) is {}", i, j,
                                     state == BlockState::full ? "all True: that is full (2)"
                                                               : "all False: that is empty (0)")};
        });
      }
  }

 private:
  void open_arrays() override {
    arrays_ = blocks::stored_arrays(group, claims.settings);
    layout_ = blocks::stored_layout(arrays_, checked_shape(arrays_.shape, claims, group.name, "block_mask"));
    head_count = layout_.heads, row_count = layout_.layout.rows, block_shape = arrays_.block;
    if (!arrays_.is_computable()) elements_.emplace(arrays_);
  }

  void describe_facts() {
    const char* walk = arrays_.forward() ? "forward" : "dkv";
    found.facts()
        .add("direction", "walk", std::string(walk))
        .add("kind", "kind", std::string(arrays_.is_dynamic ? "dynamic" : "static"))
        .add("shape", "heads, queries, keys", Shape{layout_.heads, layout_.q_length, layout_.kv_length})
        .add("block", "block", Shape{arrays_.block.q, arrays_.block.kv})
        .add("grid", "grid of the arrays", arrays_.grid())
        .add("patterns", "distinct partial blocks",
             arrays_.partial_mask_blocks && !arrays_.is_dynamic ? ReportValue(layout_.mask_limit)
                                                                : ReportValue());
  }

  void check_types() {
    for (const char* name : {"data_next", "mask_next", "block_mask"}) {
      const auto array = group.find(name);
      if (!array) continue;
      const DType dtype = array->dtype();
      if (dtype != DType::int8 && dtype != DType::int16 && dtype != DType::int32)
        add(found, "dtype", 0, name, {}, {},
            fmt::format("{}; kernels take int8, int16 or int32", ejk::name_of(dtype)));
    }
  }

  void check_positions() {
    if (!arrays_.is_computable()) return;
    scan(*arrays_.q_sequence, {}, [&](std::span<const std::int64_t> values, std::int64_t first) {
      for (std::size_t k = 0; k < values.size(); ++k)
        if (const std::int64_t i = first + static_cast<std::int64_t>(k); values[k] != i)
          add(found, "positions", i, "q_sequence", {i}, values[k],
              [&] { return fmt::format("query {} is at position {}", i, i); });
    });
  }

  // Whether empty steps are only where shrinking leaves them: after the others of a line in forward, before
  // them in dkv, where whole lines may follow at the end of a shard.
  bool is_aligned() {
    const auto attribute = group.attributes.find("shrink_grid");
    if (attribute != group.attributes.end() && attribute->second == "false") return false;
    bool aligned = true;
    std::vector<char> begun, ended;
    for (std::int64_t row = 0; row < layout_.layout.rows && aligned; ++row)
      blocks::for_each_line(arrays_, row, [&](const StoredLine& line) {
        if (arrays_.forward()) {
          const auto empty = std::find(line.states.begin(), line.states.end(), 0);
          aligned = aligned && std::all_of(empty, line.states.end(), [](auto state) { return state == 0; });
          return;
        }
        if (line.i % layout_.lines_per_shard == 0) {
          begun.assign(line.states.size(), false);
          ended = begun;
        }
        const bool all_empty =
            std::all_of(line.states.begin(), line.states.end(), [](auto s) { return s == 0; });
        for (std::size_t j = 0; j < line.states.size(); ++j) {
          if (line.states[j] != 0 && ended[j]) aligned = false;
          if (line.states[j] == 0 && begun[j]) {
            ended[j] = true;
            aligned = aligned && all_empty;
          }
          begun[j] = begun[j] || line.states[j] != 0;
        }
      });
    return aligned;
  }

  // The rows of one head shard: its slabs are the query shards.
  void walk(std::int64_t first_row, std::int64_t end_row) {
    const std::size_t lists = arrays_.forward() ? 1 : static_cast<std::size_t>(arrays_.grid()[2]);
    std::vector<std::pair<LookAhead, LookAhead>> slabs;
    for (std::int64_t t = 0; t < layout_.layout.q_shards; ++t)
      slabs.emplace_back(look_ahead("data_next", lists), look_ahead("mask_next", lists));
    std::vector<std::int64_t> last_data, last_mask;  // of the line before, for dkv
    for (std::int64_t row = first_row; row < end_row; ++row) {
      std::vector<StoredVisit> visits;
      blocks::for_each_line(arrays_, row, [&](const StoredLine& line) {
        auto& [data, masks] = slabs[static_cast<std::size_t>(line.i / layout_.lines_per_shard)];
        const bool begins = line.i % layout_.lines_per_shard == 0;
        for (std::size_t p = 0; p < line.states.size(); ++p) {
          const std::size_t list = arrays_.forward() ? 0 : p;
          const Shape index{row, line.i, static_cast<std::int64_t>(p)};
          const bool computes = line.states[p] != 0;
          const auto fault = blocks::fault_of(arrays_, layout_, line, p, take());
          if (fault) add(found, fault->rule, place(index), fault->array, index, fault->value, fault->why);
          if (computes && !fault) {
            visits.push_back(layout_.visit(line, p, Take::elements));
            if (line.states[p] == 1 && !used_patterns_.empty() && !arrays_.is_computable())
              used_patterns_[static_cast<std::size_t>(line.masks[p])] = true;
          }
          // Every step prefetches, computing or not.
          const auto before = [&](std::span<const std::int64_t> values,
                                  const std::vector<std::int64_t>& last) {
            if (arrays_.forward() ? p == 0 : begins) return std::optional<std::int64_t>();
            return std::optional(arrays_.forward() ? values[p - 1] : last[p]);
          };
          follow(data, list, index, line.data[p], before(line.data, last_data), computes, layout_.data_limit,
                 fault && std::string_view(fault->array) == data.array());
          if (arrays_.mask_next)
            follow(masks, list, index, line.masks[p], before(line.masks, last_mask), line.states[p] == 1,
                   layout_.mask_limit, fault && std::string_view(fault->array) == masks.array());
        }
        if (!arrays_.forward()) {
          last_data.assign(line.data.begin(), line.data.end());
          last_mask.assign(line.masks.begin(), line.masks.end());
        }
      });
      visited_ += std::ssize(visits) * (layout_.heads / layout_.layout.rows);
      const auto twice = [&](std::int64_t i, std::int64_t j) { report_second(row, i, j); };
      row_masks.push_back(
          {blocks::grid_of(arrays_.block, layout_.layout.q_blocks, layout_.layout.kv_blocks, visits, twice),
           elements_ ? elements_->of_row(layout_, row) : nullptr, layout_.q_length, layout_.kv_length});
    }
    for (auto& [data, masks] : slabs) data.end(), masks.end();
  }

  LookAhead look_ahead(const char* array, std::size_t lists) {
    return {array, lists, [this, array](const Waiting& waiting, std::int64_t next) {
              const auto finding = [&] {
                const std::string more =
                    waiting.count == 1 ? "" : fmt::format("; so in {} steps", waiting.count);
                return Finding{array, waiting.index, waiting.value,
                               fmt::format("fetched for nothing: {} is needed next{}", next, more)};
              };
              found.add("look-ahead", place(waiting.index), finding, waiting.count);
            }};
  }

  // A value of a step: in range, and if unused, the value that a later step needs. In shrunk and dynamic
  // grids 0 and the previous value are equally good.
  void follow(LookAhead& ahead, std::size_t list, const Shape& index, std::int64_t value,
              std::optional<std::int64_t> before, bool used, std::int64_t limit, bool reported) {
    if (value < 0 || value >= std::max<std::int64_t>(limit, 1)) {
      if (reported) return;
      const bool data = ahead.array() == std::string_view("data_next");
      add(found, "range", place(index), ahead.array(), index, value, [&] {
        return fmt::format("it is fetched, and {}", data ? layout_.data_range() : layout_.mask_range());
      });
    } else if (used) {
      ahead.computes(list, value);
    } else if (!may_be_shrunk_ || (value != 0 && value != before)) {
      ahead.wait(list, index, value);
    }
  }

  // The step that should visit a block: among several the one at the block's own position, else the first
  // between steps of earlier and later blocks, else the first.
  struct Visits {
    std::optional<std::size_t> step, again;
  };
  Visits visits_of(const StoredSteps& steps, std::int64_t data, const Mask* wanted) const {
    std::vector<std::size_t> all;
    for (std::size_t p = 0; p < steps.states.size(); ++p)
      if (steps.states[p] != 0 && steps.data[p] == data) all.push_back(p);
    if (all.empty()) return {};
    if (all.size() == 1) return {all[0], {}};
    const std::optional<std::size_t> own = own_place(steps, data, wanted);
    auto step = std::find_if(all.begin(), all.end(), [&](std::size_t p) { return p == own; });
    if (step == all.end())
      step = std::find_if(all.begin(), all.end(), [&](std::size_t p) { return is_in_order(steps, p); });
    if (step == all.end()) step = all.begin();
    return {*step, step == all.begin() ? all[1] : all[0]};
  }
  bool is_in_order(const StoredSteps& steps, std::size_t p) const {
    const auto computes = [&](std::size_t q) { return q < steps.states.size() && steps.states[q] != 0; };
    return (p == 0 || !computes(p - 1) || steps.data[p - 1] < steps.data[p]) &&
           (!computes(p + 1) || steps.data[p] < steps.data[p + 1]);
  }
  // The position of a block's step: in an unshrunk grid the block's index, else its rank among the non-empty
  // blocks of the mask, at the begin of the line in forward and at its end in dkv.
  std::optional<std::size_t> own_place(const StoredSteps& steps, std::int64_t data,
                                       const Mask* wanted) const {
    if (is_whole(steps)) return static_cast<std::size_t>(data);
    if (wanted == nullptr) return std::nullopt;
    std::int64_t before = 0, behind = 0;
    for (std::int64_t other = 0; other < layout_.data_limit; ++other)
      if (has_block(steps, other, *wanted)) ++(other < data ? before : behind);
    const std::int64_t place = arrays_.forward() ? before : std::ssize(steps.states) - behind;
    return place < 0 ? std::nullopt : std::optional(static_cast<std::size_t>(place));
  }
  bool has_block(const StoredSteps& steps, std::int64_t data, const Mask& wanted) const {
    const std::int64_t i = arrays_.forward() ? steps.first[1] : layout_.q_block(steps.first[1], data);
    return state_of(wanted, i, arrays_.forward() ? data : steps.first[2]) != BlockState::empty;
  }
  const Mask* wanted_of(std::int64_t row) const {
    if (claims.masks.size() <= 1) return claims.masks.empty() ? nullptr : &claims.masks.front();
    for (std::int64_t head = 0; head < layout_.heads; ++head)
      if (layout_.row_of(head) == row) return &claims.masks[static_cast<std::size_t>(head)];
    return nullptr;
  }
  bool is_whole(const StoredSteps& steps) const { return std::ssize(steps.states) == layout_.data_limit; }

  void report_second(std::int64_t row, std::int64_t i, std::int64_t j) {
    found.add("twice", place_of_block(row, i, j), [&] {
      const StoredSteps steps = blocks::steps_to(arrays_, layout_, row, i, j);
      const Visits visits = visits_of(steps, steps.wanted, wanted_of(row));
      const std::size_t again = visits.again ? *visits.again : *visits.step;
      return Finding{
          "data_next", steps.index(again), steps.wanted,
          fmt::format("step {} visits block ({}, {}), too", to_string(steps.index(*visits.step)), i, j)};
    });
  }

  std::optional<BlockState> decided(std::span<const mask::Word> bits) const {
    return check::decided(bits, block_shape.q * block_shape.kv);
  }

  Shape element_index(std::int64_t row, std::int64_t i, std::int64_t pattern, std::int64_t q,
                      std::int64_t k) const {
    Shape index = layout_.pattern_index(row, i, pattern);
    const std::int64_t in_q = q % arrays_.block.q, in_k = k % arrays_.block.kv;
    index.push_back(arrays_.forward() ? in_q : in_k);
    index.push_back(arrays_.forward() ? in_k : in_q);
    return index;
  }

  BlockState state_of(const Mask& mask, std::int64_t i, std::int64_t j) const {
    mask::BitBuffer buffer;
    const mask::BitRows bits = bits_of(mask, i, j, buffer);
    return decided({bits.words, static_cast<std::size_t>(bits.rows * bits.row_words)})
        .value_or(BlockState::partial);
  }

  // The elements of a block within the lengths.
  mask::BitRows bits_of(const Mask& mask, std::int64_t i, std::int64_t j, mask::BitBuffer& buffer) const {
    const auto [bq, bk] = arrays_.block;
    const mask::Rectangle where{i * bq, std::min((i + 1) * bq, layout_.q_length), j * bk,
                                std::min((j + 1) * bk, layout_.kv_length)};
    const mask::BitRows bits = buffer.rows(where.rows(), where.columns());
    mask.node().fill(where, bits);
    return bits;
  }

  // Whether the wanted mask has a True in the block that a step visits.
  bool is_wanted(const StoredSteps& steps, std::size_t p, const Mask& wanted) const {
    const std::int64_t data = steps.data[p];
    if (data < 0 || data >= layout_.data_limit) return false;
    if (visits_of(steps, data, &wanted).step != p) return false;  // visited by another step
    return has_block(steps, data, wanted);
  }

  std::optional<std::int64_t> not_visited(const StoredSteps& steps, const Mask& wanted) const {
    std::vector<bool> visited(static_cast<std::size_t>(layout_.data_limit));
    for (std::size_t p = 0; p < steps.states.size(); ++p)
      if (steps.states[p] != 0 && steps.data[p] >= 0 && steps.data[p] < layout_.data_limit)
        visited[static_cast<std::size_t>(steps.data[p])] = true;
    for (std::int64_t data = 0; data < layout_.data_limit; ++data) {
      if (visited[static_cast<std::size_t>(data)]) continue;
      if (has_block(steps, data, wanted)) return data;
    }
    return std::nullopt;
  }

  // The distinct partial block with the wanted elements, which are False outside of the lengths.
  std::optional<std::int64_t> pattern_with(const Mask& wanted, std::int64_t i, std::int64_t j) const {
    const auto [bq, bk] = arrays_.block;
    mask::BitBuffer buffer;
    const mask::BitRows rows = bits_of(wanted, i, j, buffer);
    std::vector<mask::Word> bits(static_cast<std::size_t>(mask::words_for(bq * bk)));
    for (std::int64_t r = 0; r < rows.rows; ++r)
      for (std::int64_t c = 0; c < rows.columns; ++c) {
        const std::int64_t at = arrays_.forward() ? r * bk + c : c * bq + r;
        bits[static_cast<std::size_t>(at / 64)] |= (rows.row(r)[c / 64] >> (c % 64) & 1u) << (at % 64);
      }
    const auto [begin, end] = patterns_by_hash_.equal_range(mask::hash_words(bits.data(), std::ssize(bits)));
    std::optional<std::int64_t> pattern;
    for (auto at = begin; at != end; ++at)
      if (!pattern || at->second < *pattern) pattern = at->second;
    return pattern;
  }

  Finding element(std::int64_t row, const BlockDifference& d, const StoredSteps& steps, std::size_t p,
                  const std::string& what) const {
    const bool missing = d.missing > 0;
    const Shape index = element_index(row, d.i, steps.masks[p], missing ? d.missing_q : d.outside_q,
                                      missing ? d.missing_k : d.outside_k);
    return {"partial_mask_blocks", index, std::int64_t{!missing},
            fmt::format("should be {}: {}", missing ? 1 : 0, what)};
  }

  Take take() const { return arrays_.is_computable() ? Take::visits : Take::elements; }

  std::int64_t place_of_block(std::int64_t row, std::int64_t i, std::int64_t j) const {
    return (row * layout_.layout.q_blocks + i) * layout_.layout.kv_blocks + j;
  }

  std::int64_t place(const Shape& index) const {
    return (index[0] * arrays_.grid()[1] + index[1]) * arrays_.grid()[2] + index[2];
  }

  StoredArrays arrays_;
  StoredLayout layout_;
  std::optional<blocks::StoredPatterns> elements_;
  std::vector<bool> used_patterns_;
  std::unordered_multimap<std::uint64_t, std::int32_t> patterns_by_hash_;
  std::int64_t visited_ = 0;
  bool may_be_shrunk_ = false;
};

}  // namespace

std::unique_ptr<LayoutCheck> splash_check(const ArrayGroup& arrays, const MaskInfoClaims& claims,
                                          Findings& found) {
  return std::make_unique<SplashCheck>(arrays, claims, found);
}

}  // namespace ejk::check
