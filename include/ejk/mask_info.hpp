// MaskInfo: what a block-sparse attention kernel needs to know of its masks.
//
// The query × key grid is cut into blocks. block_mask names the state of each block (0 empty, 1 partial,
// 2 full); data_next says which key/value (forward) or query (dkv) block to fetch next, mask_next which
// partial block; partial_mask_blocks holds the distinct partial blocks. Source: JAX's splash attention and
// ejkernel's block-sparse attention, whose arrays these equal to the element; src/blocks/mask_info.cpp states
// the procedure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "ejk/mask.hpp"
#include "ejk/report.hpp"

namespace ejk {

namespace blocks {
struct StoredInfo;
}

/// Queries per row of blocks first: forward walks the keys of a query block, dkv the queries of a key block.
enum class Direction { forward, dkv };

/// Fixed masks ("static") are known when the kernel is compiled: equal blocks are kept once, empty ones left
/// out. Of dynamic ones every block of every head is kept.
enum class MaskInfoKind { fixed, dynamic };

/// What decides the arrays.
struct MaskInfoSettings {
  std::int64_t head_shards = 1;
  std::int64_t q_seq_shards = 1;
  bool shrink_grid = true;  // ignored by dynamic masks
  bool downcast = true;     // index arrays in the narrowest of int8, int16, int32
  bool pad = false;         // lengths that blocks do not divide are padded with False
  /// A single mask that is_computable() is left to the kernel, which evaluates it: without mask_next and
  /// partial_mask_blocks. When false they are made for such a mask too. Ignored by dynamic masks.
  bool computable = true;
};

/// Called now and then with blocks done and blocks in all; may come from any thread, one at a time.
using BlockProgress = std::function<void(std::int64_t done, std::int64_t all)>;

struct ProcessMaskOptions : MaskInfoSettings {
  /// Bytes that the distinct partial blocks may take while they are collected (an eighth of their size as
  /// bools); 0: no limit. More is Error{budget}.
  std::int64_t max_pattern_bytes = 0;
  BlockProgress progress;
};

/// What one pass over a mask found.
struct MaskSummary {
  std::int64_t q_length = 0;            // without padding
  std::int64_t kv_length = 0;           // without padding
  std::shared_ptr<BlockStates> states;  // (q blocks, kv blocks)
  std::int64_t empty_blocks = 0;
  std::int64_t partial_blocks = 0;
  std::int64_t full_blocks = 0;
  std::int64_t true_elements = 0;
  std::int64_t distinct_partial_blocks = 0;  // within this mask
  std::vector<IndexRange> rows_without_key;
  std::vector<IndexRange> keys_without_row;
  /// Of partial blocks: their True elements in each cell of cell_blocks × cell_blocks blocks, a power of two;
  /// by rows, at most 128 cells a side.
  std::int64_t cell_blocks = 1;
  std::vector<std::int64_t> partial_elements;
};

struct MaskInfo {
  Direction direction = Direction::forward;
  BlockShape block;
  MaskInfoSettings settings;

  // The arrays. rows is the number of heads, or of head shards where every shard holds a single mask.
  Array data_next;                 // (rows, q blocks, kv blocks) or shrunk; int8, int16 or int32
  std::optional<Array> mask_next;  // the same shape; absent: no partial blocks, or a computable mask
  Array block_mask;                // the same shape
  /// (P, q, kv), dkv (P, kv, q); dynamic (H, q blocks, kv blocks, q, kv), dkv (…, kv, q). bool. Made on
  /// demand while it is read. Null when absent.
  std::shared_ptr<const ArraySource> partial_mask_blocks;
  std::optional<Array> q_sequence;  // (Q,) int32: only for a computable mask
  bool is_dynamic_mask = false;
  std::optional<Mask> mask_function;  // the computable mask

  // What was learnt on the way, for the report.
  std::vector<Mask> masks;              // the distinct ones, in order of first appearance
  std::vector<std::int64_t> head_mask;  // for each head the index of its mask
  std::vector<MaskSummary> summaries;   // one a distinct mask
  std::int64_t distinct_partial_blocks = 0;
  Shape unshrunk_grid;  // shape of the index arrays before shrinking
};

/// Static masks, one a head, all of one shape. Errors (Error{input}), in this order: no head, heads of
/// unequal shape or a length of zero; block.q ∤ Q; block.kv ∤ K; q shards ∤ Q; block.q ∤ Q / q shards; head
/// shards ∤ heads. With `pad` the lengths are first rounded up to whole blocks.
MaskInfo process_mask(const std::vector<Mask>& heads, BlockShape block,
                      const ProcessMaskOptions& options = {});
MaskInfo process_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                          const ProcessMaskOptions& options = {});

/// Dynamic masks: a bool array (H, Q, K) whose every block is kept. Errors: a rank other than 3, a dtype
/// other than bool, then as for process_mask.
MaskInfo process_dynamic_mask(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                              const ProcessMaskOptions& options = {});
MaskInfo process_dynamic_mask_dkv(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                                  const ProcessMaskOptions& options = {});

/// The same arrays for masks that are not stored.
MaskInfo process_dynamic_mask(const std::vector<Mask>& heads, BlockShape block,
                              const ProcessMaskOptions& options = {});
MaskInfo process_dynamic_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                                  const ProcessMaskOptions& options = {});

