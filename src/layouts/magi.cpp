// Layout of MagiAttention: rectangles of queries and keys (slices), each full or cut by diagonals.
//
// Slice n has queries q_ranges[n] and keys k_ranges[n]. Types of attn_type_map: 0 full; 1 causal, the last query
// sees the last key and each query before it one key less; 2 inverse causal, the first query sees the first key
// and each query after it one key less; 3 both. Without attn_type_map all are full. A kernel adds up its slices,
// so that no pair may be in two of them. Written are slices of as many queries as possible, from first to last.
// Source: MagiAttention functional/flex_flash_attn.py (make_attn_mask_from_ffa_args).
// tests: tests/layouts/test_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/checked.hpp"
#include "layouts/layouts.hpp"
#include "layouts/writing.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

enum SliceType : std::int32_t { kFullSlice = 0, kCausal = 1, kInverse = 2 };  // bits

struct Slice {
  IndexRange q, k;
  std::int32_t type = kFullSlice;

  /// The keys of a query of the slice; empty where begin ≥ end.
  IndexRange keys(std::int64_t query) const {
    return {k.begin + ((type & kInverse) != 0 ? query - q.begin : 0),
            k.end - ((type & kCausal) != 0 ? q.end - 1 - query : 0)};
  }
  bool operator==(const Slice& o) const {
    return q.begin == o.q.begin && q.end == o.q.end && k.begin == o.k.begin && k.end == o.k.end &&
           type == o.type;
  }
};

// Whether a query of both has a key in both: ends are linear, so a begin stays below an end in a range of
// queries.
bool overlap(const Slice& a, const Slice& b) {
  std::int64_t first = std::max(a.q.begin, b.q.begin), last = std::min(a.q.end, b.q.end) - 1;
  const auto restrict = [&](const Slice& begins, const Slice& ends) {
    if (first > last) return;
    const auto gap = [&](std::int64_t query) { return ends.keys(query).end - begins.keys(query).begin; };
    const std::int64_t slope = ((ends.type & kCausal) != 0) - ((begins.type & kInverse) != 0);
    const std::int64_t missing = 1 - gap(slope < 0 ? last : first);  // queries until the gap is 1
    if (slope == 0 && missing > 0) last = first - 1;
    if (slope > 0) first += std::max<std::int64_t>(0, missing);
    if (slope < 0) last -= std::max<std::int64_t>(0, missing);
  };
  for (const Slice* begins : {&a, &b})
    for (const Slice* ends : {&a, &b}) restrict(*begins, *ends);
  return first <= last;
}

// --- reading

class SlicesMask final : public MaskNode {
 public:
  SlicesMask(std::int64_t q_length, std::int64_t kv_length, std::vector<Slice> slices, std::string text)
      : MaskNode(q_length, kv_length), slices_(std::move(slices)), text_(std::move(text)) {
    std::stable_sort(slices_.begin(), slices_.end(),
                     [](const Slice& a, const Slice& b) { return a.q.begin < b.q.begin; });
    for (const Slice& slice : slices_)
      reach_.push_back(std::max(reach_.empty() ? 0 : reach_.back(), slice.q.end));
  }

  std::string text() const override { return text_; }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    return queries.begin >= queries.end || slices_ == static_cast<const SlicesMask&>(other).slices_;
  }
  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    for (std::int64_t r = 0; r < where.rows(); ++r)
      std::fill(out.row(r), out.row(r) + words_for(out.columns), Word{0});
    for_each({where.q_begin, where.q_end}, [&](const Slice& slice) {
      for (std::int64_t q = std::max(slice.q.begin, where.q_begin); q < std::min(slice.q.end, where.q_end);
           ++q) {
        const IndexRange keys = slice.keys(q);
        set_bits(out.row(q - where.q_begin), std::max(keys.begin, where.k_begin) - where.k_begin,
                 std::min(keys.end, where.k_end) - where.k_begin);
      }
    });
  }

  /// The slices that have a query of a range.
  template <class F>
  void for_each(IndexRange queries, F&& f) const {
    auto at = std::upper_bound(reach_.begin(), reach_.end(), queries.begin) - reach_.begin();
    for (; at < std::ssize(slices_) && slices_[static_cast<std::size_t>(at)].q.begin < queries.end; ++at)
      if (slices_[static_cast<std::size_t>(at)].q.end > queries.begin)
        f(slices_[static_cast<std::size_t>(at)]);
  }

 private:
  std::vector<Slice> slices_;        // by first query
  std::vector<std::int64_t> reach_;  // of these and those before: the largest end
  std::string text_;
};

