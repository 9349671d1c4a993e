// MaskInfo: what a block-sparse attention kernel needs to know of its masks.
//
// The query × key grid is cut into blocks. block_mask names the state of each block (0 empty, 1 partial,
// 2 full); data_next says which key/value (forward) or query (dkv) block to fetch next, mask_next which
// partial block; partial_mask_blocks holds the distinct partial blocks. Source: JAX's splash attention and
// ejkernel's block-sparse attention, whose arrays these equal to the element; src/mask/mask_info.cpp states
// the procedure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"
#include "ejk/report.hpp"

namespace ejk {

struct BlockShape {
  std::int64_t q = 0;
  std::int64_t kv = 0;
};

/// Queries per row of blocks first: forward walks the keys of a query block, dkv the queries of a key block.
enum class Direction { forward, dkv };

struct ProcessMaskOptions {
  std::int64_t head_shards = 1;
  std::int64_t q_seq_shards = 1;
  bool shrink_grid = true;  // ignored by dynamic masks
  bool downcast = true;     // index arrays in the narrowest of int8, int16, int32
  bool pad = false;         // lengths that blocks do not divide are padded with False
  /// A single causal, local or chunked mask is left to the kernel, which evaluates it: without mask_next and
  /// partial_mask_blocks. When false they are made for such a mask too. Ignored by dynamic masks.
  bool computable = true;
  /// Bytes that the distinct partial blocks may take while they are collected (an eighth of their size as
  /// bools); 0: no limit. More is Error{budget}.
  std::int64_t max_pattern_bytes = 0;
  /// Called now and then with blocks done and blocks in all; may come from any thread, one at a time.
  std::function<void(std::int64_t done, std::int64_t all)> progress;
};

/// Indices [begin, end).
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What one pass over a mask found.
struct MaskSummary {
  std::int64_t q_length = 0;   // without padding
  std::int64_t kv_length = 0;  // without padding
  Array states;                // (q blocks, kv blocks) uint8: 0 empty, 1 partial, 2 full
  std::int64_t empty_blocks = 0;
  std::int64_t partial_blocks = 0;
  std::int64_t full_blocks = 0;
  std::int64_t true_elements = 0;
  std::int64_t distinct_partial_blocks = 0;  // within this mask
  std::vector<IndexRange> rows_without_key;
  std::vector<IndexRange> keys_without_row;
};

struct MaskInfo {
  Direction direction = Direction::forward;
  BlockShape block;
  ProcessMaskOptions options;

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

/// The checks of process_mask alone; no element is read.
void check_mask_blocks(const std::vector<Mask>& heads, BlockShape block,
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

/// Bytes of memory that the index arrays and their making take at the most; the partial blocks come on top.
std::int64_t mask_info_bytes(std::int64_t heads, std::int64_t q_length, std::int64_t kv_length,
                             BlockShape block);

/// The sparsity report.
Report describe(const MaskInfo& info);

}  // namespace ejk
