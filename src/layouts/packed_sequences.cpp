// Masks of packed sequences between packed and padded positions. A sequence moves as a whole, so that its pairs
// are a rectangle of the other mask. Cost: that of the other mask, and a search for each row of blocks.
// tests: tests/layouts/test_packed_sequences.cpp
#include "layouts/packed_sequences.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/named.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

using namespace mask;

PackedAxis padded_axis(std::vector<std::int64_t> cu, std::int64_t block) {
  PackedAxis axis{std::move(cu), {0}, block};
  for (std::int64_t s = 0; s < axis.count(); ++s) {
    const auto length = core::checked_mul(core::ceil_div(axis.length(s), block), block);
    if (!length || *length > kLongestMask - axis.padded.back())
      throw core::invalid("blocks of {} make more than 2^48 positions of {} sequences", block, axis.count());
    axis.padded.push_back(axis.padded.back() + *length);
  }
  return axis;
}

enum class Positions { packed, padded };

// The mask of one kind of positions, of the one of the other kind.
class MovedMask final : public MaskNode {
 public:
  MovedMask(Mask of, std::shared_ptr<const PackedSequences> sequences, Positions here)
      : MaskNode(begins(sequences->q, here).back(), begins(sequences->kv, here).back()),
        of_(std::move(of)),
        sequences_(std::move(sequences)),
        here_(here) {}

  std::string text() const override { return of_.text(); }
  int binding() const override { return of_.node().binding(); }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    const auto& o = static_cast<const MovedMask&>(other);
    return here_ == o.here_ && sequences_->q.packed == o.sequences_->q.packed &&
           sequences_->kv.packed == o.sequences_->kv.packed && sequences_->q.block == o.sequences_->q.block &&
           sequences_->kv.block == o.sequences_->kv.block &&
           (queries.begin >= queries.end ? mask::same_as(of_, o.of_, {0, 0}) : of_.same_as(o.of_));
  }
  bool random_access() const override { return of_.node().random_access(); }
  std::int64_t stored_bytes() const override { return of_.node().stored_bytes(); }
  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    for (std::int64_t r = 0; r < where.rows(); ++r)
      std::fill(out.row(r), out.row(r) + words_for(out.columns), Word{0});
    BitBuffer buffer;  // not of the thread: the other mask may be of this kind
    for_each({where.q_begin, where.q_end}, [&](const Rectangle& here, const Rectangle& there) {
      const std::int64_t k = std::max(here.k_begin, where.k_begin), k_end = std::min(here.k_end, where.k_end);
      if (k >= k_end) return;
      const BitRows part = buffer.rows(here.rows(), k_end - k);
      const std::int64_t moved = there.k_begin - here.k_begin;
      of_.node().fill({there.q_begin, there.q_end, k + moved, k_end + moved}, part);
      for (std::int64_t r = 0; r < part.rows; ++r)
        put_bits(out.row(here.q_begin - where.q_begin + r), k - where.k_begin, part.row(r), part.columns);
    });
  }

  /// Calls f(here, there) for each sequence with queries of a range: these and all of its keys.
  template <class F>
  void for_each(IndexRange queries, F&& f) const {
    const auto &q = sequences_->q, &kv = sequences_->kv;
    const auto &q_here = begins(q, here_), &kv_here = begins(kv, here_), &q_there = begins(q, other()),
               &kv_there = begins(kv, other());
    auto s = std::upper_bound(q_here.begin(), q_here.end(), queries.begin) - q_here.begin() - 1;
    for (; s < q.count() && q_here[static_cast<std::size_t>(s)] < queries.end; ++s) {
      const auto n = static_cast<std::size_t>(s);
      const std::int64_t begin = std::max(q_here[n], queries.begin),
                         end = std::min(q_here[n] + q.length(s), queries.end), keys = kv.length(s);
      if (begin >= end || keys == 0) continue;
      const std::int64_t moved = q_there[n] - q_here[n];
      f(Rectangle{begin, end, kv_here[n], kv_here[n] + keys},
        Rectangle{begin + moved, end + moved, kv_there[n], kv_there[n] + keys});
    }
  }
  const Mask& of() const { return of_; }

 private:
  static const std::vector<std::int64_t>& begins(const PackedAxis& axis, Positions positions) {
    return positions == Positions::packed ? axis.packed : axis.padded;
  }
  Positions other() const { return here_ == Positions::packed ? Positions::padded : Positions::packed; }

  Mask of_;
  std::shared_ptr<const PackedSequences> sequences_;
  Positions here_;
};

