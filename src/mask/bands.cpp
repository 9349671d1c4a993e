// Band masks: full, causal, local, chunked, prefix, documents. Query q attends to one interval of keys
// [first(q), last(q)] whose ends never decrease with q, and neighbouring intervals overlap or touch. So the
// first and last query of a block determine its state: full if both attend to all of its keys, empty if it
// does not intersect the union of the intervals, else partial.
// tests: tests/mask/test_mask.cpp
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace {

using namespace mask;

// Ends of intervals are added exactly, then clamped: values above the longest length, 2^48, are equivalent.
__extension__ using Exact = __int128;
constexpr std::int64_t kFar = std::int64_t{1} << 60;
std::int64_t bounded(Exact key) { return static_cast<std::int64_t>(std::clamp<Exact>(key, -kFar, kFar)); }

class BandMask : public MaskNode {
 public:
  using MaskNode::MaskNode;

  /// The interval of keys of query q, ends included; may exceed the mask.
  virtual std::int64_t first(std::int64_t q) const = 0;
  virtual std::int64_t last(std::int64_t q) const = 0;

  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    for (std::int64_t r = 0; r < out.rows; ++r) {
      std::fill_n(out.row(r), out.row_words, Word{0});
      const std::int64_t begin = std::max(first(where.q_begin + r), where.k_begin);
      const std::int64_t end = std::min(last(where.q_begin + r) + 1, where.k_end);
      set_bits(out.row(r), begin - where.k_begin, end - where.k_begin);
    }
  }

  std::int64_t bands() const override { return 1; }
  void band(std::int64_t, IndexRange queries, IndexRange* out) const override {
    for (std::int64_t q = queries.begin; q < queries.end; ++q) *out++ = {first(q), last(q) + 1};
  }
};

class BandClassifier final : public BlockClassifier {
 public:
  BandClassifier(const BandMask& band, std::int64_t kv_block) : band_(band), kv_block_(kv_block) {}

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    const std::int64_t seen = cut(band_.first(q_begin)), seen_end = cut(band_.last(q_end - 1) + 1);
    if (seen >= seen_end) return {};
    return {seen / kv_block_, core::ceil_div(seen_end, kv_block_)};
  }

  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                BlockState* out) const override {
    std::fill(out, out + columns.count(), BlockState::empty);
    const auto fill = [&](std::int64_t begin, std::int64_t end, BlockState state) {
      begin = std::max(begin, columns.begin), end = std::min(end, columns.end);
      if (begin < end) std::fill(out + begin - columns.begin, out + end - columns.begin, state);
    };
    const auto [first, last] = run(q_begin, q_end);
    if (first >= last) return;
    fill(first, last, BlockState::partial);
    const std::int64_t keys = band_.kv_length();
    const std::int64_t common = cut(band_.first(q_end - 1)), common_end = cut(band_.last(q_begin) + 1);
    fill(core::ceil_div(common, kv_block_),
         common_end == keys ? core::ceil_div(keys, kv_block_) : common_end / kv_block_, BlockState::full);
  }

 private:
  std::int64_t cut(std::int64_t key) const { return std::clamp<std::int64_t>(key, 0, band_.kv_length()); }

  const BandMask& band_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> BandMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<BandClassifier>(*this, kv_block);
}

template <class F>
bool in_each(std::span<const Rectangle> where, F&& f) {
  return std::all_of(where.begin(), where.end(), f);
}

// The other way to align queries and keys that differ in number.
template <class At>
void add_alignments(const MaskNode& node, std::int64_t offset, At&& at, std::vector<NearbyMask>& all) {
  const std::int64_t bottom_right = node.kv_length() - node.q_length();
  if (bottom_right == 0) return;
  if (offset != 0) all.push_back({"queries and keys are aligned at the top left", at(0)});
  if (offset != bottom_right)
    all.push_back({"queries and keys are aligned at the bottom right", at(bottom_right)});
}

class FullMask final : public BandMask {
 public:
  using BandMask::BandMask;
  std::int64_t first(std::int64_t) const override { return 0; }
  std::int64_t last(std::int64_t) const override { return kFar; }
  bool same_as(const MaskNode&, IndexRange) const override { return true; }
  std::string text() const override { return "full"; }
};

