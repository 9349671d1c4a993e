// A pass over a mask: the state of every block, the distinct partial blocks, and the counts of the report.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"
#include "mask/node.hpp"
#include "mask/patterns.hpp"

namespace ejk::blocks {

using namespace mask;  // bits, rectangles and states of blocks

/// Most words of bits in a panel, unless a single block has more.
inline constexpr std::int64_t kPanelWords = std::int64_t{1} << 17;

/// Whether a block that is not scanned needs its elements.
inline bool is_open(BlockState state) {
  return state == BlockState::partial || state == BlockState::undecided;
}

enum class Patterns { kept, dropped };
enum class Reading { any_order, in_order };

struct Scan {
  MaskSummary summary;
  Array pattern_ids;  // int32, for each stored state: the pattern of a partial block, else 0
};

/// The part of a Scan for a range of block rows.
struct BandScan {
  IndexRange rows;              // of blocks
  MaskSummary summary;          // states and sums of these rows; without ranges and distinct blocks
  Array pattern_ids;            // by first appearance in the table
  std::vector<Word> rows_seen;  // a bit for each query: of these rows, and attends to a key
  std::vector<Word> keys_seen;  // a bit for each key: a query of these rows attends to it
};

BandScan begun_scan(const Mask& mask, BlockShape block, IndexRange rows, Patterns patterns);

/// The Scan, from the scan of all rows of blocks. `patterns`: more than the largest id.
Scan completed(BandScan all, std::int64_t patterns);

/// Classifies the blocks of a mask and reads the undecided ones. Elements outside of the mask are False.
/// Partial blocks enter `table`, if any, in row-major order; a table of digests counts them without ids.
///
/// Time: a few operations a block, and one read of every undecided or partial block; for a mask with known
/// bands a few operations for each query of such a block. Memory: the states, the ids, and scan_bytes. Throws
/// Error{budget} for a block larger than any memory.
///
/// Ranks of a communicator share the rows of blocks, and all get the whole; `table` is null then.
Scan scan_mask(const Mask& mask, BlockShape block, PatternTable* table,
               const std::function<void(std::int64_t blocks)>& done = {},
               Communicator& comm = single_process());

BandScan scan_band(const Mask& mask, BlockShape block, IndexRange rows, PatternTable* table,
                   const std::function<void(std::int64_t blocks)>& done = {});

/// The scanned states as a picture, with densities for a page. The caller sets key and title. It may outlive the
/// arguments.
BlockPicture picture_of(BlockShape block, const MaskSummary& summary);

/// The blocks whose states and ids a scan stores.
struct HeldBlocks {
  std::int64_t all = 0;
  std::int64_t widest = 0;   // most in a block row
  std::int64_t tallest = 0;  // most in a block column
};
HeldBlocks held_blocks(const Mask& mask, BlockShape block);

/// Workspace of scan_mask on all threads, in bytes, beside the states, the ids and the partial blocks.
/// Reading in order is an upper bound for any mask. Nothing if it exceeds any memory.
std::optional<std::int64_t> scan_bytes(std::int64_t q_length, std::int64_t kv_length, BlockShape block,
                                       Patterns patterns, Reading reading);

}  // namespace ejk::blocks
