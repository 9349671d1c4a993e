// Rules of layouts that list blocks, and of those that have a rule for pairs. The arrays are walked as their
// kernel walks them; a difference from the given mask is traced to the element that causes it.
//
// Cost: one walk over the lists, one pass over the distinct partial blocks, and a walk for each kept finding.
// tests: tests/layouts/test_check_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/mask_layouts.hpp"
#include "ejk/program/text.hpp"
#include "kernels/kernels.hpp"
#include "layouts/layout_check.hpp"
#include "layouts/layouts.hpp"

namespace ejk::check {

Shape checked_shape(const MaskShape& stored, const MaskInfoClaims& claims, const std::string& name,
                    const char* array) {
  Shape shape{stored.heads, stored.q_length, stored.kv_length};
  if (!claims.masks.empty()) {
    const Mask& first = claims.masks.front();
    // Else heads are only as many as there are rows.
    const bool is_known = shape[1] > 0 && !stored.at_most;
    if (is_known && (shape[1] != first.q_length() || shape[2] != first.kv_length()))
      throw core::invalid("its lengths are {} x {}, those of the mask {} x {}", shape[1], shape[2],
                          first.q_length(), first.kv_length())
          .about(array);
    shape[1] = first.q_length(), shape[2] = first.kv_length();
    const auto heads = std::ssize(claims.masks);
    if (is_known && heads > 1 && shape[0] > 1 && shape[0] != heads)
      throw core::invalid("it has {} head{}, the mask {}", shape[0], shape[0] == 1 ? "" : "s", heads)
          .about(array);
    if (heads > 1) shape[0] = heads;
  }
  if (shape[1] == 0) throw blocks::unknown_lengths(name);
  return shape;
}

bool LayoutCheck::open() {
  try {
    open_arrays();
    return true;
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::input || error.subject().empty()) throw;
    found.add("shape", 0, [&] { return Finding{error.subject(), {}, {}, error.message()}; });
    return false;
  }
}

std::optional<mask::BlockState> decided(std::span<const mask::Word> bits, std::int64_t elements) {
  const std::int64_t ones = kernels::active().count_bits(bits.data(), std::ssize(bits));
  if (ones == 0) return mask::BlockState::empty;
  return ones == elements ? std::optional(mask::BlockState::full) : std::nullopt;
}

void LayoutCheck::check_patterns(const ArraySource& patterns, const std::vector<bool>& used,
                                 const std::function<void(std::int64_t, std::span<const mask::Word>)>& each) {
  const Shape& shape = patterns.shape();
  const std::int64_t elements = shape[1] * shape[2];
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements));
  std::vector<mask::Word> bits(static_cast<std::size_t>(mask::words_for(elements)));
  for (std::int64_t p = 0; p < shape[0]; ++p) {
    if (p < std::ssize(used) && !used[static_cast<std::size_t>(p)])
      found.add("unused", p, [&] { return Finding{"partial_mask_blocks", {p}, {}, "no block uses it"}; });
    patterns.read(Shape{p, 0, 0}, Shape{1, shape[1], shape[2]}, bytes.data());
    kernels::active().nonzero_bits_8(bytes.data(), elements, bits.data());
    if (each) each(p, bits);
    if (const auto state = decided(bits, elements))
      found.add("decided", p, [&] {
        return Finding{"partial_mask_blocks",
                       {p},
                       {},
                       state == mask::BlockState::full ? "all True: a block with it is full"
                                                       : "all False: a block with it is empty"};
      });
  }
}

void LayoutCheck::report_assumed(const char* array, std::int64_t partial_blocks) {
  if (partial_blocks == 0) return;
  found.add("assumed", 0, [&] {
    return Finding{array,
                   {},
                   {},
                   fmt::format("the kernel computes the elements of {} partial block{}: taken to be right",
                               format_count(partial_blocks), partial_blocks == 1 ? "" : "s")};
  });
}

namespace {

using blocks::ArrayPlace;
using blocks::BlockGrid;
using blocks::IndexArray;
using blocks::ListedVisit;

// What both kinds of layout have: their facts, the types of their arrays, and places of elements.
class ArraysCheck : public LayoutCheck {
 public:
  using LayoutCheck::LayoutCheck;

