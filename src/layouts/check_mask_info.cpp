// `check mask-info`: the rules of the layout, then the proof: the mask that a kernel computes from the arrays
// is compared with the given one block by block. Pairs outside of the mask's lengths are reported as well.
//
// Cost: that of the layout's rules, and filling the blocks that are partial in either mask.
// tests: tests/layouts/test_check_mask_info.cpp
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "blocks/plan.hpp"
#include "core/checked.hpp"
#include "ejk/program/text.hpp"
#include "layouts/layout_check.hpp"
#include "layouts/layouts.hpp"

namespace ejk {

namespace check {
std::unique_ptr<LayoutCheck> splash_check(const ArrayGroup&, const MaskInfoClaims&, Findings&);
std::unique_ptr<LayoutCheck> listed_check(const ArrayGroup&, const MaskInfoClaims&, Findings&);
std::unique_ptr<LayoutCheck> rule_check(const ArrayGroup&, const MaskInfoClaims&, Findings&);
}  // namespace check

namespace {

using blocks::BlockGrid;
using blocks::BlockMask;
using check::BlockDifference;
using check::LayoutCheck;
using check::MaskPair;

std::unique_ptr<LayoutCheck> check_of(const ArrayGroup& arrays, const MaskInfoClaims& claims,
                                      Findings& found) {
  const blocks::StoredMaskLayout& layout = blocks::layout_of(arrays);
  return layout.list   ? check::listed_check(arrays, claims, found)
         : layout.rule ? check::rule_check(arrays, claims, found)
                       : check::splash_check(arrays, claims, found);
}

// Elements that a kernel computes from positions: those of a mask. The pattern of a block is its column.
class ComputedElements final : public blocks::BlockElements {
 public:
  ComputedElements(Mask function, BlockShape block) : function_(std::move(function)), block_(block) {}
  void fill(std::int64_t i, std::int32_t pattern, const mask::Rectangle& part,
            const mask::BitRows& out) const override {
    const std::int64_t q = i * block_.q, k = pattern * block_.kv;
    function_.node().fill({q + part.q_begin, q + part.q_end, k + part.k_begin, k + part.k_end}, out);
  }

 private:
  Mask function_;
  BlockShape block_;
};

class MaskInfoCheck {
 public:
  MaskInfoCheck(const ArrayGroup& group, const MaskInfoClaims& claims, const CheckOptions& options)
      : name_(group.name),
        group_(group),
        claims_(claims),
        options_(options),
        found_(rules_of("mask-info"), options.most_findings),
        layout_(check_of(group, claims, found_)) {}

  Findings run() && {
    found_.show_arrays();
    if (!layout_->open()) return std::move(found_);
    layout_->check_rules();
    if (claims_.kernel) check_kernel();
    if (!claims_.masks.empty())
      compare();
    else
      for (std::int64_t row = 0; row < layout_->row_count; ++row)
        add_picture(row * (layout_->head_count / layout_->row_count), states_of(row));
    for (std::int64_t row = 0; row < layout_->row_count * layout_->walk_count; ++row) {
      if (mask_of(row).grid) check_padding(row);
      layout_->check_elements(row, wrong_);
    }
    return std::move(found_);
  }

 private:
  const BlockMask& mask_of(std::int64_t row) const {
    return layout_->row_masks[static_cast<std::size_t>(row)];
  }

  // Lists of flex are of both directions, as PyTorch passes them to FlashAttention-4.
  void check_kernel() {
    const blocks::StoredMaskLayout& layout = blocks::layout_of(group_);
    if (layout.written_as != MaskLayout::fa4 && layout.written_as != MaskLayout::flex)
      throw Error(Error::Kind::usage,
                  fmt::format("{}: FlashAttention-4 takes blocks in the layouts fa4 and flex, not {}", name_,
                              layout.name),
                  Error::Code::not_of_fa4);
    const BlockShape block = layout_->block_shape;
    Fa4Kernel kernel = *claims_.kernel;
    const auto stored = blocks::settings_of(group_, claims_.settings).direction;
    const bool is_forward = stored == Direction::forward && layout.written_as == MaskLayout::fa4;
    if (stored == Direction::dkv) kernel.direction = Direction::dkv;
    kernel.is_varlen = layout_->longest_sequence > 0;
    if (is_forward && kernel.direction == Direction::dkv && !kernel.is_varlen) {
      found_.add("runs-on", 0, [&] {
        return Finding{
            "dkv", {}, false, "lists of the rows of blocks: the backward pass takes those of columns"};
      });
      return;
    }
    const std::string why =
        fa4_refusal(kernel, block, kernel.is_varlen ? layout_->longest_sequence : mask_of(0).q_length);
    if (!why.empty())
      found_.add("runs-on", 0, [&] { return Finding{"block", {}, Shape{block.q, block.kv}, why}; });
  }