// Blocks of one sequence have the state that the blocks of the other mask have that cover them.
class MovedClassifier final : public BlockClassifier {
 public:
  MovedClassifier(const MovedMask& mask, std::int64_t q_block, std::int64_t kv_block)
      : mask_(mask), of_(mask.of().node().classifier(q_block, kv_block)), kv_block_(kv_block) {}

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    std::int64_t begin = INT64_MAX, end = 0;
    mask_.for_each({q_begin, q_end}, [&](const Rectangle& here, const Rectangle&) {
      begin = std::min(begin, here.k_begin), end = std::max(end, here.k_end);
    });
    return begin < end ? IndexRange{begin / kv_block_, core::ceil_div(end, kv_block_)} : IndexRange{};
  }

  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange blocks, BlockState* out) const override {
    std::fill(out, out + blocks.count(), BlockState::empty);
    std::vector<BlockState> states;
    mask_.for_each({q_begin, q_end}, [&](const Rectangle& here, const Rectangle& there) {
      const IndexRange seen = of_->run(there.q_begin, there.q_end);
      const IndexRange columns{std::max(seen.begin, there.k_begin / kv_block_),
                               std::min(seen.end, core::ceil_div(there.k_end, kv_block_))};
      if (columns.begin >= columns.end) return;
      states.resize(static_cast<std::size_t>(columns.count()));
      of_->classify(there.q_begin, there.q_end, columns, states.data());
      const bool has_queries = here.q_begin == q_begin && here.q_end == q_end;
      const std::int64_t moved = there.k_begin - here.k_begin;
      for (std::int64_t j = std::max(blocks.begin, here.k_begin / kv_block_);
           j < blocks.end && j * kv_block_ < here.k_end; ++j) {
        const std::int64_t k = std::max(j * kv_block_, here.k_begin),
                           end = std::min({(j + 1) * kv_block_, mask_.kv_length(), here.k_end});
        const std::int64_t first = (k + moved) / kv_block_, last = core::ceil_div(end + moved, kv_block_);
        bool any = false;
        bool all = has_queries && k == j * kv_block_ &&
                   end == std::min((j + 1) * kv_block_, mask_.kv_length()) && first >= columns.begin &&
                   last <= columns.end;
        for (std::int64_t c = std::max(first, columns.begin); c < std::min(last, columns.end); ++c) {
          const BlockState state = states[static_cast<std::size_t>(c - columns.begin)];
          any = any || state != BlockState::empty;
          all = all && state == BlockState::full;
        }
        BlockState& state = out[j - blocks.begin];
        if (any) state = all ? BlockState::full : BlockState::undecided;
      }
    });
  }

 private:
  const MovedMask& mask_;
  std::unique_ptr<BlockClassifier> of_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> MovedMask::classifier(std::int64_t q_block, std::int64_t kv_block) const {
  return std::make_unique<MovedClassifier>(*this, q_block, kv_block);
}

}  // namespace

std::int64_t PackedAxis::sequence_of(std::int64_t packed_position) const {
  return std::upper_bound(packed.begin(), packed.end(), packed_position) - packed.begin() - 1;
}

std::int64_t PackedAxis::padded_position(std::int64_t packed_position) const {
  const std::int64_t s = sequence_of(packed_position);
  return at(padded, s) + packed_position - at(packed, s);
}

SequenceOffsets read_sequences(const ArraySource& cu_q, const ArraySource& cu_kv) {
  SequenceOffsets read{core::about("cu_seqlens_q", [&] { return core::read_offsets(cu_q); }),
                       core::about("cu_seqlens_k", [&] { return core::read_offsets(cu_kv); })};
  if (read.q.size() != read.kv.size())
    throw core::invalid("{} has {} elements, and {} has {}: as many sequences of keys as of queries",
                        cu_kv.name(), read.kv.size(), cu_q.name(), read.q.size())
        .about("cu_seqlens_k");
  return read;
}

PackedSequences packed_sequences(std::vector<std::int64_t> cu_q, std::vector<std::int64_t> cu_kv,
                                 BlockShape block) {
  if (cu_q.size() != cu_kv.size())
    throw core::invalid("{} sequences of queries and {} of keys", cu_q.size() - 1, cu_kv.size() - 1);
  return {padded_axis(std::move(cu_q), block.q), padded_axis(std::move(cu_kv), block.kv)};
}

Mask padded_mask(Mask packed, std::shared_ptr<const PackedSequences> sequences) {
  return Mask(std::make_shared<MovedMask>(std::move(packed), std::move(sequences), Positions::padded));
}

Mask packed_mask(Mask padded, std::shared_ptr<const PackedSequences> sequences) {
  return Mask(std::make_shared<MovedMask>(std::move(padded), std::move(sequences), Positions::packed));
}

}  // namespace ejk::blocks