class CausalMask final : public BandMask {
 public:
  CausalMask(std::int64_t q_length, std::int64_t kv_length, std::int64_t offset)
      : BandMask(q_length, kv_length), offset_(offset) {}
  std::int64_t first(std::int64_t) const override { return -kFar; }
  std::int64_t last(std::int64_t q) const override { return bounded(Exact{q} + offset_); }
  bool is_computable() const override { return true; }
  bool same_as(const MaskNode& other, IndexRange) const override {
    return offset_ == static_cast<const CausalMask&>(other).offset_;
  }
  void add_offsets(std::set<std::int64_t>& offsets) const override { offsets.insert(offset_); }
  std::optional<Pattern> pattern() const override { return Pattern{.right = 0, .offset = offset_}; }
  std::string text() const override {
    return offset_ == 0 ? "causal" : fmt::format("causal(offset={})", offset_);
  }
  std::vector<NearbyMask> nearby() const override {
    const auto at = [&](std::int64_t offset) { return causal_mask(q_length(), kv_length(), offset); };
    std::vector<NearbyMask> all{{"the causal edge is one key too far", at(offset_ + 1)},
                                {"the causal edge is one key short", at(offset_ - 1)}};
    add_alignments(*this, offset_, at, all);
    return all;
  }

 private:
  std::int64_t offset_;
};

class PrefixMask final : public BandMask {
 public:
  PrefixMask(std::int64_t q_length, std::int64_t kv_length, std::int64_t keys)
      : BandMask(q_length, kv_length), keys_(keys) {}
  std::int64_t first(std::int64_t) const override { return 0; }
  std::int64_t last(std::int64_t) const override { return keys_ - 1; }
  bool same_as(const MaskNode& other, IndexRange) const override {
    return keys_ == static_cast<const PrefixMask&>(other).keys_;
  }
  std::string text() const override { return fmt::format("prefix({})", keys_); }
  void add_bounds(std::span<const Rectangle> where, std::vector<MaskBound>& bounds) const override {
    bounds.push_back({fmt::format("keys={}", keys_),
                      in_each(where, [&](const Rectangle& r) { return r.k_end <= keys_; })});
  }
  std::vector<NearbyMask> nearby() const override {
    const auto of = [&](std::int64_t keys) { return prefix_mask(q_length(), kv_length(), keys); };
    std::vector<NearbyMask> all{{"the prefix is one key longer", of(keys_ + 1)}};
    if (keys_ > 0) all.push_back({"the prefix is one key shorter", of(keys_ - 1)});
    return all;
  }

 private:
  std::int64_t keys_;
};

class LocalMask final : public BandMask {
 public:
  LocalMask(std::int64_t q_length, std::int64_t kv_length, std::optional<std::int64_t> left,
            std::optional<std::int64_t> right, std::int64_t offset)
      : BandMask(q_length, kv_length), left_(left), right_(right), offset_(offset) {}
  std::int64_t first(std::int64_t q) const override {
    return left_ ? bounded(Exact{q} + offset_ - *left_) : -kFar;
  }
  std::int64_t last(std::int64_t q) const override {
    return right_ ? bounded(Exact{q} + offset_ + *right_) : kFar;
  }
  bool is_computable() const override { return true; }
  bool same_as(const MaskNode& other, IndexRange) const override {
    const auto& o = static_cast<const LocalMask&>(other);
    return left_ == o.left_ && right_ == o.right_ && offset_ == o.offset_;
  }
  void add_offsets(std::set<std::int64_t>& offsets) const override { offsets.insert(offset_); }
  std::optional<Pattern> pattern() const override { return Pattern{left_, right_, offset_}; }
  std::string text() const override {
    const auto side = [](const std::optional<std::int64_t>& n) { return n ? fmt::format("{}", *n) : "none"; };
    return fmt::format("local(left={},right={}{})", side(left_), side(right_),
                       offset_ == 0 ? "" : fmt::format(",offset={}", offset_));
  }
  // No key is before the window of the last query, or after that of the first one.
  void add_bounds(std::span<const Rectangle> where, std::vector<MaskBound>& bounds) const override {
    const auto left = [&](const Rectangle& r) { return first(r.q_end - 1) <= r.k_begin; };
    const auto right = [&](const Rectangle& r) { return last(r.q_begin) >= r.k_end - 1; };
    if (left_) bounds.push_back({fmt::format("left={}", *left_), in_each(where, left)});
    if (right_.value_or(0) > 0) bounds.push_back({fmt::format("right={}", *right_), in_each(where, right)});
  }
  std::vector<NearbyMask> nearby() const override;

 private:
  std::optional<std::int64_t> left_, right_;
  std::int64_t offset_;
};