class SlicesClassifier final : public BlockClassifier {
 public:
  SlicesClassifier(const SlicesMask& mask, std::int64_t kv_block) : mask_(mask), kv_block_(kv_block) {}

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    std::int64_t begin = INT64_MAX, end = 0;
    mask_.for_each({q_begin, q_end}, [&](const Slice& slice) {
      const IndexRange keys = keys_of(slice, q_begin, q_end).any;
      if (keys.begin >= keys.end) return;
      begin = std::min(begin, keys.begin), end = std::max(end, keys.end);
    });
    return begin < end ? IndexRange{begin / kv_block_, core::ceil_div(end, kv_block_)} : IndexRange{};
  }

  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange blocks, BlockState* out) const override {
    std::fill(out, out + blocks.count(), BlockState::empty);
    mask_.for_each({q_begin, q_end}, [&](const Slice& slice) {
      const auto [any, all] = keys_of(slice, q_begin, q_end);
      if (any.begin >= any.end) return;
      const std::int64_t first = std::max(blocks.begin, any.begin / kv_block_),
                         last = std::min(blocks.end, core::ceil_div(any.end, kv_block_));
      for (std::int64_t j = first; j < last; ++j) {
        const bool full =
            all.begin <= j * kv_block_ && all.end >= std::min((j + 1) * kv_block_, mask_.kv_length());
        BlockState& state = out[j - blocks.begin];
        if (state != BlockState::full) state = full ? BlockState::full : BlockState::undecided;
      }
    });
  }

 private:
  // Keys that a query of a range sees, and keys that each query of it sees.
  struct Keys {
    IndexRange any, all;
  };
  static Keys keys_of(const Slice& slice, std::int64_t q_begin, std::int64_t q_end) {
    const std::int64_t first = std::max(q_begin, slice.q.begin), last = std::min(q_end, slice.q.end) - 1;
    const IndexRange a = slice.keys(first), b = slice.keys(last);
    const bool has_all = slice.q.begin <= q_begin && slice.q.end >= q_end;
    return {{a.begin, b.end}, has_all ? IndexRange{b.begin, a.end} : IndexRange{}};
  }

  const SlicesMask& mask_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> SlicesMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<SlicesClassifier>(*this, kv_block);
}

class MagiRule final : public PairRule {
 public:
  MagiRule(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    const StoredSettings set = settings_of(group, given);
    q_ranges_ = read_index(group, "q_ranges", 2);
    k_ranges_ = read_index(group, "k_ranges", 2);
    types_ = read_index(group, "attn_type_map", 1, false);
    for (const IndexArray* ranges : {&q_ranges_, &k_ranges_})
      if (ranges->shape()[1] != 2 || ranges->shape()[0] != q_ranges_.shape()[0])
        throw wrong(ranges->name, "{} has the shape {}; it is (slices, 2), and q_ranges has {} slices",
                    ranges->source->name(), to_string(ranges->shape()), q_ranges_.shape()[0]);
    if (types_ && types_.size() != q_ranges_.shape()[0])
      throw wrong(types_.name, "{} has {} elements for {} slices", types_.source->name(), types_.size(),
                  q_ranges_.shape()[0]);
    shape = {1, 0, 0};
    if (set.shape) shape = shape_in(*set.shape);
    indices = {&q_ranges_, &k_ranges_};
    if (types_) indices.push_back(&types_);
  }