 protected:
  void count_heads(std::int64_t heads, std::int64_t rows) {
    head_count = heads, row_count = rows;
    if (heads % rows != 0)
      throw core::invalid("it has {} masks, which do not serve {} heads", rows, heads).about("shape");
  }

  void describe_facts(const Shape& shape) {
    found.facts()
        .add("layout", "layout", std::string(blocks::layout_of(group).name))
        .add("shape", "heads, queries, keys", shape);
  }

  void check_types(const std::vector<const IndexArray*>& indices) {
    for (const IndexArray* index : indices) {
      const DType dtype = index->source->dtype();
      if (size_of(dtype) <= 4 && dtype != DType::uint32) continue;
      found.add("dtype", 0, [&] {
        return Finding{index->name, {}, {}, fmt::format("{}: kernels take int32", name_of(dtype))};
      });
    }
  }

  blocks::ArrayWalk faults(std::function<void(std::int64_t, std::int64_t, std::int32_t, ArrayPlace)> visit) {
    return {std::move(visit),
            [this](const char* rule, ArrayPlace place, std::int64_t value, std::string why) {
              found.add(rule, place.at, [&] {
                return Finding{place.array, index_of(place), value, std::move(why)};
              });
            }};
  }

  Shape index_of(ArrayPlace place) const {
    const auto array = group.find(place.array);
    return array ? core::index_of(array->shape(), place.at) : Shape();
  }
};

class ListedCheck final : public ArraysCheck {
 public:
  using ArraysCheck::ArraysCheck;

