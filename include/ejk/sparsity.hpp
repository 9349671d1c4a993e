// Sparsity: cost of masks for a block-sparse kernel at several block sizes, and loads of context-parallel
// ranks. A stored mask is read once for each size, and with ranks once more.
//
// Blocks are those of process_mask with padding (ejk/mask_info.hpp): a block that the edge cuts short is
// partial or empty. A kernel visits the non-empty blocks. For each size, over all heads:
//   pairs allowed       True elements: pairs of a query and a key that it attends to
//   pairs computed      pairs in visited blocks, which a kernel computes whole
//   padding             those of them outside of the mask
//   cost                pairs computed, plus the start of each visited block in pairs
//   metadata            the bytes of the arrays that process_mask gives at that size
//
// Context parallelism: n ranks share the queries, and the queries [a, b) of Q hold the keys
// [a K / Q, b K / Q) of K, rounded down.
//   contiguous   rank r has range r of n
//   zig-zag      of 2 n ranges rank r has r and 2 n - 1 - r, as in ring attention of causal masks
//   balanced     the query blocks of the first block size are assigned in order of decreasing pairs allowed,
//                each to the rank with the least so far; all ranks get equally many, or one more
//   ptrr         torch's _PTRRLoadBalancer: the query blocks in order of decreasing visited blocks are dealt
//                to ranks 0 … n - 1, then n - 1 … 0, and so on. Of one mask and square blocks whose number n
//                divides
// Of c ranges the first Q mod c have one query more. Of equal blocks and ranks the first is taken. A rank's
// pairs computed are those of its queries in blocks of the first size, without padding. A rank receives the
// keys that its queries attend to in any head and that it does not store.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"

namespace ejk {

// Tiles of FlashAttention-4's kernels, and which blocks of a mask fit them. Hopper (sm90) needs blocks of as many
// keys as its tile, Blackwell (sm100) of a multiple; both of a multiple of the tile's queries, or of as many for
// packed sequences. Source: flash-attn-4 4.0.0b36, _get_fwd_config, normalize_block_sparse_config,
// _flash_attn_bwd; without packed heads (pack_gqa).

enum class Fa4Arch : std::uint8_t { sm90, sm100 };
inline constexpr std::array kFa4Archs{Fa4Arch::sm90, Fa4Arch::sm100};
/// "sm90", "sm100".
std::string_view name_of(Fa4Arch arch);

inline constexpr std::int64_t kLargestFa4Head = 256;  // elements
struct Fa4Kernel {
  Fa4Arch arch = Fa4Arch::sm90;
  std::int64_t head_dim = 128;
  std::int64_t head_dim_v = 128;  // of values
  Direction direction = Direction::forward;
  bool is_varlen = false;  // of packed sequences; forward alone
};

/// Queries and keys of a tile for a mask in blocks of this size with this number of queries; of sm100's
/// forward pass the queries of both stages. Throws Error{usage} for head sizes that are not positive or above 256.
BlockShape fa4_tile(const Fa4Kernel& kernel, BlockShape block, std::int64_t queries);

/// Why the kernel does not take these blocks; empty: it does. Errors: as of fa4_tile.
std::string fa4_refusal(const Fa4Kernel& kernel, BlockShape block, std::int64_t queries);

/// The measure of the best size; ties are broken by the other one, then by the order of the sizes.
enum class SparsityMeasure { pairs, metadata };

/// "pairs", "metadata".
const char* name_of(SparsityMeasure measure);

/// Pairs that an H100 computes during one memory latency, as of an index that is followed to the next block.
/// 989 TFLOP/s of dense bfloat16 (NVIDIA's data sheet) are some 4,270 FLOP a cycle on each of 132
/// multiprocessors at 1.755 GHz; a pair takes 4 FLOP for each of 128 elements of a head, so 8 pairs a cycle;
/// the latency is some 480 cycles (arXiv:2402.13499).
inline constexpr std::int64_t kPairsOfBlock = 4096;

struct SparsityOptions {
  /// Cost of visiting a block in pairs, besides its own; not negative.
  std::int64_t block_cost = kPairsOfBlock;
  SparsityMeasure measure = SparsityMeasure::pairs;
  /// Bytes that the metadata may take, as in a processor's scratchpad; other sizes are not chosen.
  std::optional<std::int64_t> metadata_budget = {};
  std::int64_t ranks = 0;  // of context parallelism; 0: none
  /// Of FlashAttention-4: the report says which sizes it takes.
  std::optional<Fa4Kernel> kernel = {};
};

/// Cost of one block size, over all heads.
struct BlockSizeCost {
  BlockShape block;
  std::int64_t q_blocks = 0, kv_blocks = 0;  // of a head
  std::int64_t empty_blocks = 0, partial_blocks = 0, full_blocks = 0;
  std::int64_t pairs_computed = 0;
  std::int64_t padding_pairs = 0;            // among them
  double cost = 0;                           // in pairs; a double, as any block_cost is allowed
  std::int64_t distinct_partial_blocks = 0;  // over all heads
  std::int64_t metadata_bytes = 0;

