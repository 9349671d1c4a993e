// Layout of Paddle's FlashMask: for each key the queries that do not see it, as one or two ranges of rows.
//
// startend_row_indices (1, heads, keys, n) has n = 1, 2 or 4 rows of a key; a mask that is causal hides rows
// before the key as well:
//   causal, n = 1    [s0, Q)
//   causal, n = 2    [s0, s1)
//   n = 2            [s0, Q) and [0, s1)
//   n = 4            [s0, s1) and [s2, s3)
// Rows from Q on are none. The least n that has the mask is written; where a key has more ranges, the two
// longest stay hidden.
// Source: paddle 3.3 nn/functional/flash_attention.py (flashmask_attention).
// tests: tests/layouts/test_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/checked.hpp"
#include "layouts/layouts.hpp"
#include "layouts/writing.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

// The hidden rows of a key, within the mask.
using HiddenRows = std::array<IndexRange, 2>;

// --- reading

class HiddenRowsMask final : public MaskNode {
 public:
  HiddenRowsMask(std::int64_t q_length, std::int64_t kv_length, std::vector<HiddenRows> hidden, bool causal,
                 std::string text)
      : MaskNode(q_length, kv_length), hidden_(std::move(hidden)), causal_(causal), text_(std::move(text)) {}

  std::string text() const override { return text_; }

  bool same_as(const MaskNode& other, IndexRange queries) const override {
    const auto& o = static_cast<const HiddenRowsMask&>(other);
    if (causal_ != o.causal_) return false;
    return queries.begin >= queries.end ||
           std::equal(hidden_.begin(), hidden_.end(), o.hidden_.begin(), same);
  }

  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    for (std::int64_t r = 0; r < where.rows(); ++r) {
      Word* to = out.row(r);
      std::fill(to, to + words_for(out.columns), Word{0});
      set_bits(to, 0,
               causal_ ? std::clamp<std::int64_t>(where.q_begin + r + 1 - where.k_begin, 0, where.columns())
                       : where.columns());
    }
    for (std::int64_t k = where.k_begin; k < where.k_end; ++k)
      for (const IndexRange& rows : of(k)) {
        const std::int64_t c = k - where.k_begin;
        for (std::int64_t q = std::max(rows.begin, where.q_begin); q < std::min(rows.end, where.q_end); ++q)
          out.row(q - where.q_begin)[c / 64] &= ~(Word{1} << (c % 64));
      }
  }

  const HiddenRows& of(std::int64_t key) const { return hidden_[static_cast<std::size_t>(key)]; }
  bool is_causal() const { return causal_; }

 private:
  static bool same(const HiddenRows& a, const HiddenRows& b) {
    return std::equal(a.begin(), a.end(), b.begin(),
                      [](IndexRange x, IndexRange y) { return x.begin == y.begin && x.end == y.end; });
  }

  std::vector<HiddenRows> hidden_;
  bool causal_;
  std::string text_;
};

// Of each range of rows in a column of blocks: rows that all of its keys hide, and rows that one hides.
class HiddenRowsClassifier final : public BlockClassifier {
 public:
  HiddenRowsClassifier(const HiddenRowsMask& mask, std::int64_t kv_block) : mask_(mask), kv_block_(kv_block) {
    for (std::int64_t k = 0; k < mask.kv_length(); ++k) {
      if (k % kv_block == 0) columns_.emplace_back();
      for (std::size_t n = 0; n < 2; ++n) {
        const IndexRange rows = mask.of(k)[n];
        auto& [all, any] = columns_.back()[n];
        all = {std::max(all.begin, rows.begin), std::min(all.end, rows.end)};
        if (rows.begin < rows.end) any = {std::min(any.begin, rows.begin), std::max(any.end, rows.end)};
      }
    }
  }

  IndexRange run(std::int64_t, std::int64_t q_end) const override {
    const auto all = std::ssize(columns_);
    return {0, mask_.is_causal() ? std::min(all, core::ceil_div(q_end, kv_block_)) : all};
  }

  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange blocks, BlockState* out) const override {
    for (std::int64_t j = blocks.begin; j < blocks.end; ++j, ++out) {
      const std::int64_t k_begin = j * kv_block_, k_end = std::min(k_begin + kv_block_, mask_.kv_length());
      bool empty = mask_.is_causal() && q_end <= k_begin, full = !mask_.is_causal() || q_begin >= k_end - 1;
      for (const auto& [all, any] : columns_[static_cast<std::size_t>(j)]) {
        empty = empty || (all.begin <= q_begin && all.end >= q_end);
        full = full && (any.begin >= q_end || any.end <= q_begin);
      }
      *out = empty ? BlockState::empty : full ? BlockState::full : BlockState::undecided;
    }
  }

 private:
  struct Rows {
    IndexRange all{0, INT64_MAX}, any{INT64_MAX, 0};
  };
  const HiddenRowsMask& mask_;
  std::int64_t kv_block_;
  std::vector<std::array<Rows, 2>> columns_;
};

