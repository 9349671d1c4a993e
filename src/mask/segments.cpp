// Segment masks: a query attends to the keys with its id.
//
// The state of a block follows from the ranges of positive ids of its queries and its keys: empty if they are
// disjoint, full if both are one and the same id without padding. Ascending ids, as of packed sequences, have
// one contiguous range of keys each.
// tests: tests/mask/test_mask.cpp
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "kernels/kernels.hpp"
#include "mask/labels.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace {

using namespace mask;

using Labels = std::vector<std::int32_t>;  // labels: 0 is padding

// Range of the positive ids, and whether there is padding. No positive id: low > high.
struct IdRange {
  std::int32_t low = INT32_MAX;
  std::int32_t high = 0;
  bool padding = false;

  void add(const std::int32_t* ids, std::int64_t n) {
    std::int32_t least = INT32_MAX, most = 0;
    bool zero = false;
    for (std::int64_t i = 0; i < n; ++i) {
      least = std::min(least, ids[i] > 0 ? ids[i] : INT32_MAX);
      most = std::max(most, ids[i]);
      zero |= ids[i] == 0;
    }
    low = least, high = most, padding = zero;
  }
};

class SegmentsMask final : public MaskNode {
 public:
  SegmentsMask(std::shared_ptr<const Labels> q_ids, std::shared_ptr<const Labels> kv_ids, std::string text)
      : MaskNode(static_cast<std::int64_t>(q_ids->size()), static_cast<std::int64_t>(kv_ids->size())),
        q_ids_(std::move(q_ids)),
        kv_ids_(std::move(kv_ids)),
        text_(std::move(text)) {
    if (!ascends(*q_ids_) || !ascends(*kv_ids_)) return;
    runs_.emplace();
    for (std::int64_t k = 0; k < kv_length(); ++k) {
      const std::int32_t id = (*kv_ids_)[static_cast<std::size_t>(k)];
      if (id == 0) continue;
      if (runs_->empty() || runs_->back().id != id) runs_->push_back({id, {k, k}});
      runs_->back().keys.end = k + 1;
    }
  }

  const Labels& q_ids() const { return *q_ids_; }
  const Labels& kv_ids() const { return *kv_ids_; }

  std::string text() const override { return text_; }
  bool same_as(const MaskNode& other, IndexRange) const override {
    const auto& o = static_cast<const SegmentsMask&>(other);
    return q_ids() == o.q_ids() && kv_ids() == o.kv_ids();
  }
  std::vector<NearbyMask> nearby() const override;

  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  std::int64_t bands() const override { return runs_ ? 1 : 0; }
  void band(std::int64_t, IndexRange queries, IndexRange* out) const override {
    std::int32_t last = 0;  // a padding query attends to no key, after those of the previous query
    IndexRange keys{0, 0};
    for (std::int64_t q = queries.begin; q < queries.end; ++q) {
      const std::int32_t id = q_ids()[static_cast<std::size_t>(q)];
      if (id == 0) {
        keys.begin = keys.end;
      } else if (id != last || keys.begin == keys.end) {
        const auto run = std::lower_bound(runs_->begin(), runs_->end(), id,
                                          [](const Run& r, std::int32_t wanted) { return r.id < wanted; });
        const std::int64_t next = run == runs_->end() ? kv_length() : run->keys.begin;
        keys = run != runs_->end() && run->id == id ? run->keys : IndexRange{next, next};
      }
      last = id;
      *out++ = keys;
    }
  }

  void fill(const Rectangle& where, const BitRows& out) const override {
    const kernels::Kernels& kernel = kernels::active();
    const std::int32_t* keys = kv_ids().data() + where.k_begin;
    for (std::int64_t r = 0; r < out.rows; ++r) {
      const std::int32_t id = q_ids()[static_cast<std::size_t>(where.q_begin + r)];
      Word* row = out.row(r);
      if (r > 0 && id == q_ids()[static_cast<std::size_t>(where.q_begin + r - 1)])
        std::copy(row - out.row_words, row, row);
      else if (id == 0)
        std::fill(row, row + out.row_words, Word{0});
      else
        kernel.equal_bits_32(keys, out.columns, id, row);
    }
  }

 private:
  struct Run {
    std::int32_t id;
    IndexRange keys;
  };
  // Whether ids ascend, each in one range; padding may be between them.
  static bool ascends(const Labels& ids) {
    std::int32_t most = 0, before = 0;
    for (const std::int32_t id : ids) {
      if (id != 0 && id != before && id <= most) return false;
      most = std::max(most, id), before = id;
    }
    return true;
  }

