// Mask: a value that shares an immutable node.
// tests: tests/mask/test_mask.cpp
#include "ejk/mask.hpp"

#include <fmt/format.h>

#include <typeinfo>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "kernels/kernels.hpp"
#include "mask/node.hpp"

namespace ejk {

MaskNode::MaskNode(std::int64_t q_length, std::int64_t kv_length)
    : q_length_(q_length), kv_length_(kv_length) {
  if (q_length < 1 || kv_length < 1)
    throw core::invalid("a mask of {} queries and {} keys has no element", q_length, kv_length);
  if (q_length > kLongestMask || kv_length > kLongestMask)
    throw core::invalid("a mask of {} queries and {} keys is longer than {}", q_length, kv_length,
                        kLongestMask);
  element_count(Shape{q_length, kv_length});  // counts of elements fit 64 bits
}

std::unique_ptr<mask::BlockClassifier> MaskNode::classifier(std::int64_t, std::int64_t kv_block) const {
  class Undecided final : public mask::BlockClassifier {
   public:
    explicit Undecided(std::int64_t blocks) : blocks_(blocks) {}
    IndexRange run(std::int64_t, std::int64_t) const override { return {0, blocks_}; }
    void classify(std::int64_t, std::int64_t, IndexRange columns, mask::BlockState* out) const override {
      std::fill(out, out + columns.count(), mask::BlockState::undecided);
    }

   private:
    std::int64_t blocks_;
  };
  return std::make_unique<Undecided>(core::ceil_div(kv_length(), kv_block));
}

namespace {

class TransposedMask final : public MaskNode {
 public:
  explicit TransposedMask(Mask of) : MaskNode(of.kv_length(), of.q_length()), of_(std::move(of)) {}

  // Its queries are the keys of the other, which is compared whole.
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    return mask::same_as(of_, static_cast<const TransposedMask&>(other).of_, all_if_any(queries));
  }
  std::uint64_t stored_hash(IndexRange queries) const override {
    return of_.node().stored_hash(all_if_any(queries));
  }
  std::string text() const override { return "the transpose of " + of_.text(); }
  bool random_access() const override { return of_.node().random_access(); }
  std::int64_t stored_bytes() const override { return of_.node().stored_bytes(); }

  void fill(const mask::Rectangle& where, const mask::BitRows& out) const override {
    mask::BitBuffer buffer;
    const mask::BitRows from = buffer.rows(where.columns(), where.rows());
    of_.node().fill({where.k_begin, where.k_end, where.q_begin, where.q_end}, from);
    for (std::int64_t r = 0; r < out.rows; ++r) {
      mask::Word* row = out.row(r);
      std::fill(row, row + out.row_words, mask::Word{0});
      for (std::int64_t c = 0; c < out.columns; ++c)
        row[c / 64] |= (from.row(c)[r / 64] >> (r % 64) & 1u) << (c % 64);
    }
  }

 private:
  IndexRange all_if_any(IndexRange queries) const {
    return {0, queries.begin < queries.end ? of_.q_length() : 0};
  }

  Mask of_;
};

}  // namespace

std::vector<mask::NearbyMask> mask::nearby_masks(const Mask& of) {
  std::vector<NearbyMask> all = of.node().nearby();
  all.push_back({"the mask is ignored", full_mask(of.q_length(), of.kv_length())});
  all.push_back({"the mask is inverted", ~of});
  if (of.q_length() == of.kv_length())
    all.push_back({"the mask is transposed", Mask(std::make_shared<TransposedMask>(of))});
  for (NearbyMask& other : masks_without_keys(of)) all.push_back(std::move(other));
  return all;
}

std::vector<mask::NearbyMask> mask::masks_without_keys(const Mask& of) {
  const std::int64_t queries = of.q_length(), keys = of.kv_length();
  if (keys < 2) return {};
  std::vector<NearbyMask> all{{"the last key is left out", of & prefix_mask(queries, keys, keys - 1)},
                              {"the first key is left out", of & ~prefix_mask(queries, keys, 1)}};
  for (std::int64_t tile = 16; tile <= std::min<std::int64_t>(keys, 512); tile *= 2)
    if (keys % tile > 1)
      all.push_back({fmt::format("the keys after whole tiles of {} are left out", tile),
                     of & prefix_mask(queries, keys, keys - keys % tile)});
  return all;
}

void mask::add_alignment(const MaskNode& node, std::set<std::string>& into) {
  const std::int64_t bottom_right = node.kv_length() - node.q_length();
  if (bottom_right == 0) return;
  std::set<std::int64_t> offsets;
  node.add_offsets(offsets);
  for (const std::int64_t offset : offsets)
    into.insert(offset == 0              ? "top left: query 0 at key 0"
                : offset == bottom_right ? "bottom right: the last query at the last key"
                                         : fmt::format("offset {}: query 0 at key {}", offset, offset));
}

std::string to_string(const BlockShape& block) { return fmt::format("{}x{}", block.q, block.kv); }

std::int64_t Mask::q_length() const { return node_->q_length(); }
std::int64_t Mask::kv_length() const { return node_->kv_length(); }
bool Mask::is_computable() const { return node_->is_computable(); }
std::string Mask::text() const { return node_->text(); }

std::vector<MaskBound> bounds_of(const Mask& of) {
  std::vector<MaskBound> all;
  const mask::Rectangle whole{0, of.q_length(), 0, of.kv_length()};
  of.node().add_bounds({&whole, 1}, all);
  return all;
}

// The first and last queries usually decide, at less cost than all.
bool is_known_full(const Mask& of) {
  const std::int64_t q = of.q_length(), kv = of.kv_length();
  const auto is_full = [&](IndexRange rows) {
    mask::BlockState state = mask::BlockState::undecided;
    of.node().classifier(rows.count(), kv)->classify(rows.begin, rows.end, {0, 1}, &state);
    return state == mask::BlockState::full;
  };
  return is_full({0, 1}) && is_full({q - 1, q}) && is_full({0, q});
}

bool Mask::same_as(const Mask& other) const { return mask::same_as(*this, other, {0, q_length()}); }

bool mask::same_as(const Mask& first, const Mask& second, IndexRange queries) {
  const MaskNode &a = first.node(), &b = second.node();
  if (&a == &b) return true;
  return typeid(a) == typeid(b) && a.q_length() == b.q_length() && a.kv_length() == b.kv_length() &&
         a.same_as(b, queries);
}

void Mask::read(std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin, std::int64_t k_end,
                bool* out) const {
  const std::int64_t columns = k_end - k_begin;
  if (columns <= 0) return;
  constexpr std::int64_t kBitsAtOnce = std::int64_t{1} << 22;
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, kBitsAtOnce / columns);
  mask::BitBuffer buffer;
  auto* bytes = reinterpret_cast<std::uint8_t*>(out);
  for (std::int64_t q = q_begin; q < q_end; q += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, q_end - q);
    const mask::BitRows bits = buffer.rows(rows, columns);
    node_->fill({q, q + rows, k_begin, k_end}, bits);
    for (std::int64_t r = 0; r < rows; ++r, bytes += columns)
      kernels::active().expand_bits(bits.row(r), columns, bytes);
  }
}

}  // namespace ejk