std::vector<NearbyMask> LocalMask::nearby() const {
  using Side = std::optional<std::int64_t>;
  std::vector<NearbyMask> all;
  const auto add = [&](const char* text, Side left, Side right, std::int64_t offset) {
    if ((left && *left < 0) || (right && *right < 0)) return;
    all.push_back({text, local_mask(q_length(), kv_length(), left, right, offset)});
  };
  const auto more = [](const Side& side, std::int64_t by) { return side ? Side(*side + by) : side; };
  if (left_) {
    add("the window is one key longer at the left", more(left_, 1), right_, offset_);
    add("the window is one key shorter at the left", more(left_, -1), right_, offset_);
  }
  if (right_) {
    add("the window is one key longer at the right", left_, more(right_, 1), offset_);
    add("the window is one key shorter at the right", left_, more(right_, -1), offset_);
  }
  if (left_ && right_) {
    add("the window is one key longer at both ends", more(left_, 1), more(right_, 1), offset_);
    add("the window is one key shorter at both ends", more(left_, -1), more(right_, -1), offset_);
    add("the window is one key too far to the right", left_, right_, offset_ + 1);
    add("the window is one key too far to the left", left_, right_, offset_ - 1);
    add("the window has no left edge", std::nullopt, right_, offset_);
    add("the window has no right edge", left_, std::nullopt, offset_);
    add("the window's sides are exchanged", right_, left_, offset_);
  }
  if (left_ && right_.value_or(0) == 0 && *left_ < kLongestMask)
    all.push_back({"the window is chunks, which do not move with the query",
                   chunked_mask(q_length(), kv_length(), *left_ + 1, offset_)});
  add_alignments(
      *this, offset_,
      [&](std::int64_t offset) { return local_mask(q_length(), kv_length(), left_, right_, offset); }, all);
  return all;
}

class ChunkedMask final : public BandMask {
 public:
  ChunkedMask(std::int64_t q_length, std::int64_t kv_length, std::int64_t chunk, std::int64_t offset)
      : BandMask(q_length, kv_length), chunk_(chunk), offset_(offset) {}
  std::int64_t first(std::int64_t q) const override { return bounded(chunk_of(q) * chunk_); }
  std::int64_t last(std::int64_t q) const override { return bounded(Exact{q} + offset_); }
  // JAX's ChunkedCausalMask, which a kernel evaluates from positions, has no offset.
  bool is_computable() const override { return offset_ == 0; }
  bool same_as(const MaskNode& other, IndexRange) const override {
    const auto& o = static_cast<const ChunkedMask&>(other);
    return chunk_ == o.chunk_ && offset_ == o.offset_;
  }
  void add_offsets(std::set<std::int64_t>& offsets) const override { offsets.insert(offset_); }
  std::optional<Pattern> pattern() const override {
    return Pattern{.right = 0, .offset = offset_, .chunk = chunk_};
  }
  std::string text() const override {
    return offset_ == 0 ? fmt::format("chunked({})", chunk_)
                        : fmt::format("chunked({},offset={})", chunk_, offset_);
  }
  // No key is in a chunk before that of the last query.
  void add_bounds(std::span<const Rectangle> where, std::vector<MaskBound>& bounds) const override {
    const auto is_one = [&](const Rectangle& r) { return first(r.q_end - 1) <= r.k_begin; };
    bounds.push_back({fmt::format("size={}", chunk_), in_each(where, is_one)});
  }
  std::vector<NearbyMask> nearby() const override;

 private:
  // The chunk of keys of query q; negative before all keys.
  Exact chunk_of(std::int64_t q) const {
    const Exact at = Exact{q} + offset_;
    return at >= 0 ? at / chunk_ : (at + 1) / chunk_ - 1;
  }

  std::int64_t chunk_, offset_;
};

std::vector<NearbyMask> ChunkedMask::nearby() const {
  const auto at = [&](std::int64_t offset) { return chunked_mask(q_length(), kv_length(), chunk_, offset); };
  std::vector<std::int64_t> queries, keys;  // the chunk of each, from 1 on
  for (std::int64_t q = 0; q < q_length(); ++q) queries.push_back(bounded(chunk_of(q) + 1));
  for (std::int64_t k = 0; k < kv_length(); ++k) keys.push_back(k / chunk_ + 1);
  std::vector<NearbyMask> all{
      {"chunks are ignored: it is causal alone", causal_mask(q_length(), kv_length(), offset_)},
      {"chunks are not causal", segments_mask(queries, keys)},
      {"chunks are a window that moves with the query",
       local_mask(q_length(), kv_length(), chunk_ - 1, 0, offset_)}};
  add_alignments(*this, offset_, at, all);
  return all;
}

class DocumentsMask final : public BandMask {
 public:
  DocumentsMask(std::vector<std::int64_t> offsets, std::string name)
      : BandMask(offsets.back(), offsets.back()), offsets_(std::move(offsets)), name_(std::move(name)) {}