  void check(std::int64_t q_length, std::int64_t kv_length, const ArrayWalk& to) const override {
    std::vector<std::int64_t> sound;
    for (std::int64_t n = 0; n < q_ranges_.shape()[0]; ++n) {
      for (const auto& [ranges, length, what] :
           {std::tuple{&q_ranges_, q_length, "queries"}, std::tuple{&k_ranges_, kv_length, "keys"}}) {
        const std::int64_t begin = (*ranges)[2 * n], end = (*ranges)[2 * n + 1];
        const bool is_begin = begin < 0 || begin > length;
        if (!is_begin && end >= begin && end <= length) continue;
        to.fault("range", {ranges->name, 2 * n + !is_begin}, is_begin ? begin : end,
                 !is_begin && end < begin ? fmt::format("the range begins at {}", begin)
                                          : fmt::format("there are {} {}", length, what));
      }
      if (types_ && (types_[n] < 0 || types_[n] > 3))
        to.fault("state", {types_.name, n}, types_[n], "a slice is of type 0, 1, 2 or 3");
      if (is_sound(n, q_length, kv_length)) sound.push_back(n);
    }
    check_overlaps(std::move(sound), to);
  }

  Mask mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t) const override {
    std::vector<Slice> slices;
    for (std::int64_t n = 0; n < q_ranges_.shape()[0]; ++n)
      if (is_sound(n, q_length, kv_length)) slices.push_back(slice(n));
    return Mask(
        std::make_shared<SlicesMask>(q_length, kv_length, std::move(slices), fmt::format("from({})", name)));
  }

  std::pair<const char*, Shape> place(std::int64_t, std::int64_t q, std::int64_t k) const override {
    for (std::int64_t n = 0; n < q_ranges_.shape()[0]; ++n) {
      const Slice of = slice(n);
      if (q < of.q.begin || q >= of.q.end || !is_sound(n, kLongestMask, kLongestMask)) continue;
      const IndexRange keys = of.keys(q);
      if (k >= keys.begin && k < keys.end) return {k_ranges_.name, {n, 1}};
    }
    return {q_ranges_.name, {}};
  }

 private:
  bool is_sound(std::int64_t n, std::int64_t q_length, std::int64_t kv_length) const {
    const auto within = [&](const IndexArray& ranges, std::int64_t length) {
      return ranges[2 * n] >= 0 && ranges[2 * n] <= ranges[2 * n + 1] && ranges[2 * n + 1] <= length;
    };
    return within(q_ranges_, q_length) && within(k_ranges_, kv_length) &&
           (!types_ || (types_[n] >= 0 && types_[n] <= 3));
  }

  Slice slice(std::int64_t n) const {
    return {{q_ranges_[2 * n], q_ranges_[2 * n + 1]},
            {k_ranges_[2 * n], k_ranges_[2 * n + 1]},
            types_ ? static_cast<std::int32_t>(types_[n]) : kFullSlice};
  }

  // A sweep over the queries, with the keys of the slices there, which are disjoint but for reported ones.
  void check_overlaps(std::vector<std::int64_t> order, const ArrayWalk& to) const {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return q_ranges_[2 * a] < q_ranges_[2 * b]; });
    std::multimap<std::int64_t, std::int64_t> here;  // first key, slice
    std::int64_t longest = 0;                        // keys of a slice
    for (const std::int64_t n : order) {
      const Slice own = slice(n);
      if (own.q.begin >= own.q.end || own.k.begin >= own.k.end) continue;
      bool is_free = true;
      for (auto at = here.lower_bound(own.k.begin - longest);
           is_free && at != here.end() && at->first < own.k.end;) {
        const Slice other = slice(at->second);
        if (other.q.end <= own.q.begin) {
          at = here.erase(at);
          continue;
        }
        if (overlap(own, other)) {
          is_free = false;
          to.fault("twice", {q_ranges_.name, 2 * n}, q_ranges_[2 * n],
                   fmt::format("slices {} and {} have pairs in common", std::min(n, at->second),
                               std::max(n, at->second)));
        }
        ++at;
      }
      if (!is_free) continue;
      here.emplace(own.k.begin, n);
      longest = std::max(longest, own.k.count());
    }
  }

  IndexArray q_ranges_, k_ranges_, types_;
};

bool is_magi(const ArrayGroup& group) { return group.find("q_ranges") || group.find("k_ranges"); }

std::shared_ptr<const PairRule> rule_of_slices(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<MagiRule>(group, settings);
}

// --- writing

// Slices that the next query may extend.
class SliceWriter {
 public:
  /// `table` counts their memory.
  explicit SliceWriter(const mask::PatternTable& table) : table_(table) {}