/// What the arrays of a MaskInfo do not say of themselves. Attributes of their file do, which are named and
/// written as the options of `ejk mask-info` (block, shape, dkv, head_shards, q_seq_shards), or the caller.
struct StoredSettings {
  std::optional<BlockShape> block = {};  // else that of partial_mask_blocks
  std::optional<Shape> shape = {};  // (heads, queries, keys); else as many heads as rows, lengths unknown
  std::optional<Direction> direction = {};                          // else forward
  std::optional<std::int64_t> head_shards = {}, q_seq_shards = {};  // else 1
};

/// The arrays of a MaskInfo, read back as a kernel walks them: block by block through block_mask, following
/// data_next and mask_next.
class StoredMaskInfo {
 public:
  /// The arrays by their names in MaskInfo. Shapes and dtypes are looked at, indices and elements are read
  /// when a mask is made or looked at. Errors: Error{input} about the array that is missing or does not fit
  /// the others; Error{usage} where `settings` contradict the attributes.
  explicit StoredMaskInfo(const ArrayGroup& arrays, const StoredSettings& settings = {});

  static const std::vector<std::string>& array_names();

  /// Heads and lengths as far as they are known.
  MaskShape shape() const;

  /// The mask that is stored for one head, of a shape (heads, queries, keys). Errors: a shape of which these
  /// cannot be the arrays; an index out of range or a block that is visited twice, with array and index;
  /// partial blocks that are left to the kernel (Code::computable_mask) or missing.
  Mask mask(const Shape& shape, std::int64_t head) const;

  /// All pairs in the blocks that a kernel visits: those whose entry in block_mask is not 0.
  Mask visited(const Shape& shape, std::int64_t head) const;

 private:
  std::shared_ptr<blocks::StoredInfo> info_;
};

/// The arrays of a MaskInfo as they are stored, with what else is known of them as attributes; valid as long
/// as it is.
ArrayGroup stored_arrays(const MaskInfo& info);
ArrayGroup stored_arrays(MaskInfo&&) = delete;

namespace blocks {
struct InfoPlan;
}

/// An array that a plan will give.
struct PlannedArray {
  std::string name;  // as in MaskInfo
  ArrayType type;
};

/// What one rank has of a MaskInfo that they made together.
struct MaskInfoShare {
  struct Part {
    std::string array;  // its name
    ArrayBox box;
    std::shared_ptr<const ArraySource> elements;  // of the shape box.count; valid as long as the share is
  };

  /// The arrays that there are, without is_dynamic_mask; the same for all ranks.
  std::vector<PlannedArray> arrays;
  /// What this rank holds of them: together the ranks hold each element once. The index arrays, some
  /// bytes a block, are rank 0's; a partial block is held by the first rank that met it.
  std::vector<Part> parts;
  /// Rank 0 alone. Of partial_mask_blocks it has the type, and no element can be read, but in a communicator of one rank.
  std::optional<MaskInfo> info;
};

/// A MaskInfo before an element of a mask is read: made once from the masks of the heads, with the errors of
/// the functions above. It knows what arrays there will be, what memory that takes, and how to make them.
class MaskInfoPlan {
 public:
  MaskInfoPlan(std::vector<Mask> heads, BlockShape block, Direction direction, MaskInfoKind kind,
               const MaskInfoSettings& settings = {});

  /// The arrays, at most: those that are not listed are absent, and none has a longer axis or a wider dtype.
  /// Dynamic masks give exactly these. With fixed masks, shrinking, equal heads and equal blocks may make
  /// arrays smaller, and mask_next and partial_mask_blocks are absent where no block is partial. Throws
  /// Error{input} for a shape that no memory can hold.
  std::vector<PlannedArray> arrays() const;

  /// Memory that run() takes at the most; the partial blocks come on top.
  std::int64_t work_bytes() const;

  /// Reads the masks. max_pattern_bytes as in ProcessMaskOptions.
  MaskInfo run(const BlockProgress& progress = {}, std::int64_t max_pattern_bytes = 0) const;

  /// The same by several ranks: each rank reads rows of blocks of its own, one mask after the other, and progress
  /// is that of its own. max_pattern_bytes is for the partial blocks that the rank finds; on rank 0 some 100
  /// bytes for each that any rank has found count as well.
  MaskInfoShare run_with(Communicator& comm, const BlockProgress& progress = {},
                         std::int64_t max_pattern_bytes = 0) const;

  /// What each rank of this size does, by ranks, as far as that can be told without reading: costs
  /// in bytes that are looked at, on rank 0 with the making of the index arrays, which comes last; what is
  /// written, and sent, at most. Masks that turn out equal are read once.
  std::vector<RankWork> shares(std::int64_t ranks) const;

 private:
  friend Report describe(const MaskInfoPlan& plan);
  std::shared_ptr<const blocks::InfoPlan> plan_;
};

/// Lengths, grid and arrays.
Report describe(const MaskInfoPlan& plan);

/// The sparsity report.
Report describe(const MaskInfo& info);

/// A mask's blocks of the smallest size, a power of two, that gives at most 2048 a side: single elements of a
/// mask that is not longer. Reads the mask; memory: the states. Pages alone show it.
BlockPicture picture_of(const Mask& mask, std::string key, std::string title);
/// Memory that this takes, and a page of it.
std::int64_t picture_bytes(const Mask& mask);

}  // namespace ejk
