// Block metadata of masks in the arrays of libraries, under their names and dtypes, equal to their own to the
// element where these are defined.
//
// One path writes all of them: MaskArraysPlan checks the settings and states memory and work, run() scans the
// distinct masks once, and the layout's row in the table of src/layouts/ writes the arrays. The row also has the
// settings that the layout takes and why an array is absent. Ranks scan block rows of their own where the row says
// that the layout is divided (jax); rank 0 makes the arrays of the others.
//
// Sources: JAX's splash attention (mask_info.hpp), Tokamax 0.0.12 (splash attention), torch 2.13 (FlexAttention's
// BlockMask), FlashAttention-4 (BlockSparseTensorsTorch), SciPy (bsr_array), FlashInfer 0.7
// (BlockSparseAttentionWrapper, VariableBlockSparseAttentionWrapper), Paddle (flashmask_attention), MagiAttention
// (flex_flash_attn). Settings that the arrays of a library lack are arrays beside them: block, shape, BLOCK_SIZE,
// seq_lengths, causal, dkv, q_seq_shards, kv_seq_shards. Each layout is written and read by one file in
// src/layouts/; StoredMaskInfo reads all of them, and FlashInfer's custom masks of requests (custom_mask,
// packed_custom_mask).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/communicator.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"

namespace ejk {

enum class MaskLayout : std::uint8_t {
  jax,                  // the arrays of MaskInfo
  tokamax,              // lists of the active blocks, look-ahead, distinct partial blocks
  flex,                 // the blocks of each row and column, partial and full apart
  fa4,                  // the same of rows, or of columns for the backward pass
  bsr,                  // indptr, indices, data
  flashinfer,           // indptr, indices, bits of the elements
  flashinfer_variable,  // which blocks attend, and their sizes
  flashmask,            // the masked rows of each column, as at most two ranges
  magi                  // rectangles, triangles and bands of queries x keys
};
inline constexpr MaskLayout kMaskLayouts[] = {MaskLayout::jax,
                                              MaskLayout::tokamax,
                                              MaskLayout::flex,
                                              MaskLayout::fa4,
                                              MaskLayout::bsr,
                                              MaskLayout::flashinfer,
                                              MaskLayout::flashinfer_variable,
                                              MaskLayout::flashmask,
                                              MaskLayout::magi};

std::string_view name_of(MaskLayout layout);
/// Of its arrays, in order.
std::vector<std::string> mask_array_names(MaskLayout layout);
/// Whether its arrays are those of equal blocks; flashinfer_variable has blocks of any sizes, flashmask and magi
/// have pairs alone.
bool has_blocks(MaskLayout layout);

/// A setting that a layout takes, by its name in files: that of its member, or dkv, cu_seqlens, cu_seqlens_k, block.
struct LayoutSetting {
  std::string_view name;
  std::optional<Direction> direction = std::nullopt;  // in this one alone
  bool is_static = false;                             // not of dynamic masks
};
std::span<const LayoutSetting> layout_settings(MaskLayout layout);
bool takes(MaskLayout layout, std::string_view setting, Direction direction);

/// In which order the key blocks add to a tile of dQ, so that its bits are the same in each run.
enum class WriteOrder : std::uint8_t { ascending, descending };
/// "ascending", "descending".
std::string_view name_of(WriteOrder order);

struct MaskLayoutSettings {
  MaskLayout layout = MaskLayout::jax;
  /// Of jax, tokamax and fa4: the arrays of the backward pass.
  Direction direction = Direction::forward;
  /// Lengths that blocks do not divide: the last blocks are partial, or of fa4 as full as they can be.
  bool pad = false;
  /// Of jax and tokamax, as in MaskInfoSettings; tokamax without shrink_grid lists every block.
  std::int64_t head_shards = 1, q_seq_shards = 1, kv_seq_shards = 1;
  bool shrink_grid = true, downcast = true, computable = true;
  /// Of jax and tokamax: the arrays of process_dynamic_mask, with the elements of every block; of tokamax those
  /// of one shard.
  bool dynamic = false;
  /// Of flex, and of fa4 for the backward pass: dq_write_order and dq_write_order_full as well.
  std::optional<WriteOrder> dq_write_order = std::nullopt;
  /// Of fa4: where packed sequences of queries and keys begin, and the ends; each begins a block.
  /// Without cu_seqlens_k both are the same.
  IntegerArray cu_seqlens_q = {}, cu_seqlens_k = {};
  /// Of flashinfer_variable: queries and keys of each block, of all heads; without, blocks of the given size.
  IntegerArray q_sizes = {}, kv_sizes = {};
};

/// Why an array is absent.
enum class AbsentArray : std::uint8_t {
  no_partial_block,
  every_block,     // a kernel walks the whole grid
  computed,        // a kernel computes the mask from positions
  not_computable,  // no kernel computes the mask from positions
  forward,         // it is of the backward pass
  one_shard,
  no_sequences,   // without cu_seqlens
  no_write_order  // without dq_write_order
};

struct MaskArray {
  std::string name;
  std::shared_ptr<const ArraySource> elements;
  /// Computed by several ranks: the boxes of this rank; `elements` has the type alone. Together they are the
  /// array, each element once.
  std::optional<std::vector<ArrayPart>> parts = std::nullopt;
};

/// The arrays, and the results of the scan for the report. Of several ranks all have the names and types of the
/// arrays, and rank 0 alone has the rest.
struct MaskArrays : ScannedMasks {
  MaskLayoutSettings settings;
  std::vector<MaskArray> arrays;
  std::vector<std::pair<std::string, AbsentArray>> absent;
  /// Elements in which the arrays differ from the masks, and the first (head, query, key): flashmask and
  /// flashinfer_variable alone have masks that they cannot store.
  std::int64_t differing = 0;
  Shape first_difference;
  Shape unshrunk_grid;  // of jax: as in MaskInfo
};

namespace blocks {
struct ArraysPlan;
}

/// Masks, one a head, of one shape, in the arrays of a layout: memory and work before an element is read. Errors:
/// those of process_mask; a setting that the layout does not take; about cu_seqlens_q, cu_seqlens_k, q_sizes or
/// kv_sizes those that are not of the mask.
class MaskArraysPlan {
 public:
  MaskArraysPlan(std::vector<Mask> heads, BlockShape block, const MaskLayoutSettings& settings);