  std::int64_t first(std::int64_t q) const override { return offsets_[document_of(q)]; }
  std::int64_t last(std::int64_t q) const override { return offsets_[document_of(q) + 1] - 1; }
  bool same_as(const MaskNode& other, IndexRange) const override {
    return offsets_ == static_cast<const DocumentsMask&>(other).offsets_;
  }
  std::vector<std::int64_t> documents() const override { return offsets_; }
  std::string text() const override { return fmt::format("documents({})", name_); }
  void narrow(std::vector<Rectangle>& where) const override {
    std::vector<Rectangle> left;
    for (const Rectangle& r : where)
      for (std::size_t d = document_of(std::max(r.q_begin, r.k_begin));
           d + 1 < offsets_.size() && offsets_[d] < std::min(r.q_end, r.k_end); ++d) {
        const std::int64_t begin = offsets_[d], end = offsets_[d + 1];
        left.push_back({std::max(r.q_begin, begin), std::min(r.q_end, end), std::max(r.k_begin, begin),
                        std::min(r.k_end, end)});
      }
    where = std::move(left);
  }
  std::vector<NearbyMask> nearby() const override {
    std::vector<NearbyMask> all;
    for (const std::int64_t by : {1, -1}) {
      std::vector<std::int64_t> moved = offsets_;
      for (std::size_t d = 1; d + 1 < moved.size(); ++d)
        moved[d] = std::clamp(moved[d] + by, moved[d - 1], offsets_.back());
      all.push_back({by > 0 ? "documents begin one token late" : "documents begin one token early",
                     documents_mask(moved)});
    }
    return all;
  }

  void fill(const Rectangle& where, const BitRows& out) const override {
    std::size_t document = document_of(where.q_begin);
    for (std::int64_t r = 0; r < out.rows; ++r) {
      Word* row = out.row(r);
      if (r > 0 && where.q_begin + r < offsets_[document + 1]) {  // the same document, the same row
        std::copy(row - out.row_words, row, row);
        continue;
      }
      if (r > 0) ++document;
      std::fill(row, row + out.row_words, Word{0});
      set_bits(row, std::max(offsets_[document], where.k_begin) - where.k_begin,
               std::min(offsets_[document + 1], where.k_end) - where.k_begin);
    }
  }

  void band(std::int64_t, IndexRange queries, IndexRange* out) const override {
    std::size_t document = document_of(queries.begin);
    for (std::int64_t q = queries.begin; q < queries.end;) {
      const IndexRange tokens{offsets_[document], offsets_[document + 1]};
      const std::int64_t count = std::min(tokens.end, queries.end) - q;
      out = std::fill_n(out, count, tokens);
      q += count, ++document;
    }
  }

 private:
  std::size_t document_of(std::int64_t q) const {
    return static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), q) - offsets_.begin() -
                                    1);
  }

  std::vector<std::int64_t> offsets_;  // of documents that hold a token
  std::string name_;
};

}  // namespace

Mask full_mask(std::int64_t q_length, std::int64_t kv_length) {
  return Mask(std::make_shared<FullMask>(q_length, kv_length));
}

Mask causal_mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t offset) {
  return Mask(std::make_shared<CausalMask>(q_length, kv_length, offset));
}

Mask local_mask(std::int64_t q_length, std::int64_t kv_length, std::optional<std::int64_t> left,
                std::optional<std::int64_t> right, std::int64_t offset) {
  for (const auto& [side, count] : {std::pair{"left", left}, std::pair{"right", right}})
    if (count && *count < 0)
      throw core::invalid("local: {}={} is not a count of neighbours", side, *count)
          .hint("a window that does not hold the query itself is moved with offset=K");
  return Mask(std::make_shared<LocalMask>(q_length, kv_length, left, right, offset));
}

Mask chunked_mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t chunk, std::int64_t offset) {
  if (chunk < 1) throw core::invalid("chunked: the chunk size {} is not positive", chunk);
  return Mask(std::make_shared<ChunkedMask>(q_length, kv_length, chunk, offset));
}

Mask prefix_mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t keys) {
  if (keys < 0) throw core::invalid("prefix: {} is not a count of keys", keys);
  return Mask(std::make_shared<PrefixMask>(q_length, kv_length, keys));
}

Mask documents_mask(const IntegerArray& cu_seqlens) {
  std::vector<std::int64_t> offsets = core::read_offsets(cu_seqlens);
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  if (offsets.size() == 1)
    throw core::invalid(cu_seqlens->name() + ": cu_seqlens holds no token, so there is no mask");
  return Mask(std::make_shared<DocumentsMask>(std::move(offsets), cu_seqlens->name()));
}

}  // namespace ejk
