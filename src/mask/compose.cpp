// Composition of masks by ~ & |. Block states follow three-valued logic; if one operand decides, the other is
// not evaluated.
// tests: tests/mask/test_mask.cpp
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "mask/node.hpp"
#include "mask/patterns.hpp"

namespace ejk {

namespace {

using namespace mask;

BlockState negate(BlockState a) {
  return a == BlockState::empty ? BlockState::full : a == BlockState::full ? BlockState::empty : a;
}

// The intersection of two partial blocks may be empty: its state is unknown.
BlockState intersect(BlockState a, BlockState b) {
  if (a == BlockState::empty || b == BlockState::empty) return BlockState::empty;
  if (a == BlockState::full) return b;
  if (b == BlockState::full) return a;
  return BlockState::undecided;
}

BlockState unite(BlockState a, BlockState b) { return negate(intersect(negate(a), negate(b))); }

void cut(std::span<const IndexRange> others, IndexRange* runs) {
  for (const IndexRange& other : others) {
    *runs = {std::max(runs->begin, other.begin), std::min(runs->end, other.end)};
    ++runs;
  }
}

std::string in_parentheses(const MaskNode& node, int binding) {
  return node.binding() < binding ? fmt::format("({})", node.text()) : node.text();
}

class NotMask final : public MaskNode {
 public:
  explicit NotMask(Mask of)
      : MaskNode(of.q_length(), of.kv_length()), of_(std::move(of)), bands_(sides_of(of_.node().bands())) {}

  std::string text() const override { return "~" + in_parentheses(of_.node(), 3); }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    return mask::same_as(of_, static_cast<const NotMask&>(other).of_, queries);
  }
  std::uint64_t stored_hash(IndexRange queries) const override { return of_.node().stored_hash(queries); }
  bool random_access() const override { return of_.node().random_access(); }
  std::int64_t stored_bytes() const override { return of_.node().stored_bytes(); }
  void add_offsets(std::set<std::int64_t>& offsets) const override { of_.node().add_offsets(offsets); }
  void add_bounds(std::span<const Rectangle> where, std::vector<MaskBound>& bounds) const override {
    of_.node().add_bounds(where, bounds);
  }
  std::optional<Mask> with(const Change&) const override { return std::nullopt; }
  std::vector<NearbyMask> nearby() const override {
    std::vector<NearbyMask> all{{"'" + of_.text() + "' is not negated", of_}};
    for (NearbyMask& other : of_.node().nearby()) all.push_back({std::move(other.text), ~other.mask});
    return all;
  }

  void fill(const Rectangle& where, const BitRows& out) const override {
    of_.node().fill(where, out);
    const Word tail = low_bits((out.columns - 1) % 64 + 1);
    const std::int64_t words = words_for(out.columns);
    for (std::int64_t r = 0; r < out.rows; ++r) {
      Word* row = out.row(r);
      for (std::int64_t w = 0; w < words; ++w) row[w] = ~row[w];
      row[words - 1] &= tail;
    }
  }

  // The complement of a band is on both sides of it: bit b of n chooses the side of band b.
  std::int64_t bands() const override { return bands_; }
  void band(std::int64_t n, IndexRange queries, IndexRange* out) const override {
    std::vector<IndexRange> runs(static_cast<std::size_t>(queries.count()));
    std::fill_n(out, runs.size(), IndexRange{0, kv_length()});
    for (std::int64_t b = 0; b < of_.node().bands(); ++b) {
      of_.node().band(b, queries, runs.data());
      for (IndexRange& run : runs)
        run = (n >> b & 1) == 0 ? IndexRange{0, run.begin} : IndexRange{run.end, kv_length()};
      cut(runs, out);
    }
  }

  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override {
    class Classifier final : public BlockClassifier {
     public:
      Classifier(std::unique_ptr<BlockClassifier> of, std::int64_t blocks)
          : of_(std::move(of)), blocks_(blocks) {}
      IndexRange run(std::int64_t, std::int64_t) const override { return {0, blocks_}; }
      void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                    BlockState* out) const override {
        of_->classify(q_begin, q_end, columns, out);
        std::transform(out, out + columns.count(), out, negate);
      }

     private:
      std::unique_ptr<BlockClassifier> of_;
      std::int64_t blocks_;
    };
    return std::make_unique<Classifier>(of_.node().classifier(q_block, kv_block),
                                        core::ceil_div(kv_length(), kv_block));
  }

 private:
  static std::int64_t sides_of(std::int64_t bands) {
    const std::int64_t sides = std::int64_t{1} << bands;
    return bands == 0 || sides > mask::kMostBands ? 0 : sides;
  }

  Mask of_;
  std::int64_t bands_;  // kept: expressions may be deep
};

enum class Join { both, either };

template <Join join>
class JoinMask final : public MaskNode {
 public:
  JoinMask(Mask a, Mask b)
      : MaskNode(a.q_length(), a.kv_length()),
        a_(std::move(a)),
        b_(std::move(b)),
        bands_(bands_of(a_.node().bands(), b_.node().bands())) {}

