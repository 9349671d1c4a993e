// Layouts that list the blocks a kernel visits, and layouts that have a rule for pairs of queries and keys.
//
// A layout walks its arrays as its kernel does and reports each visited block with the element that names it;
// reading (from, visited) and checking share the walk. Memory: that of the listed blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ejk/mask_info.hpp"
#include "layouts/block_mask.hpp"
#include "layouts/packed_sequences.hpp"
#include "mask/stored_masks.hpp"

namespace ejk::blocks {

/// An element of an array: its name, and the index in C order.
struct ArrayPlace {
  const char* array = "";
  std::int64_t at = 0;
};

/// Called in the order of the walk.
struct ArrayWalk {
  /// Block (i, j), and its pattern or BlockGrid::kFull.
  std::function<void(std::int64_t i, std::int64_t j, std::int32_t pattern, ArrayPlace place)> visit;
  /// An element that no kernel can use, with the rule of check_mask_info that it breaks.
  std::function<void(const char* rule, ArrayPlace place, std::int64_t value, std::string why)> fault;
};

/// The integers of an array, in memory.
struct IndexArray {
  const char* name = "";
  std::shared_ptr<const ArraySource> source;  // null: the group does not have it
  std::vector<std::int64_t> values;

  explicit operator bool() const { return source != nullptr; }
  std::int64_t operator[](std::int64_t at) const { return values[static_cast<std::size_t>(at)]; }
  std::int64_t size() const { return std::ssize(values); }
  const Shape& shape() const { return source->shape(); }
};
/// Throws Error{input} for another rank or dtype, and for a missing one if it is required.
IndexArray read_index(const ArrayGroup& group, const char* name, std::int64_t rank, bool is_required = true);

/// Memory of the lists once they are read, and bytes read.
StoredMaskInfo::Cost cost_of_indices(const ArrayGroup& arrays);

/// A stored list of the non-empty blocks of each head.
class ListedBlocks {
 public:
  virtual ~ListedBlocks() = default;

  std::string name;
  BlockShape block;
  MaskShape shape;        // heads: as many as stored masks, or a number that they serve
  std::int64_t rows = 1;  // stored masks
  std::int64_t q_blocks = 0, kv_blocks = 0;
  std::vector<const IndexArray*> indices;  // those whose shape and values the walk reads
  /// Walks of a kernel, each over all blocks: the first is read; others, as of a backward pass, are checked.
  std::int64_t walks = 1;
  std::vector<std::string> walk_lists;  // where there are several: the arrays of each, for messages
  /// Kernels do not compute pairs of full blocks beyond the lengths.
  bool full_blocks_end_with_mask = true;
  /// A kernel computes the elements of partial blocks: the pattern of a block is its column.
  virtual bool is_computed(std::int64_t walk) const = 0;
  virtual void walk(std::int64_t walk, std::int64_t row, const ArrayWalk& to) const = 0;
  /// Faults of elements that no block depends on.
  virtual void check(const ArrayWalk&) const {}
  /// Null where a kernel computes them, or no block is partial.
  virtual std::shared_ptr<const BlockElements> elements(std::int64_t row) const = 0;
  /// Where block (i, j) is counted, and would be if it were listed.
  virtual ArrayPlace home(std::int64_t walk, std::int64_t row, std::int64_t i, std::int64_t j) const = 0;
  /// The element for a pair of a partial block, with its index.
  virtual std::pair<const char*, Shape> element_place(std::int64_t row, std::int64_t i, std::int64_t j,
                                                      std::int32_t pattern, std::int64_t q,
                                                      std::int64_t k) const = 0;
  /// The distinct partial blocks (P, q, kv) or (P, kv, q) of 0 and 1 if there are any.
  std::shared_ptr<const ArraySource> patterns;
  /// Of sequences whose blocks begin with them: the listed blocks are those of padded positions.
  std::shared_ptr<const PackedSequences> sequences;
  /// A mask of the listed blocks, padded to whole blocks where there are sequences, as one of `shape`.
  Mask mask_of(BlockMask blocks, std::string text) const;
  /// `patterns` has every block, whether it is partial or not.
  bool every_block = false;
};

/// Where blocks of any sizes begin, and the end: from 0, never decreasing.
struct BlockBounds {
  std::vector<std::int64_t> q, kv;
};

/// A mask as a rule for pairs, without blocks of one size.
class PairRule {
 public:
  virtual ~PairRule() = default;

  std::string name;
  MaskShape shape;
  std::int64_t rows = 1;
  std::vector<const IndexArray*> indices;
  bool has_whole_blocks = false;  // a kernel visits the blocks of the mask alone
  /// Of a row's blocks, if it has any.
  virtual BlockBounds bounds(std::int64_t) const { return {}; }
  /// Elements that no kernel can use, for a mask of these lengths.
  virtual void check(std::int64_t q_length, std::int64_t kv_length, const ArrayWalk& to) const = 0;
  /// Faults of elements that no pair depends on.
  virtual void check_unread(const ArrayWalk&) const {}
  /// Of one row, without the elements that check() has faults of.
  virtual Mask mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t row) const = 0;
  /// The element that decides on a pair.
  virtual std::pair<const char*, Shape> place(std::int64_t row, std::int64_t q, std::int64_t k) const = 0;
};

/// Masks that several heads share, made once. Thread-safe.
class SharedMasks {
 public:
  /// Whether of whole blocks, the stored mask, queries, keys.
  using Key = std::tuple<bool, std::int64_t, std::int64_t, std::int64_t>;
  template <class Make>
  Mask get(const Key& key, Make&& make) const {
    const std::scoped_lock lock(mutex_);
    std::optional<Mask>& mask = masks_[key];
    if (!mask) mask = make();
    return *mask;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<Key, std::optional<Mask>> masks_;
};

std::shared_ptr<const StoredMasks> read_listed(std::shared_ptr<const ListedBlocks> listed);
std::shared_ptr<const StoredMasks> read_rule(std::shared_ptr<const PairRule> rule);

struct StoredVisit {
  std::int32_t q_block, column, pattern;
};
/// The visited blocks as a grid. `twice` is called with the position of every block that is visited again;
/// its first visit counts.
std::shared_ptr<const BlockGrid> grid_of(BlockShape block, std::int64_t q_blocks, std::int64_t kv_blocks,
                                         std::span<const StoredVisit> visits,
                                         const std::function<void(std::int64_t i, std::int64_t j)>& twice);

/// A visit of a block, where it is listed.
struct ListedVisit {
  ArrayPlace place;
  std::int32_t pattern;
};
std::vector<ListedVisit> visits_of(const ListedBlocks& listed, std::int64_t walk, std::int64_t row,
                                   std::int64_t i, std::int64_t j);

/// The row of a head. Throws Error{input} where rows do not serve as many heads.
std::int64_t row_of_head(std::int64_t rows, std::int64_t heads, std::int64_t head, const std::string& name);
/// Throws Error{input} if the lists do not have the blocks of such a mask, or have more than 2^26 rows of
/// blocks, for which memory would not be bounded by the file.
void require_lengths(const ListedBlocks& listed, std::int64_t q_length, std::int64_t kv_length);

/// Elements of an array (P, q, kv) of 0 and 1, or (P, kv, q) for dkv.
std::shared_ptr<const BlockElements> pattern_elements(std::shared_ptr<const ArraySource> patterns,
                                                      Direction direction);

}  // namespace ejk::blocks