  /// Whether ranks share the work; else rank 0 does it.
  bool is_divided() const;

  /// Memory of run() with its result, at most, without what max_pattern_bytes limits.
  std::int64_t work_bytes() const;

  /// Estimated work of each rank, at most: costs in bytes read.
  std::vector<RankWork> shares(std::int64_t ranks) const;

  /// Reads the masks. Several ranks scan block rows of their own. max_pattern_bytes as in ProcessMaskOptions, for
  /// the partial blocks that the rank found; on rank 0 of several also for some 100 bytes for each partial block of
  /// any rank; of magi for the slices, too. Errors: heads of different masks where the layout has one for all
  /// (tokamax, bsr, flashinfer, magi); numbers beyond the dtype of an array; Error{budget} beyond
  /// max_pattern_bytes. Collective.
  MaskArrays run(Communicator& comm = single_process(), const BlockProgress& progress = {},
                 std::int64_t max_pattern_bytes = 0) const;

 private:
  friend Report describe(const MaskArraysPlan& plan);
  std::shared_ptr<const blocks::ArraysPlan> plan_;
};

/// MaskArraysPlan(heads, block, settings).run() of one process.
MaskArrays make_mask_arrays(const std::vector<Mask>& heads, BlockShape block,
                            const MaskLayoutSettings& settings);

/// Lengths, grid and arrays.
Report describe(const MaskArraysPlan& plan);

/// Queries and keys by cu_seqlens, or by sizes of blocks of both; empty where neither is given. Throws Error{input}
/// for arrays that are none, and for lengths of 0.
Shape lengths_of(const MaskLayoutSettings& settings);

/// A block size for layouts without blocks: the least power of two with at most 2048 blocks a side.
BlockShape scan_block(std::int64_t q_length, std::int64_t kv_length);

/// The sparsity report, and whether the arrays have exactly these masks.
Report describe(const MaskArrays& arrays);

}  // namespace ejk