  // The mask that a kernel computes for a row; `function` has the elements that are not stored.
  Mask computed(std::int64_t row, const Mask& function) const {
    if (!mask_of(row).grid) return layout_->row_rules[static_cast<std::size_t>(row)];
    BlockMask mask = mask_of(row);
    if (layout_->is_computed(row))
      mask.elements = std::make_shared<ComputedElements>(layout_->in_blocks(function), layout_->block_shape);
    return layout_->mask_of(std::move(mask), name_);
  }

  using States = std::shared_ptr<BlockStates>;

  // The blocks of a row for a picture; null if there are enough.
  States states_of(std::int64_t row) const {
    if (pictures_ == claims_.pictures || !mask_of(row).grid) return nullptr;
    const BlockGrid& grid = *mask_of(row).grid;
    auto states = std::make_shared<BlockStates>(
        grid.kv_blocks, std::vector<std::uint8_t>(static_cast<std::size_t>(grid.q_blocks * grid.kv_blocks)));
    for (std::int64_t i = 0; i < grid.q_blocks; ++i)
      for (const BlockGrid::Entry& entry : grid.row(i))
        states->states(i)[static_cast<std::size_t>(entry.column)] = entry.pattern == BlockGrid::kFull ? 2 : 1;
    return states;
  }

  void add_picture(std::int64_t head, const States& states) {
    if (!states) return;
    BlockPicture picture{
        fmt::format("picture_{}", pictures_++),
        fmt::format("blocks that a kernel computes for head {} (queries down, keys across)", head), states};
    if (!claims_.masks.empty()) {
      picture.marked_names = {"pairs missing", "pairs too many"};
      picture.subject = "compared with " + wanted(head).text();
    }
    picture.row_axis = {"queries", layout_->block_shape.q, layout_->row_masks[0].q_length, "tokens"};
    picture.column_axis = {"keys", layout_->block_shape.kv, layout_->row_masks[0].kv_length, "tokens"};
    picture.page_only = true;
    found_.facts().add(std::move(picture));
  }

  void compare() {
    std::atomic<std::int64_t> wrong_blocks = 0;
    const auto all = check::shared_heads(layout_->head_count, [&](auto a, auto b) {
      return layout_->row_of(a) == layout_->row_of(b) && blocks::known_same(wanted(a), wanted(b));
    });
    const std::int64_t lines = core::ceil_div(wanted(0).q_length(), layout_->block_shape.q);
    core::Progress progress(options_.progress, std::ssize(all) * lines * layout_->walk_count);
    for (std::int64_t n = 0; n < std::ssize(all) * layout_->walk_count; ++n) {
      const check::SharedHeads& shared = all[static_cast<std::size_t>(n % std::ssize(all))];
      const std::int64_t walk = n / std::ssize(all);
      const std::int64_t row = walk * layout_->row_count + layout_->row_of(shared.first);
      const Mask& mask = wanted(shared.first);
      const States states = walk == 0 ? states_of(row) : nullptr;
      const MaskPair pair(computed(row, mask), mask, layout_->block_shape);
      const auto report = [&](Findings& found, const BlockDifference& difference, std::int64_t place) {
        wrong_blocks += shared.count;
        const bool is_missing = difference.missing > 0;
        const auto at = layout_->block_of(is_missing ? difference.missing_q : difference.outside_q,
                                          is_missing ? difference.missing_k : difference.outside_k);
        if (states && at)
          states->states(at->first)[static_cast<std::size_t>(at->second)] = is_missing ? 3 : 4;
        found.add(
            difference.missing > 0 ? "missing" : "outside", place,
            [&] { return explain(shared, row, difference); }, shared.count);
      };
      const blocks::BlockBounds bounds = layout_->bounds(row);
      std::map<std::pair<std::int64_t, std::int64_t>, BlockDifference> own;  // of blocks of any sizes
      pair.compare(found_, options_, progress, 1, [&](Findings& found, const BlockDifference& difference) {
        if (!bounds.q.empty()) {
          const std::scoped_lock lock(reading_);
          add_to_own(pair, pair.pairs_of(difference), bounds, own);
          return;
        }
        const BlockShape block = layout_->block_shape;
        if ((difference.i + 1) * block.q > mask.q_length() ||
            (difference.j + 1) * block.kv > mask.kv_length()) {
          const std::scoped_lock lock(reading_);
          wrong_.insert({row, difference.i, difference.j});
        }
        report(found, difference, pair.place(shared.first, difference));
      });
      for (const auto& [at, difference] : own)
        report(found_, difference,
               (shared.first * std::ssize(bounds.q) + at.first) * std::ssize(bounds.kv) + at.second);
      add_picture(shared.first, states);
    }
    const BlockShape block = layout_->block_shape;
    const bool has_blocks = mask_of(0).grid || !layout_->bounds(0).q.empty();
    found_.facts().add("wrong_blocks",
                       has_blocks
                           ? "blocks that differ from the mask"
                           : fmt::format("blocks of {}x{} that differ from the mask", block.q, block.kv),
                       wrong_blocks.load(), Unit::blocks);
  }