std::unique_ptr<BlockClassifier> HiddenRowsMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<HiddenRowsClassifier>(*this, kv_block);
}

class FlashMaskRule final : public PairRule {
 public:
  FlashMaskRule(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    const StoredSettings set = settings_of(group, given);
    rows_ = read_index(group, "startend_row_indices", 4);
    const Shape& stored = rows_.shape();
    require_one_entry(rows_);
    if (element_count(stored) == 0 || (stored[3] != 1 && stored[3] != 2 && stored[3] != 4))
      throw wrong(rows_.name, "{} has the shape {}; the last axis is 1, 2 or 4", rows_.source->name(),
                  to_string(stored));
    rows = stored[1];
    if (const auto causal = flag_in(group, "causal")) {
      causal_ = *causal;
    } else if (stored[3] == 2) {
      throw wrong("causal", "{}: nothing says whether it is causal: there is no bool causal", group.name);
    } else {
      causal_ = stored[3] == 1;
    }
    if (causal_ ? stored[3] == 4 : stored[3] == 1)
      throw wrong(rows_.name, "{} has {} rows a key, which a mask that is {}causal has not",
                  rows_.source->name(), stored[3], causal_ ? "" : "not ");
    shape = {rows, 0, stored[2], false, true};
    if (set.shape) shape = shape_in(*set.shape, rows);
    if (shape.kv_length != stored[2])
      throw wrong(rows_.name, "{} has {} keys, and the shape {}", rows_.source->name(), stored[2],
                  shape.kv_length);
    indices = {&rows_};
  }

  // Any number is a row, or none.
  void check(std::int64_t, std::int64_t, const ArrayWalk&) const override {}

  Mask mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t row) const override {
    if (kv_length != rows_.shape()[2])
      throw core::invalid("{}: it has {} keys, not {}", name, rows_.shape()[2], kv_length).about(rows_.name);
    const std::int64_t n = rows_.shape()[3];
    std::vector<HiddenRows> hidden(static_cast<std::size_t>(kv_length));
    for (std::int64_t k = 0; k < kv_length; ++k) {
      const std::int64_t at = (row * kv_length + k) * n;
      const auto rows_at = [&](std::int64_t begin, std::int64_t end) {
        return IndexRange{std::clamp<std::int64_t>(begin, 0, q_length),
                          std::clamp<std::int64_t>(end, 0, q_length)};
      };
      HiddenRows& of = hidden[static_cast<std::size_t>(k)];
      if (n == 1)
        of[0] = rows_at(rows_[at], q_length);
      else if (n == 2 && causal_)
        of[0] = rows_at(rows_[at], rows_[at + 1]);
      else if (n == 2)
        of = {rows_at(rows_[at], q_length), rows_at(0, rows_[at + 1])};
      else
        of = {rows_at(rows_[at], rows_[at + 1]), rows_at(rows_[at + 2], rows_[at + 3])};
    }
    return Mask(std::make_shared<HiddenRowsMask>(q_length, kv_length, std::move(hidden), causal_,
                                                 fmt::format("from({})", name)));
  }

  std::pair<const char*, Shape> place(std::int64_t row, std::int64_t, std::int64_t k) const override {
    return {rows_.name, {0, row, k, 0}};
  }

 private:
  IndexArray rows_;
  bool causal_ = false;
};

bool is_flashmask(const ArrayGroup& group) { return group.find("startend_row_indices") != nullptr; }

std::shared_ptr<const PairRule> rule_of_rows(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<FlashMaskRule>(group, settings);
}

// --- writing

// A key: the range of rows that see it, where it is one; the hidden range from the diagonal on, where it is
// one; and the two longest hidden ranges.
struct KeyRows {
  IndexRange seen, below;
  HiddenRows hidden;
  std::int64_t shown = 0, first_shown = 0;  // hidden rows beside them, and the first
};

std::vector<IndexRange> hidden_rows(std::span<const IndexRange> seen, std::int64_t begin, std::int64_t end) {
  std::vector<IndexRange> hidden;
  for (const IndexRange& range : seen) {
    if (range.begin > begin) hidden.push_back({begin, range.begin});
    begin = std::max(begin, range.end);
  }
  if (begin < end) hidden.push_back({begin, end});
  return hidden;
}

// The masks of a head, and the forms that have them.
struct HeadRows {
  std::vector<KeyRows> keys;
  bool causal_one = true, causal_two = true, two = true;
};