  void check_rules() override {
    describe_facts({head_count, q_length_, kv_length_});
    found.facts().add("block", "block", Shape{block_shape.q, block_shape.kv});
    check_types(listed_->indices);
    if (listed_->patterns) used_.resize(static_cast<std::size_t>(listed_->patterns->shape()[0]));
    std::int64_t visited = 0, assumed = 0;
    for (std::int64_t walk = 0; walk < walk_count; ++walk)
      for (std::int64_t row = 0; row < row_count; ++row) {
        std::vector<blocks::StoredVisit> visits;
        listed_->walk(
            walk, row, faults([&](std::int64_t i, std::int64_t j, std::int32_t pattern, ArrayPlace) {
              visits.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(j), pattern});
              if (pattern == BlockGrid::kFull) return;
              if (listed_->is_computed(walk))
                assumed += walk == 0;
              else if (!used_.empty())
                used_[static_cast<std::size_t>(pattern)] = true;
            }));
        if (walk == 0) visited += std::ssize(visits) * (head_count / row_count);
        blocks::BlockMask made{
            grid_of(block_shape, listed_->q_blocks, listed_->kv_blocks, visits,
                    [&](std::int64_t i, std::int64_t j) { report_second(walk, row, i, j); }),
            listed_->is_computed(walk) ? nullptr : listed_->elements(row), q_length_, kv_length_};
        row_masks.push_back(listed_->sequences ? made.padded() : std::move(made));
      }
    listed_->check(faults({}));
    for (std::int64_t row = walk_count > 1 ? row_count : 0; row < row_count * walk_count; ++row)
      compare_walks(row);
    if (listed_->patterns && !listed_->every_block) check_patterns(*listed_->patterns, used_);
    report_assumed(listed_->home(0, 0, 0, 0).array, assumed);
    found.facts().add("visited_blocks", "blocks visited", visited, Unit::blocks);
  }

  bool is_computed(std::int64_t row) const override { return listed_->is_computed(row / row_count); }

  Finding explain(std::int64_t row, const BlockDifference& d, const Mask&,
                  const std::string& what) const override {
    const bool missing = d.missing > 0;
    std::int64_t q = missing ? d.missing_q : d.outside_q, k = missing ? d.missing_k : d.outside_k;
    const auto block = block_of(q, k);
    if (!block)
      return {"cu_seqlens_q", {listed_->sequences->q.sequence_of(q)}, {}, "a pair of two sequences: " + what};
    if (listed_->sequences)
      q = listed_->sequences->q.padded_position(q), k = listed_->sequences->kv.padded_position(k);
    return explain_pair(row, block->first, block->second, q, k, missing, d.wanted == 0, what);
  }

  Mask mask_of(blocks::BlockMask blocks, std::string text) const override {
    return listed_->mask_of(std::move(blocks), std::move(text));
  }
  Mask in_blocks(const Mask& mask) const override {
    return listed_->sequences ? padded_mask(mask, listed_->sequences) : mask;
  }
  std::optional<std::pair<std::int64_t, std::int64_t>> block_of(std::int64_t q,
                                                                std::int64_t k) const override {
    if (!listed_->sequences) return ArraysCheck::block_of(q, k);
    const auto& [of_q, of_kv] = *listed_->sequences;
    if (of_q.sequence_of(q) != of_kv.sequence_of(k)) return std::nullopt;
    return std::pair(of_q.padded_position(q) / block_shape.q, of_kv.padded_position(k) / block_shape.kv);
  }

  Finding explain_padding(std::int64_t row, std::int64_t i, std::int64_t j, std::int64_t q, std::int64_t k,
                          const std::string& what) const override {
    return explain_pair(row, i, j, q, k, false, false, what);
  }

 private:
  void open_arrays() override {
    listed_ = blocks::layout_of(group).list(group, claims.settings);
    const Shape shape = checked_shape(listed_->shape, claims, group.name, "shape");
    q_length_ = shape[1], kv_length_ = shape[2];
    blocks::require_lengths(*listed_, q_length_, kv_length_);
    block_shape = listed_->block, walk_count = listed_->walks;
    full_blocks_end_with_mask = listed_->full_blocks_end_with_mask;
    if (listed_->sequences)
      for (std::int64_t s = 0; s < listed_->sequences->q.count(); ++s)
        longest_sequence = std::max(longest_sequence, listed_->sequences->q.length(s));
    count_heads(shape[0], listed_->rows);
  }

  void report_second(std::int64_t walk, std::int64_t row, std::int64_t i, std::int64_t j) {
    found.add("twice",
              (walk * row_count + row) * listed_->q_blocks * listed_->kv_blocks + i * listed_->kv_blocks + j,
              [&] {
                const std::vector<ListedVisit> visits = visits_of(*listed_, walk, row, i, j);
                const ArrayPlace again = visits[1].place;
                return Finding{again.array,
                               index_of(again),
                               {},
                               fmt::format("block ({}, {}) is listed by {}{}, too", i, j,
                                           visits[0].place.array, to_string(index_of(visits[0].place)))};
              });
  }

  // Blocks that the walk of `row` and the first walk do not both have, partial or full. Where the elements are
  // computed, a mask does not show them.
  void compare_walks(std::int64_t row) {
    const BlockGrid &first = *row_masks[static_cast<std::size_t>(row % row_count)].grid,
                    &other = *row_masks[static_cast<std::size_t>(row)].grid;
    for (std::int64_t i = 0; i < first.q_blocks; ++i) {
      const auto a = first.row(i), b = other.row(i);
      for (auto in_a = a.begin(), in_b = b.begin(); in_a != a.end() || in_b != b.end();) {
        const bool takes_a = in_b == b.end() || (in_a != a.end() && in_a->column <= in_b->column),
                   takes_b = in_a == a.end() || (in_b != b.end() && in_b->column <= in_a->column);
        const std::int64_t j = takes_a ? in_a->column : in_b->column;
        const bool is_same =
            takes_a && takes_b && (in_a->pattern == BlockGrid::kFull) == (in_b->pattern == BlockGrid::kFull);
        if (!is_same)
          found.add("directions", (row * first.q_blocks + i) * first.kv_blocks + j,
                    [&] { return explain_walks(row, i, j); });
        in_a += takes_a, in_b += takes_b;
      }
    }
  }

  Finding explain_walks(std::int64_t row, std::int64_t i, std::int64_t j) const {
    const std::int64_t in_walk = row % row_count;
    const std::vector<ListedVisit> first = visits_of(*listed_, 0, in_walk, i, j),
                                   other = visits_of(*listed_, row / row_count, in_walk, i, j);
    const auto where = [&](const std::vector<ListedVisit>& visits, std::int64_t walk) {
      return visits.empty() ? fmt::format("not in {}", listed_->walk_lists[static_cast<std::size_t>(walk)])
                            : fmt::format("in {}", visits.front().place.array);
    };
    const ArrayPlace at = other.empty() ? listed_->home(row / row_count, in_walk, i, j) : other.front().place;
    return {at.array,
            index_of(at),
            {},
            fmt::format("block (0, {}, {}, {}) of (batch, head, q block, kv block) is {}, and {}",
                        in_walk * (head_count / row_count), i, j, where(first, 0),
                        where(other, row / row_count))};
  }

  Finding explain_pair(std::int64_t row, std::int64_t i, std::int64_t j, std::int64_t q, std::int64_t k,
                       bool missing, bool is_empty, const std::string& what) const {
    const std::int64_t walk = row / row_count, in_walk = row % row_count;
    const std::vector<ListedVisit> visits = visits_of(*listed_, walk, in_walk, i, j);
    if (visits.empty()) {
      const ArrayPlace home = listed_->home(walk, in_walk, i, j);
      return {home.array, index_of(home), {}, fmt::format("block ({}, {}) is not listed: {}", i, j, what)};
    }
    const auto& [place, pattern] = visits.front();
    if (pattern == BlockGrid::kFull || listed_->is_computed(walk))
      return {place.array, index_of(place), {}, fmt::format("listed as full: {}", what)};
    if (is_empty) return {place.array, index_of(place), {}, fmt::format("listed: {}", what)};
    auto [array, index] = listed_->element_place(in_walk, i, j, pattern, q, k);
    return {array, std::move(index), {}, fmt::format("should be {}: {}", missing ? 1 : 0, what)};
  }

  std::shared_ptr<const blocks::ListedBlocks> listed_;
  std::int64_t q_length_ = 0, kv_length_ = 0;
  std::vector<bool> used_;
};

