// MaskInfo: the metadata of masks for a block-sparse attention kernel.
//
// block_mask has the state of each block of queries × keys (0 empty, 1 partial, 2 full), data_next the
// key/value (forward) or query (dkv) block to load next, mask_next the partial block to load next;
// partial_mask_blocks holds the distinct partial blocks. Source: JAX's splash attention and ejkernel's
// block-sparse attention, whose arrays these equal to the element. Procedure: src/blocks/mask_info.cpp. It is the
// layout jax of mask_layouts.hpp, whose plan states its memory and divides it among ranks.
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

/// Fixed ("static") masks store equal blocks once and omit empty ones, dynamic masks store every block of
/// every head.
enum class MaskInfoKind { fixed, dynamic };

/// Settings of the arrays.
struct MaskInfoSettings {
  std::int64_t head_shards = 1;
  std::int64_t q_seq_shards = 1;
  bool shrink_grid = true;  // ignored by dynamic masks
  bool downcast = true;     // index arrays in the narrowest of int8, int16, int32
  bool pad = false;         // lengths that blocks do not divide are padded with False
  /// The kernel evaluates a single mask that is_computable(), without mask_next and partial_mask_blocks.
  /// Ignored by dynamic masks.
  bool computable = true;
};

/// Called with the blocks done and in all, from any thread, one at a time.
using BlockProgress = std::function<void(std::int64_t done, std::int64_t all)>;

struct ProcessMaskOptions : MaskInfoSettings {
  /// Limit for the bits of the distinct partial blocks, in bytes; 0: none. Above it Error{budget}.
  std::int64_t max_pattern_bytes = 0;
  BlockProgress progress;
};

/// Results of the scan of a mask.
struct MaskSummary {
  std::int64_t q_length = 0, kv_length = 0;  // without padding
  std::shared_ptr<BlockStates> states;       // (q blocks, kv blocks)
  std::int64_t empty_blocks = 0, partial_blocks = 0, full_blocks = 0;
  std::int64_t true_elements = 0;
  std::int64_t distinct_partial_blocks = 0;  // within this mask
  std::vector<IndexRange> rows_without_key, keys_without_row;
  /// True elements of partial blocks in each cell of cell_blocks × cell_blocks blocks, row-major, at most 128
  /// cells a side.
  std::int64_t cell_blocks = 1;
  std::vector<std::int64_t> partial_elements;
};

/// The masks of heads with the results of their scans.
struct ScannedMasks {
  BlockShape block;
  std::vector<Mask> masks;              // the distinct ones, in order of first appearance
  std::vector<std::int64_t> head_mask;  // for each head the index of its mask
  std::vector<MaskSummary> summaries;   // one a distinct mask
  std::int64_t distinct_partial_blocks = 0;
};

struct MaskInfo : ScannedMasks {
  Direction direction = Direction::forward;
  MaskInfoSettings settings;

  // The arrays. rows is the number of heads, or of head shards if every shard has a single mask.
  Array data_next;                 // (rows, q blocks, kv blocks) or shrunk; int8, int16 or int32
  std::optional<Array> mask_next;  // the same shape; absent: no partial blocks, or a computable mask
  Array block_mask;                // the same shape
  /// (P, q, kv), dkv (P, kv, q); dynamic (H, q blocks, kv blocks, q, kv), dkv (…, kv, q). bool. Computed on
  /// read. Null if absent.
  std::shared_ptr<const ArraySource> partial_mask_blocks;
  std::optional<Array> q_sequence;  // (Q,) int32: only for a computable mask
  bool is_dynamic_mask = false;
  std::optional<Mask> mask_function;  // the computable mask

  Shape unshrunk_grid;  // shape of the index arrays before shrinking
};

/// Static masks, one a head, of one shape. Errors (Error{input}), in this order: no head, heads of unequal
/// shape or a length of zero; block.q ∤ Q; block.kv ∤ K; q shards ∤ Q; block.q ∤ Q / q shards; head shards ∤
/// heads. With `pad` the lengths are first rounded up to whole blocks.
MaskInfo process_mask(const std::vector<Mask>& heads, BlockShape block,
                      const ProcessMaskOptions& options = {});
MaskInfo process_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                          const ProcessMaskOptions& options = {});

/// Dynamic masks: a bool array (H, Q, K), of which every block is stored. Errors: a rank other than 3, a
/// dtype other than bool, then as for process_mask.
MaskInfo process_dynamic_mask(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                              const ProcessMaskOptions& options = {});
MaskInfo process_dynamic_mask_dkv(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                                  const ProcessMaskOptions& options = {});

/// The same arrays for masks that are not stored.
MaskInfo process_dynamic_mask(const std::vector<Mask>& heads, BlockShape block,
                              const ProcessMaskOptions& options = {});
MaskInfo process_dynamic_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                                  const ProcessMaskOptions& options = {});

/// Settings that the arrays of a MaskInfo do not contain: from the caller, or from attributes of their file,
/// written as the options of `ejk mask-info` (block, shape, dkv, head_shards, q_seq_shards).
struct StoredSettings {
  std::optional<BlockShape> block = {};  // else that of partial_mask_blocks
  std::optional<Shape> shape = {};  // (heads, queries, keys); else as many heads as rows, lengths unknown
  std::optional<Direction> direction = {};                                              // else forward
  std::optional<std::int64_t> head_shards = {}, q_seq_shards = {}, kv_seq_shards = {};  // else 1
};

/// Masks from stored arrays, which are walked as the kernel of their layout does.
class StoredMaskInfo {
 public:
  /// The arrays by their names in MaskInfo. Indices and elements are read when a mask is created or
  /// evaluated. Throws Error{input} about an array that is missing or inconsistent, Error{usage} if
  /// `settings` contradict the attributes.
  explicit StoredMaskInfo(const ArrayGroup& arrays, const StoredSettings& settings = {});

  static const std::vector<std::string>& array_names();

  /// Whether the names of the arrays are those of a layout.
  static bool is_in(const ArrayGroup& arrays);

  /// Bytes that are buffered, at most, and read before a mask is evaluated.
  struct Cost {
    std::int64_t buffered = 0, read = 0;
  };
  static Cost cost(const ArrayGroup& arrays);

  /// Heads and lengths as far as they are known.
  MaskShape shape() const;

  /// The stored mask of one head, of a shape (heads, queries, keys). Errors: a shape that does not match the
  /// arrays; an index out of range; a block that is visited twice; partial blocks that the kernel computes
  /// (Code::computable_mask) or that are missing.
  Mask mask(const Shape& shape, std::int64_t head) const;

  /// All pairs in the visited blocks, whose entry in block_mask is not 0.
  Mask visited(const Shape& shape, std::int64_t head) const;

 private:
  std::shared_ptr<const mask::StoredMasks> masks_;
};

/// The arrays of a MaskInfo as they are stored, with its settings as attributes; valid as long as it is.
ArrayGroup stored_arrays(const MaskInfo& info);
ArrayGroup stored_arrays(MaskInfo&&) = delete;

/// An array of a plan.
struct PlannedArray {
  std::string name;
  ArrayType type;
};

/// The sparsity report.
Report describe(const MaskInfo& info);

/// The blocks of a mask at the smallest power of two that gives at most 2048 a side, for pages. Reads the
/// mask.
BlockPicture picture_of(const Mask& mask, std::string key, std::string title);
/// Memory of the picture and its page.
std::int64_t picture_bytes(const Mask& mask);

}  // namespace ejk