  // The row of blocks with the most visited blocks (the first of equals), and the mean of all rows.
  std::int64_t heaviest_head = 0, heaviest_row = 0, heaviest_row_blocks = 0;
  double mean_row_blocks = 0;

  /// The blocks of each distinct mask. None where the masks have more than kMostDrawn blocks in all.
  static constexpr std::int64_t kMostDrawn = std::int64_t{1} << 26;
  std::vector<BlockPicture> pictures;
};

enum class Distribution { contiguous, zigzag, balanced, ptrr };

/// "contiguous", "zig-zag", "balanced", "ptrr".
const char* name_of(Distribution distribution);

/// Load of a rank. Pairs of all heads; keys are positions.
struct RankLoad {
  std::int64_t queries = 0;
  std::int64_t pairs_allowed = 0, pairs_computed = 0;
  std::int64_t keys_held = 0, keys_received = 0;
};

struct ContextParallel {
  Distribution distribution = Distribution::contiguous;
  std::vector<RankLoad> ranks;
  std::vector<std::int64_t> block_ranks = {};  // of balanced and ptrr: the rank of each query block
};

/// Loads of ranks whose queries and keys are tokens of a mask, as square as it is: rank r has those at places
/// rank_offsets[r] … rank_offsets[r + 1] - 1 of `order`, which has each once. Pairs computed are 0. One pass
/// over all elements. Throws Error{usage} for another number of tokens.
std::vector<RankLoad> loads_of_order(const Mask& mask, std::span<const std::int32_t> order,
                                     std::span<const std::int64_t> rank_offsets);

/// Memory of loads_of_order.
std::int64_t loads_of_order_bytes(std::int64_t tokens, std::int64_t ranks);

struct Sparsity {
  Shape shape;                              // heads, queries, keys
  std::vector<Mask> masks;                  // the distinct ones, in order of first appearance
  std::vector<std::int64_t> head_mask;      // for each head the index of its mask
  std::int64_t pairs_allowed = 0;           // over all heads
  std::vector<BlockSizeCost> sizes;         // in the order in which they were given
  std::optional<std::size_t> least;         // the size that costs least; nothing where none fits the budget
  std::optional<std::size_t> fewest_pairs;  // that with the fewest pairs computed, of the same ones
  SparsityOptions options;
  /// One a distribution, ptrr where it is one; none without ranks.
  std::vector<ContextParallel> parallel;
  /// Null where there is none.
  const ContextParallel* find(Distribution distribution) const;
};

/// Errors: those of process_mask with padding; no block size; Error{usage} for a negative block_cost, or
/// ranks below 0 or above the queries. max_pattern_bytes as in ProcessMaskOptions, of each size.
Sparsity measure_sparsity(const std::vector<Mask>& heads, const std::vector<BlockShape>& blocks,
                          const SparsityOptions& options = {}, const BlockProgress& progress = {},
                          std::int64_t max_pattern_bytes = 0);

namespace blocks {
struct SizesPlan;
}

/// Plan of measure_sparsity, with its errors of arguments. No element is read.
class SparsityPlan {
 public:
  SparsityPlan(const std::vector<Mask>& heads, const std::vector<BlockShape>& blocks,
               const SparsityOptions& options = {});

  /// Memory of run(), at most, plus some 130 bytes for each distinct partial block.
  std::int64_t work_bytes() const;

  Sparsity run(const BlockProgress& progress = {}, std::int64_t max_pattern_bytes = 0) const;

 private:
  friend Report describe(const SparsityPlan& plan);
  std::shared_ptr<const blocks::SizesPlan> plan_;
};

/// Lengths and grids.
Report describe(const SparsityPlan& plan);

/// Tables of block sizes, and with ranks of distributions and ranks; on a page at most kMostPictures
/// pictures.
Report describe(const Sparsity& sparsity);

}  // namespace ejk
