// MaskNode: the interface of every kind of mask. A Mask is a shared, immutable node.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ejk/mask.hpp"
#include "mask/bits.hpp"

namespace ejk {

namespace mask {

/// State of a block. The first three are the values of block_mask.
enum class BlockState : std::uint8_t {
  empty = 0,
  partial = 1,
  full = 2,
  undecided = 3,  // depends on its elements
};
inline constexpr std::uint8_t kPartial = static_cast<std::uint8_t>(BlockState::partial);

/// Queries [q_begin, q_end) × keys [k_begin, k_end), within the mask.
struct Rectangle {
  std::int64_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;

  std::int64_t rows() const { return q_end - q_begin; }
  std::int64_t columns() const { return k_end - k_begin; }
};

/// Most bands of a mask: more would cost as much as elements.
inline constexpr std::int64_t kMostBands = 4;

/// A mask that is easily mistaken for another one, and its fault: "the causal edge is one key too far".
struct NearbyMask {
  std::string text;
  Mask mask;
};

/// Keys at a distance from their query: with p = q + offset those from p − left to p + right, of a chunk those of p's
/// chunk among them. A causal mask has no left side, and a right one of 0.
struct Pattern {
  std::optional<std::int64_t> left = {}, right = {};
  std::int64_t offset = 0;
  std::int64_t chunk = 0;  // 0: no chunks
};

/// Classifies the blocks of one mask at one block size; the last block of a row or column may be cut short.
/// Thread-safe.
class BlockClassifier {
 public:
  virtual ~BlockClassifier() = default;
  /// The block columns that may be non-empty in the block row of queries [q_begin, q_end). Cheaper than
  /// linear in the columns, so that sparse masks cost as much as their blocks.
  virtual IndexRange run(std::int64_t q_begin, std::int64_t q_end) const = 0;
  virtual void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                        BlockState* out) const = 0;
};

}  // namespace mask

/// Most queries or keys of a mask: sums of positions and padded lengths fit 64 bits.
inline constexpr std::int64_t kLongestMask = std::int64_t{1} << 48;

class MaskNode {
 public:
  MaskNode(std::int64_t q_length, std::int64_t kv_length);
  virtual ~MaskNode() = default;
  MaskNode(const MaskNode&) = delete;
  MaskNode& operator=(const MaskNode&) = delete;

  std::int64_t q_length() const { return q_length_; }
  std::int64_t kv_length() const { return kv_length_; }

  virtual bool is_computable() const { return false; }

  /// Offsets in keys of each positional part: 0 aligns query 0 with key 0.
  virtual void add_offsets(std::set<std::int64_t>&) const {}

  /// Bounds of each part, idle or not for the pairs of these rectangles. Their first and last queries and keys
  /// are pairs of the mask, others need not be.
  virtual void add_bounds(std::span<const mask::Rectangle>, std::vector<MaskBound>&) const {}

  /// Removes pairs from these rectangles that the mask masks, as far as rectangles remain.
  virtual void narrow(std::vector<mask::Rectangle>&) const {}

  /// `other` has the same dynamic type and shape. Stored elements are compared for these queries only; an
  /// empty range reads nothing.
  virtual bool same_as(const MaskNode& other, IndexRange queries) const = 0;

  /// Hash of the stored elements of these queries, equal where same_as() is true; 0 without elements.
  virtual std::uint64_t stored_hash(IndexRange) const { return 0; }

  /// Masks that this one is mistaken for: edges off by one, parts omitted. Some may equal it.
  virtual std::vector<mask::NearbyMask> nearby() const { return {}; }

  /// The masks whose intersection this is; none if it is not composed so.
  virtual std::vector<Mask> factors() const { return {}; }

  /// The pattern that it is; nothing for others, and for compositions.
  virtual std::optional<mask::Pattern> pattern() const { return std::nullopt; }
  /// cu_seqlens of documents(...), without empty ones; none for others.
  virtual std::vector<std::int64_t> documents() const { return {}; }

  /// The mask with other operands of & and | where `change` has one; nothing if no operand changes.
  using Change = std::function<std::optional<Mask>(const MaskNode& operand)>;
  virtual std::optional<Mask> with(const Change& change) const { return change(*this); }

  virtual std::string text() const = 0;
  /// How tightly text() binds: 3 an atom or ~, 2 &, 1 |.
  virtual int binding() const { return 3; }

  /// By default every block is undecided.
  virtual std::unique_ptr<mask::BlockClassifier> classifier(std::int64_t q_block,
                                                            std::int64_t kv_block) const;

  /// Writes the elements of a rectangle; out has its rows and columns.
  virtual void fill(const mask::Rectangle& where, const mask::BitRows& out) const = 0;

  /// The number of bands whose union the mask is, at most mask::kMostBands; 0: unknown. A band has one range
  /// of keys for each query, whose ends never decrease from query to query. Bands may overlap.
  virtual std::int64_t bands() const { return 0; }
  /// The range of each of these queries in a band. It may exceed the mask, and end before its begin: empty.
  virtual void band(std::int64_t, IndexRange, IndexRange*) const {}

  /// fill() is thread-safe. If false: one thread, cheapest in row order and for whole rows.
  virtual bool random_access() const { return true; }

  /// The shape of the blocks that it is stored in, if it is.
  virtual std::optional<BlockShape> stored_block() const { return std::nullopt; }

  /// Bytes of inputs that fill() reads for each element, about; 0 if it computes them.
  virtual std::int64_t stored_bytes() const { return 0; }

 private:
  std::int64_t q_length_;
  std::int64_t kv_length_;
};

namespace mask {

bool same_as(const Mask& first, const Mask& second, IndexRange queries);

/// Its own nearby(), then those of any mask: no mask, the complement, the transpose, and masks_without_keys.
std::vector<NearbyMask> nearby_masks(const Mask& of);
/// The same mask without some keys: the first or last one, or those after whole tiles.
std::vector<NearbyMask> masks_without_keys(const Mask& of);

/// A bias of this or less masks: frameworks use such values for "minus infinity". It is rounded to the dtype
/// of the array: -9984 in bfloat16.
inline constexpr float kMaskedBias = -1e4f;

/// Alignments of queries and keys for the report: "top left: query 0 at key 0". Nothing for as many queries
/// as keys, or without a positional part.
void add_alignment(const MaskNode& node, std::set<std::string>& into);

/// Merges the entries of one more array or expression; 1 is the same for any number of entries. Throws
/// Error{input} where they disagree.
void agree_on_entries(std::int64_t& batch, bool& may_be_heads, std::int64_t more, bool more_may_be_heads,
                      const std::string& name);

}  // namespace mask

}  // namespace ejk