class RuleCheck final : public ArraysCheck {
 public:
  using ArraysCheck::ArraysCheck;

  void check_rules() override {
    describe_facts({head_count, shape_[1], shape_[2]});
    check_types(rule_->indices);
    rule_->check(shape_[1], shape_[2], faults({}));
    rule_->check_unread(faults({}));
    for (std::int64_t row = 0; row < row_count; ++row) {
      row_masks.push_back({nullptr, nullptr, shape_[1], shape_[2]});
      row_rules.push_back(rule_->mask(shape_[1], shape_[2], row));
    }
  }

  bool is_computed(std::int64_t) const override { return false; }
  blocks::BlockBounds bounds(std::int64_t row) const override { return rule_->bounds(row); }

  Finding explain(std::int64_t row, const BlockDifference& d, const Mask&,
                  const std::string& what) const override {
    const bool missing = d.missing > 0;
    auto [array, index] =
        rule_->place(row, missing ? d.missing_q : d.outside_q, missing ? d.missing_k : d.outside_k);
    return {array, std::move(index), {}, what};
  }
  Finding explain_padding(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                          const std::string& what) const override {
    return {"shape", {}, {}, what};
  }

 private:
  void open_arrays() override {
    rule_ = blocks::layout_of(group).rule(group, claims.settings);
    shape_ = checked_shape(rule_->shape, claims, group.name, "shape");
    block_shape = scan_block(shape_[1], shape_[2]);
    count_heads(shape_[0], rule_->rows);
  }

  std::shared_ptr<const blocks::PairRule> rule_;
  Shape shape_;
};

}  // namespace

std::unique_ptr<LayoutCheck> listed_check(const ArrayGroup& arrays, const MaskInfoClaims& claims,
                                          Findings& found) {
  return std::make_unique<ListedCheck>(arrays, claims, found);
}

std::unique_ptr<LayoutCheck> rule_check(const ArrayGroup& arrays, const MaskInfoClaims& claims,
                                        Findings& found) {
  return std::make_unique<RuleCheck>(arrays, claims, found);
}

}  // namespace ejk::check
