// MaskNode: what every kind of mask must be able to do. A Mask is a shared, immutable node.
//
// To add a kind: derive from MaskNode, give it a function in ejk/mask.hpp and a word in expression.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ejk/mask.hpp"
#include "mask/bits.hpp"

namespace ejk {

namespace mask {

/// What is known of a block. The first three are the values that block_mask holds.
enum class BlockState : std::uint8_t {
  empty = 0,
  partial = 1,
  full = 2,
  undecided = 3,  // only its elements can tell
};

/// A partial block, where states are bytes.
inline constexpr std::uint8_t kPartial = static_cast<std::uint8_t>(BlockState::partial);

/// Queries [q_begin, q_end) × keys [k_begin, k_end), within the mask.
struct Rectangle {
  std::int64_t q_begin = 0;
  std::int64_t q_end = 0;
  std::int64_t k_begin = 0;
  std::int64_t k_end = 0;

  std::int64_t rows() const { return q_end - q_begin; }
  std::int64_t columns() const { return k_end - k_begin; }
};

/// The most bands of a mask: with more, runs take as long as elements.
inline constexpr std::int64_t kMostBands = 4;

/// A mask that is easily taken for another one, and what is wrong with it then: "the causal edge is one key too
/// far". The text does not tell one batch entry from another.
struct NearbyMask {
  std::string text;
  Mask mask;
};

/// Tells the states of the blocks of one mask cut at one size; the last block of a row or column may be cut
/// short. Made once, asked for every row of blocks, by several threads.
class BlockClassifier {
 public:
  virtual ~BlockClassifier() = default;
  /// Of the blocks whose queries are [q_begin, q_end), one of the rows of blocks: columns outside of which all are
  /// empty. Takes less time than a look at each column, so that what is sparse costs what is in it.
  virtual IndexRange run(std::int64_t q_begin, std::int64_t q_end) const = 0;
  /// The states of these columns of the row.
  virtual void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange columns,
                        BlockState* out) const = 0;
};

}  // namespace mask

/// The most queries or keys of a mask: far beyond any sequence, and small enough that sums of positions and
/// padded lengths fit 64 bits.
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

  /// By how many keys each part that goes by positions is moved: 0 aligns query 0 with key 0. A mask without
  /// such parts adds nothing; of one with them the alignment matters where queries and keys differ in number.
  virtual void add_offsets(std::set<std::int64_t>&) const {}

  /// `other` has the same dynamic type and shape. Of stored elements those of the queries [begin, end) are
  /// compared: the two are the same where the answer is true for each of some ranges that hold all queries.
  /// For an empty range nothing is read.
  virtual bool same_as(const MaskNode& other, IndexRange queries) const = 0;

  /// Of the stored elements of the queries [begin, end): equal where same_as() is true of them. 0 where none are
  /// stored.
  virtual std::uint64_t stored_hash(IndexRange) const { return 0; }

  /// The masks of the same shape that this one is taken for by mistake: edges that are off by one, parts that
  /// are left out. None of these is necessarily another mask.
  virtual std::vector<mask::NearbyMask> nearby() const { return {}; }

  /// The masks whose intersection this is; none where it is not made as one.
  virtual std::vector<Mask> factors() const { return {}; }

  virtual std::string text() const = 0;
  /// How tightly text() binds: 3 an atom or ~, 2 &, 1 |.
  virtual int binding() const { return 3; }

  virtual std::unique_ptr<mask::BlockClassifier> classifier(std::int64_t q_block,
                                                            std::int64_t kv_block) const = 0;

  /// Writes the elements of a rectangle; out has its rows and columns.
  virtual void fill(const mask::Rectangle& where, const mask::BitRows& out) const = 0;

  /// The number of bands that the mask is the union of, at most mask::kMostBands; 0: unknown. A band has one
  /// range of keys for each query; both ends never decrease from query to query. Bands may overlap. Where they
  /// are known no element is read.
  virtual std::int64_t bands() const { return 0; }
  /// The run of each of these queries in a band. It may reach past the mask, and is empty where it ends before it
  /// begins.
  virtual void band(std::int64_t, IndexRange, IndexRange*) const {}

  /// fill() may be called by several threads, in any order. When false: by one thread, cheapest in order of
  /// rows and for whole rows.
  virtual bool random_access() const { return true; }

  /// Bytes of inputs that fill() reads for each element, about: 0 where it computes them.
  virtual std::int64_t stored_bytes() const { return 0; }

 private:
  std::int64_t q_length_;
  std::int64_t kv_length_;
};

namespace mask {

/// Mask::same_as, as far as the queries [begin, end) tell: see MaskNode::same_as.
bool same_as(const Mask& first, const Mask& second, IndexRange queries);

/// The masks that any mask is taken for by mistake, after its own nearby(): none at all, its opposite, its
/// transpose, and it without some keys.
std::vector<NearbyMask> nearby_masks(const Mask& of);
/// The same mask without some keys: the first or last one, or those after whole tiles.
std::vector<NearbyMask> masks_without_keys(const Mask& of);

/// A bias of this and less hides: what frameworks use for "minus infinity" (the dtype's lowest among it). It
/// is taken as the array's dtype rounds it: in bfloat16 it is -9984.
inline constexpr float kMaskedBias = -1e4f;

/// How the positions of queries and keys meet, for the report, one entry a manner: "top left: query 0 at key
/// 0". Nothing where it does not matter: as many queries as keys, or no part that goes by positions.
void add_alignment(const MaskNode& node, std::set<std::string>& into);

}  // namespace mask

}  // namespace ejk
