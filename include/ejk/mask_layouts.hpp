// Block metadata of masks in the arrays of other libraries, under their names and dtypes, equal to their own
// to the element where these are defined.
//
// Sources: Tokamax 0.0.12 (splash attention), torch 2.13 (FlexAttention's BlockMask), FlashAttention-4
// (BlockSparseTensorsTorch), SciPy (bsr_array), FlashInfer 0.7 (BlockSparseAttentionWrapper,
// VariableBlockSparseAttentionWrapper), Paddle (flashmask_attention), MagiAttention (flex_flash_attn). Settings
// that the arrays of a library lack are arrays beside them: block, shape, BLOCK_SIZE, seq_lengths, causal, dkv,
// q_seq_shards, kv_seq_shards. Each layout is written and read by one file in src/layouts/;
// StoredMaskInfo reads all of them, and FlashInfer's custom masks of requests (custom_mask, packed_custom_mask).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"

namespace ejk {

enum class MaskLayout : std::uint8_t {
  tokamax,              // lists of the active blocks, look-ahead, distinct partial blocks
  flex,                 // the blocks of each row and column, partial and full apart
  fa4,                  // the same of rows, or of columns for the backward pass
  bsr,                  // indptr, indices, data
  flashinfer,           // indptr, indices, bits of the elements
  flashinfer_variable,  // which blocks attend, and their sizes
  flashmask,            // the masked rows of each column, as at most two ranges
  magi                  // rectangles, triangles and bands of queries x keys
};
inline constexpr MaskLayout kMaskLayouts[] = {MaskLayout::tokamax,    MaskLayout::flex,
                                              MaskLayout::fa4,        MaskLayout::bsr,
                                              MaskLayout::flashinfer, MaskLayout::flashinfer_variable,
                                              MaskLayout::flashmask,  MaskLayout::magi};

std::string_view name_of(MaskLayout layout);
/// Of its arrays, in order.
std::vector<std::string> mask_array_names(MaskLayout layout);
/// Whether its arrays are those of equal blocks; flashinfer_variable has blocks of any sizes, flashmask and magi
/// have pairs alone.
bool has_blocks(MaskLayout layout);

/// In which order the key blocks add to a tile of dQ, so that its bits are the same in each run.
enum class WriteOrder : std::uint8_t { ascending, descending };
/// "ascending", "descending".
std::string_view name_of(WriteOrder order);

struct MaskLayoutSettings {
  MaskLayout layout = MaskLayout::flex;
  /// Of tokamax and fa4: the arrays of the backward pass.
  Direction direction = Direction::forward;
  /// Lengths that blocks do not divide: the last blocks are partial, or of fa4 as full as they can be.
  bool pad = false;
  /// Of tokamax, as in MaskInfoSettings; without shrink_grid the lists have every block.
  std::int64_t q_seq_shards = 1, kv_seq_shards = 1;
  bool shrink_grid = true, downcast = true, computable = true;
  /// Of tokamax: the arrays of process_dynamic_mask, with the elements of every block; of one shard.
  bool dynamic = false;
  /// Of flex, and of fa4 for the backward pass: dq_write_order and dq_write_order_full as well.
  std::optional<WriteOrder> dq_write_order = std::nullopt;
  /// Of fa4: where packed sequences of queries and keys begin, and the ends; each begins a block.
  /// Without cu_seqlens_k both are the same.
  IntegerArray cu_seqlens_q = {}, cu_seqlens_k = {};
  /// Of flashinfer_variable: queries and keys of each block, of all heads; without, blocks of the given size.
  IntegerArray q_sizes = {}, kv_sizes = {};
  /// As in ProcessMaskOptions; of magi the slices count as well.
  std::int64_t max_pattern_bytes = 0;
  BlockProgress progress = {};
};

/// The arrays, and the results of the scan for the report.
struct MaskArrays : ScannedMasks {
  MaskLayoutSettings settings;
  std::vector<std::pair<std::string, std::shared_ptr<const ArraySource>>> arrays;
  /// Elements in which the arrays differ from the masks, and the first (head, query, key): flashmask and
  /// flashinfer_variable alone have masks that they cannot store.
  std::int64_t differing = 0;
  Shape first_difference;
};

/// Masks, one a head, of one shape. Errors: those of process_mask; heads of different masks where the layout
/// has one for all (tokamax, bsr, flashinfer, magi); numbers beyond the dtype of an array; about cu_seqlens_q,
/// cu_seqlens_k, q_sizes or kv_sizes those that are not of the mask; Error{budget} beyond max_pattern_bytes.
MaskArrays make_mask_arrays(const std::vector<Mask>& heads, BlockShape block,
                            const MaskLayoutSettings& settings);

/// Memory of make_mask_arrays with its result, at most, without what max_pattern_bytes limits.
/// Throws what it throws before it reads a mask.
std::int64_t mask_arrays_bytes(const std::vector<Mask>& heads, BlockShape block,
                               const MaskLayoutSettings& settings);

/// Queries and keys by cu_seqlens, or by sizes of blocks of both; empty where neither is given. Throws Error{input}
/// for arrays that are none, and for lengths of 0.
Shape lengths_of(const MaskLayoutSettings& settings);

/// A block size for layouts without blocks: the least power of two with at most 2048 blocks a side.
BlockShape scan_block(std::int64_t q_length, std::int64_t kv_length);

/// The sparsity report, and whether the arrays have exactly these masks.
Report describe(const MaskArrays& arrays);

}  // namespace ejk