  // The differences within a rectangle, by the blocks of any sizes that they are in. Pairs behind the last block
  // are those of that one.
  static void add_to_own(const MaskPair& pair, const mask::Rectangle& where,
                         const blocks::BlockBounds& bounds,
                         std::map<std::pair<std::int64_t, std::int64_t>, BlockDifference>& own) {
    // Calls f(block, begin, end) for the blocks that a range has positions of, cut to it.
    const auto each_block = [](const std::vector<std::int64_t>& begins, std::int64_t begin, std::int64_t end,
                               auto&& f) {
      while (begin < end) {
        const auto next = std::upper_bound(begins.begin() + 1, begins.end() - 1, begin);
        const bool is_last = next == begins.end() - 1;
        const std::int64_t until = is_last ? end : std::min(end, *next);
        f(next - begins.begin() - 1, begin, until);
        begin = until;
      }
    };
    each_block(bounds.q, where.q_begin, where.q_end, [&](std::int64_t i, std::int64_t q, std::int64_t q_end) {
      each_block(bounds.kv, where.k_begin, where.k_end,
                 [&](std::int64_t j, std::int64_t k, std::int64_t k_end) {
                   const BlockDifference part = pair.difference({q, q_end, k, k_end});
                   if (part.missing + part.outside == 0) return;
                   BlockDifference& block = own.try_emplace({i, j}, BlockDifference{i, j}).first->second;
                   check::add(block, part);
                 });
    });
  }

  const Mask& wanted(std::int64_t head) const { return check::of_head(claims_.masks, head); }

  Finding explain(const check::SharedHeads& shared, std::int64_t row, const BlockDifference& d) const {
    const bool missing = d.missing > 0;
    const std::int64_t head = shared.first, pairs = missing ? d.missing : d.outside;
    const std::string counted = fmt::format("{} pair{}", format_count(pairs), pairs == 1 ? "" : "s");
    const std::scoped_lock lock(reading_);  // arrays may allow one reader at a time
    return layout_->explain(
        row, d, wanted(head),
        fmt::format("block ({}, {}, {}) {}, first ({}, {}, {}){}", head, d.i, d.j,
                    missing ? "lacks " + counted : "has " + counted + " too many", head,
                    missing ? d.missing_q : d.outside_q, missing ? d.missing_k : d.outside_k,
                    shared.count == 1 ? "" : fmt::format("; so in {} heads", shared.count)));
  }

  // Elements outside of the lengths. Blocks that differ from the mask are already reported.
  void check_padding(std::int64_t row) {
    const BlockMask& mask = mask_of(row);
    const BlockGrid& grid = *mask.grid;
    const std::int64_t q = mask.q_length, kv = mask.kv_length;
    const Mask padded = blocks::to_mask(mask.padded(), name_);
    if (padded.q_length() == q && padded.kv_length() == kv) return;
    mask::BitBuffer buffer;
    for (std::int64_t i = 0; i < grid.q_blocks; ++i)
      for (const BlockGrid::Entry& entry : grid.row(i)) {
        const mask::Rectangle where = grid.whole_block(i, entry.column);
        if (where.q_end <= q && where.k_end <= kv) continue;
        if (wrong_.contains({row, i, entry.column})) continue;
        if (layout_->full_blocks_end_with_mask && entry.pattern == BlockGrid::kFull) continue;
        if (layout_->is_computed(row) && entry.pattern != BlockGrid::kFull) continue;
        const mask::BitRows bits = buffer.rows(where.rows(), where.columns());
        padded.node().fill(where, bits);
        std::optional<std::pair<std::int64_t, std::int64_t>> first;
        for (std::int64_t r = 0; r < bits.rows && !first; ++r)
          mask::for_each_run(std::span(bits.row(r), static_cast<std::size_t>(bits.row_words)), bits.columns,
                             true, [&](std::int64_t, std::int64_t end) {
                               const bool outside = where.q_begin + r >= q || where.k_begin + end > kv;
                               if (outside && !first) first = {where.q_begin + r, where.k_begin + end - 1};
                             });
        if (!first) continue;
        const std::int64_t j = entry.column, place = (row * grid.q_blocks + i) * grid.kv_blocks + j;
        found_.add("padding", place, [&] {
          return layout_->explain_padding(
              row, i, j, first->first, first->second,
              fmt::format("block ({}, {}) has pair ({}, {}), of {} queries x {} keys", i, j, first->first,
                          first->second, q, kv));
        });
      }
  }

  std::string name_;
  const ArrayGroup& group_;
  const MaskInfoClaims& claims_;
  const CheckOptions& options_;
  Findings found_;
  std::unique_ptr<LayoutCheck> layout_;
  std::int64_t pictures_ = 0;
  mutable std::mutex reading_;
  check::BlockSet wrong_;  // of those that reach outside of the lengths
};

}  // namespace

Findings check_mask_info(const ArrayGroup& arrays, const MaskInfoClaims& claims,
                         const CheckOptions& options) {
  return MaskInfoCheck(arrays, claims, options).run();
}

}  // namespace ejk