HeadRows rows_of(const MaskScans& scans, const Scan& scan) {
  HeadRows head;
  head.keys.resize(static_cast<std::size_t>(scans.kv_length()));
  const std::int64_t queries = scans.q_length();
  const auto is_kept_before = [](IndexRange a, IndexRange b) {  // the longer, of equal ones the later
    return a.count() != b.count() ? a.count() > b.count() : a.begin > b.begin;
  };
  for_each_line(scans, scan, Lines::keys, [&](std::int64_t k, std::span<const IndexRange> seen) {
    KeyRows& rows = head.keys[static_cast<std::size_t>(k)];
    const std::int64_t diagonal = std::min(k, queries);
    const std::vector<IndexRange> below = hidden_rows(seen, diagonal, queries);
    head.two = head.two && seen.size() <= 1;
    head.causal_two =
        head.causal_two && below.size() <= 1 && (seen.empty() || seen.front().begin >= diagonal);
    head.causal_one = head.causal_one && head.causal_two && (below.empty() || below[0].end == queries);
    if (!seen.empty()) rows.seen = seen.front();
    rows.below = below.empty() ? IndexRange{queries, queries} : below.front();
    const std::vector<IndexRange> hidden = hidden_rows(seen, 0, queries);
    auto& [first, second] = rows.hidden;
    std::partial_sort_copy(hidden.begin(), hidden.end(), rows.hidden.begin(), rows.hidden.end(),
                           is_kept_before);
    for (const IndexRange& range : hidden) {
      if (range.begin == first.begin || range.begin == second.begin) continue;
      if (rows.shown == 0) rows.first_shown = range.begin;
      rows.shown += range.count();
    }
    if (hidden.size() > 1 && second.begin < first.begin) std::swap(first, second);
  });
  return head;
}

std::array<std::int64_t, 4> row_indices(const KeyRows& key, std::int64_t n, bool causal,
                                        std::int64_t queries) {
  if (causal) return {key.below.begin, key.below.end};
  if (n == 2) return {key.seen.end, key.seen.begin};
  std::array<std::int64_t, 4> rows{queries, queries, 0, 0};
  const auto& [first, second] = key.hidden;
  const bool is_upper = first.begin == 0 || second.begin < second.end;
  if (first.begin < first.end) rows[is_upper ? 2 : 0] = first.begin, rows[is_upper ? 3 : 1] = first.end;
  if (second.begin < second.end) rows[0] = second.begin, rows[1] = second.end;
  return rows;
}

void write_flashmask(const MaskScans& scans, ArraysMade& to) {
  std::vector<HeadRows> heads;
  bool causal_one = true, causal_two = true, two = true;
  for (std::int64_t row = 0; row < scans.rows(); ++row) {
    const HeadRows& head = heads.emplace_back(rows_of(scans, scans.of_row(row)));
    causal_one = causal_one && head.causal_one, causal_two = causal_two && head.causal_two;
    two = two && head.two;
  }
  const bool causal = causal_one || causal_two;
  const std::int64_t n = causal_one ? 1 : causal_two || two ? 2 : 4, queries = scans.q_length();
  Array indices = index_array("startend_row_indices", {1, scans.rows(), scans.kv_length(), n}, queries);
  auto* at = indices.elements<std::int32_t>().data();
  MaskArrays& made = to.into;
  for (std::int64_t row = 0; row < scans.rows(); ++row)
    for (std::int64_t k = 0; k < scans.kv_length(); ++k, at += n) {
      const KeyRows& key = heads[static_cast<std::size_t>(row)].keys[static_cast<std::size_t>(k)];
      const auto rows = row_indices(key, n, causal, queries);
      std::copy_n(rows.begin(), n, at);
      if (n < 4 || key.shown == 0) continue;
      const std::int64_t heads_here = scans.rows() == 1 ? scans.plan.head_count() : 1;
      const Shape place{row, key.first_shown, k};
      if (made.differing == 0 || place < made.first_difference) made.first_difference = place;
      made.differing += heads_here * key.shown;
    }
  to.add("startend_row_indices", std::move(indices));
  to.add("causal", causal);
  to.add("shape", {queries, scans.kv_length()}, {2});
}

constexpr const char* kFlashmaskArrays[] = {"startend_row_indices", "causal", "shape"};

}  // namespace

extern const StoredMaskLayout kFlashmask;
const StoredMaskLayout kFlashmask{.name = "flashmask",
                                  .arrays = kFlashmaskArrays,
                                  .is_of = is_flashmask,
                                  .rule = rule_of_rows,
                                  .written_as = MaskLayout::flashmask,
                                  .write = write_flashmask};

}  // namespace ejk::blocks