  int binding() const override { return join == Join::both ? 2 : 1; }
  std::string text() const override {
    // The right operand of an equal join keeps its parentheses: a & (b & c) is another expression.
    return fmt::format("{} {} {}", in_parentheses(a_.node(), binding()), join == Join::both ? "&" : "|",
                       in_parentheses(b_.node(), binding() + 1));
  }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    const auto& o = static_cast<const JoinMask&>(other);
    return mask::same_as(a_, o.a_, queries) && mask::same_as(b_, o.b_, queries);
  }
  std::uint64_t stored_hash(IndexRange queries) const override {
    const Word both[] = {a_.node().stored_hash(queries), b_.node().stored_hash(queries)};
    return hash_words(both, std::ssize(both));
  }
  void add_offsets(std::set<std::int64_t>& offsets) const override {
    a_.node().add_offsets(offsets);
    b_.node().add_offsets(offsets);
  }
  void add_bounds(std::span<const Rectangle> where, std::vector<MaskBound>& bounds) const override {
    if (join == Join::either) {
      a_.node().add_bounds(where, bounds);
      b_.node().add_bounds(where, bounds);
      return;
    }
    std::vector<Rectangle> left(where.begin(), where.end());
    narrow(left);
    for (const Mask& factor : factors()) factor.node().add_bounds(left, bounds);
  }
  void narrow(std::vector<Rectangle>& where) const override {
    if (join == Join::either) return;
    a_.node().narrow(where);
    b_.node().narrow(where);
  }
  std::vector<NearbyMask> nearby() const override {
    std::vector<NearbyMask> all{{"'" + b_.text() + "' is left out", a_},
                                {"'" + a_.text() + "' is left out", b_}};
    for (NearbyMask& other : a_.node().nearby()) all.push_back({std::move(other.text), of(other.mask, b_)});
    for (NearbyMask& other : b_.node().nearby()) all.push_back({std::move(other.text), of(a_, other.mask)});
    return all;
  }
  std::optional<Mask> with(const Change& change) const override {
    const std::optional<Mask> a = a_.node().with(change), b = b_.node().with(change);
    return a || b ? std::optional(of(a.value_or(a_), b.value_or(b_))) : std::nullopt;
  }
  std::vector<Mask> factors() const override {
    std::vector<Mask> all;
    if (join == Join::either) return all;
    for (const Mask& operand : {a_, b_}) {
      const std::vector<Mask> of = operand.node().factors();
      if (of.empty())
        all.push_back(operand);
      else
        all.insert(all.end(), of.begin(), of.end());
    }
    return all;
  }
  bool random_access() const override { return a_.node().random_access() && b_.node().random_access(); }
  std::optional<BlockShape> stored_block() const override {
    const auto block = a_.node().stored_block();
    return block ? block : b_.node().stored_block();
  }
  std::int64_t stored_bytes() const override { return a_.node().stored_bytes() + b_.node().stored_bytes(); }
  std::int64_t bands() const override { return bands_; }
  void band(std::int64_t n, IndexRange queries, IndexRange* out) const override {
    const std::int64_t a = a_.node().bands(), b = b_.node().bands();
    if (join == Join::either)
      return n < a ? a_.node().band(n, queries, out) : b_.node().band(n - a, queries, out);
    a_.node().band(n / b, queries, out);
    std::vector<IndexRange> others(static_cast<std::size_t>(queries.count()));
    b_.node().band(n % b, queries, others.data());
    cut(others, out);
  }

  void fill(const Rectangle& where, const BitRows& out) const override {
    a_.node().fill(where, out);
    BitBuffer buffer;
    const BitRows other = buffer.rows(out.rows, out.columns);
    b_.node().fill(where, other);
    for (std::int64_t r = 0; r < out.rows; ++r) {
      Word* const row = out.row(r);
      const Word* const with = other.row(r);
      for (std::int64_t w = 0; w < other.row_words; ++w)
        row[w] = join == Join::both ? row[w] & with[w] : row[w] | with[w];
    }
  }

  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override {
    class Classifier final : public BlockClassifier {
     public:
      Classifier(std::unique_ptr<BlockClassifier> a, std::unique_ptr<BlockClassifier> b)
          : a_(std::move(a)), b_(std::move(b)) {}
      IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
        const IndexRange a = a_->run(q_begin, q_end), b = b_->run(q_begin, q_end);
        if (join == Join::either && a.begin >= a.end) return b;
        if (join == Join::either && b.begin >= b.end) return a;
        if (join == Join::either) return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
        const IndexRange both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
        return both.begin < both.end ? both : IndexRange{};
      }
      void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                    BlockState* out) const override {
        a_->classify(q_begin, q_end, columns, out);
        std::vector<BlockState> other(static_cast<std::size_t>(columns.count()));
        b_->classify(q_begin, q_end, columns, other.data());
        std::transform(other.begin(), other.end(), out, out, [](BlockState b, BlockState a) {
          return join == Join::both ? intersect(a, b) : unite(a, b);
        });
      }

     private:
      std::unique_ptr<BlockClassifier> a_, b_;
    };
    return std::make_unique<Classifier>(a_.node().classifier(q_block, kv_block),
                                        b_.node().classifier(q_block, kv_block));
  }

 private:
  static Mask of(const Mask& a, const Mask& b) { return join == Join::both ? a & b : a | b; }
  static std::int64_t bands_of(std::int64_t a, std::int64_t b) {
    const std::int64_t both = a == 0 || b == 0 ? 0 : join == Join::both ? a * b : a + b;
    return both <= mask::kMostBands ? both : 0;
  }

  Mask a_, b_;
  std::int64_t bands_;  // kept: expressions may be deep
};

template <Join join>
Mask joined(const Mask& a, const Mask& b) {
  if (a.q_length() != b.q_length() || a.kv_length() != b.kv_length())
    throw core::invalid("{} is {} x {} and {} is {} x {}: masks must have one shape to be joined", a.text(),
                        a.q_length(), a.kv_length(), b.text(), b.q_length(), b.kv_length());
  return Mask(std::make_shared<JoinMask<join>>(a, b));
}

}  // namespace

Mask operator~(const Mask& a) { return Mask(std::make_shared<NotMask>(a)); }
Mask operator&(const Mask& a, const Mask& b) { return joined<Join::both>(a, b); }
Mask operator|(const Mask& a, const Mask& b) { return joined<Join::either>(a, b); }

}  // namespace ejk