  void add(std::int64_t query, std::span<const IndexRange> ranges) {
    std::vector<Open> next;
    std::vector<bool> is_extended(open_.size());
    std::size_t from = 0;
    for (const IndexRange& range : ranges) {
      // Both are disjoint and in the order of their keys, so that one slice at most begins where it can grow.
      while (from < open_.size() && open_[from].last.begin + 1 < range.begin) ++from;
      if (from == open_.size() || !extends(open_[from], range)) {
        next.push_back({{{query, query + 1}, range, kFullSlice}, range});
        continue;
      }
      is_extended[from] = true;
      Open grown = open_[from++];
      if (grown.slice.q.count() == 1)
        grown.slice.type =
            (range.end > grown.last.end ? kCausal : 0) | (range.begin > grown.last.begin ? kInverse : 0);
      grown.slice.q.end = query + 1;
      grown.slice.k.end = range.end;
      grown.last = range;
      next.push_back(grown);
    }
    for (std::size_t n = 0; n < open_.size(); ++n)
      if (!is_extended[n]) slices_.push_back(open_[n].slice);
    open_ = std::move(next);
    count_memory();
  }

  std::vector<Slice> finish() && {
    for (const Open& open : open_) slices_.push_back(open.slice);
    std::sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) {
      return std::pair(a.q.begin, a.k.begin) < std::pair(b.q.begin, b.k.begin);
    });
    return std::move(slices_);
  }

 private:
  struct Open {
    Slice slice;
    IndexRange last;  // of the last query
  };
  // A vector that grows is copied; open slices of two queries are there at once.
  void count_memory() {
    const std::int64_t bytes = static_cast<std::int64_t>(2 * sizeof(Slice)) * std::ssize(slices_) +
                               static_cast<std::int64_t>(4 * sizeof(Open)) * std::ssize(open_);
    if (bytes <= counted_) return;
    table_.count_bytes(bytes - counted_, Error::Code::too_many_slices);
    counted_ = bytes;
  }
  static bool extends(const Open& open, IndexRange range) {
    const std::int64_t begin = range.begin - open.last.begin, end = range.end - open.last.end;
    if (begin < 0 || begin > 1 || end < 0 || end > 1) return false;
    const std::int32_t type =
        static_cast<std::int32_t>((end == 1 ? kCausal : 0) | (begin == 1 ? kInverse : 0));
    return open.slice.q.count() == 1 || type == open.slice.type;
  }

  const mask::PatternTable& table_;
  std::int64_t counted_ = 0;  // bytes
  std::vector<Open> open_;
  std::vector<Slice> slices_;
};

void write_magi(const MaskScans& scans, ArraysMade& to) {
  SliceWriter writer(*scans.table);
  for_each_line(scans, scans.of_all_heads(), Lines::queries,
                [&](std::int64_t query, std::span<const IndexRange> ranges) { writer.add(query, ranges); });
  const std::vector<Slice> slices = std::move(writer).finish();
  const std::int64_t longest = std::max(scans.q_length(), scans.kv_length());
  Array q = index_array("q_ranges", {std::ssize(slices), 2}, longest),
        k = index_array("k_ranges", {std::ssize(slices), 2}, longest),
        types(DType::int32, {std::ssize(slices)});
  for (std::size_t n = 0; n < slices.size(); ++n) {
    const Slice& slice = slices[n];
    for (auto [array, range] : {std::pair{&q, slice.q}, std::pair{&k, slice.k}}) {
      array->elements<std::int32_t>()[2 * n] = static_cast<std::int32_t>(range.begin);
      array->elements<std::int32_t>()[2 * n + 1] = static_cast<std::int32_t>(range.end);
    }
    types.elements<std::int32_t>()[n] = slice.type;
  }
  to.add("q_ranges", std::move(q));
  to.add("k_ranges", std::move(k));
  to.add("attn_type_map", std::move(types));
  to.add("shape", {scans.q_length(), scans.kv_length()}, {2});
}

constexpr const char* kMagiArrays[] = {"q_ranges", "k_ranges", "attn_type_map", "shape"};

}  // namespace

extern const StoredMaskLayout kMagi;
const StoredMaskLayout kMagi{.name = "magi",
                             .arrays = kMagiArrays,
                             .is_of = is_magi,
                             .rule = rule_of_slices,
                             .written_as = MaskLayout::magi,
                             .write = write_magi};

}  // namespace ejk::blocks