  std::shared_ptr<const Labels> q_ids_, kv_ids_;
  std::string text_;
  std::optional<std::vector<Run>> runs_;  // of keys, if the ids of keys and queries ascend
};

std::vector<NearbyMask> SegmentsMask::nearby() const {
  const auto mask_of = [&](auto&& q, auto&& kv) {
    const auto mapped = [](const Labels& ids, auto&& f) {
      auto out = std::make_shared<Labels>(ids);
      for (std::int32_t& id : *out) id = f(id);
      return out;
    };
    return Mask(std::make_shared<SegmentsMask>(mapped(q_ids(), q), mapped(kv_ids(), kv), text_));
  };
  const auto one = [](std::int32_t) { return 1; };
  const auto token = [](std::int32_t id) { return id > 0 ? 1 : 0; };
  const auto padding = [](std::int32_t id) { return id > 0 ? 0 : 1; };
  const auto any = [](std::int32_t id) { return id + 1; };
  const Mask self = mask_of([](std::int32_t id) { return id; }, [](std::int32_t id) { return id; });
  return {{"padding is taken for a segment of its own", mask_of(any, any)},
          {"keys of padding are seen by all queries", self | mask_of(one, padding)},
          {"segments are ignored, padding is not", mask_of(token, token)},
          {"segments are ignored, padding keys are not", mask_of(one, token)}};
}

class SegmentsClassifier final : public BlockClassifier {
 public:
  SegmentsClassifier(const SegmentsMask& mask, std::int64_t kv_block) : mask_(mask) {
    const std::int64_t keys = mask.kv_length();
    ranges_.resize(static_cast<std::size_t>(core::ceil_div(keys, kv_block)));
    for (std::size_t j = 0; j < ranges_.size(); ++j) {
      const std::int64_t begin = static_cast<std::int64_t>(j) * kv_block;
      ranges_[j].add(mask.kv_ids().data() + begin, std::min(kv_block, keys - begin));
    }
    // The least id from here on, and the largest up to here, both monotone.
    high_.resize(ranges_.size()), low_.resize(ranges_.size());
    for (std::size_t j = 0; j < ranges_.size(); ++j)
      high_[j] = std::max(ranges_[j].high, j > 0 ? high_[j - 1] : 0);
    for (std::size_t j = ranges_.size(); j-- > 0;)
      low_[j] = std::min(ranges_[j].low, j + 1 < ranges_.size() ? low_[j + 1] : INT32_MAX);
  }

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    IdRange q;
    q.add(mask_.q_ids().data() + q_begin, q_end - q_begin);
    const auto begin = std::lower_bound(high_.begin(), high_.end(), q.low) - high_.begin(),
               end = std::upper_bound(low_.begin(), low_.end(), q.high) - low_.begin();
    return begin < end ? IndexRange{begin, end} : IndexRange{};
  }

  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                BlockState* out) const override {
    IdRange q;
    q.add(mask_.q_ids().data() + q_begin, q_end - q_begin);
    const bool single = q.low == q.high && !q.padding;
    for (std::int64_t j = columns.begin; j < columns.end; ++j) {
      const IdRange& k = ranges_[static_cast<std::size_t>(j)];
      *out++ = k.low > q.high || k.high < q.low                            ? BlockState::empty
               : single && k.low == q.low && k.high == q.low && !k.padding ? BlockState::full
                                                                           : BlockState::undecided;
    }
  }

 private:
  const SegmentsMask& mask_;
  std::vector<IdRange> ranges_;
  std::vector<std::int32_t> high_, low_;
};

std::unique_ptr<BlockClassifier> SegmentsMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<SegmentsClassifier>(*this, kv_block);
}

}  // namespace

Mask segments_mask(const IntegerArray& q_ids, const IntegerArray& kv_ids) {
  auto q = std::make_shared<Labels>(), kv = std::make_shared<Labels>();
  to_labels(core::read_integers(q_ids, "segment ids"), core::read_integers(kv_ids, "segment ids"), *q, *kv);
  if (*q == *kv) kv = q;
  const std::string text = q_ids->name() == kv_ids->name()
                               ? fmt::format("segments({})", q_ids->name())
                               : fmt::format("segments({},{})", q_ids->name(), kv_ids->name());
  return Mask(std::make_shared<SegmentsMask>(std::move(q), std::move(kv), text));
}

}  // namespace ejk
