// One pass over a mask: the state of every block, its partial blocks, and what the report counts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/mask_info.hpp"
#include "mask/patterns.hpp"

namespace ejk::blocks {

using namespace mask;  // bits, rectangles and states of blocks

/// Words of bits that a panel has at the most, unless a single block has more.
inline constexpr std::int64_t kPanelWords = std::int64_t{1} << 17;

enum class Patterns { kept, dropped };
enum class Reading { any_order, in_order };

struct Scan {
  MaskSummary summary;
  Array pattern_ids;  // int32, for each block whose state is held: the pattern of a partial one; others 0
};

/// What a pass over some rows of blocks found: a part of a Scan.
struct BandScan {
  IndexRange rows;      // of blocks
  MaskSummary summary;  // states of these rows alone, sums over them; no ranges, no distinct blocks
  Array pattern_ids;    // of the blocks that are held, by where they stand among all that the table has seen
  std::vector<Word> rows_seen;  // all queries: those of these rows that see a key
  std::vector<Word> keys_seen;  // all keys: those that a query of these rows sees
};

/// Before any row was looked at.
BandScan begun_scan(const Mask& mask, BlockShape block, IndexRange rows, Patterns patterns);

/// The Scan, from the scan of all rows of blocks. `patterns`: more than the largest id.
Scan completed(BandScan all, std::int64_t patterns);

/// Cuts the mask into blocks (the last of a row or column may be cut short; what is missing of it counts as
/// False) and looks into those that cannot be told otherwise. Partial blocks are entered into `table` in
/// row-major order when one is given; else no pattern is kept. A table of digests counts them: there are no ids.
///
/// Time: a few operations a block, and reading every undecided or partial block once; where the mask tells its
/// bands, a few operations for each query that sees keys of such a block. Memory: the states, the
/// ids, and scan_bytes: with a table a block's bits are held whole, cut short or not, else as far as the mask
/// goes. Throws Error{budget} for a block that no memory can hold.
///
/// A communicator shares the rows of blocks, and all ranks get the whole; `table` is null unless it is a communicator of one rank
/// (mask/rank_scan.hpp joins the tables of several).
Scan scan_mask(const Mask& mask, BlockShape block, PatternTable* table,
               const std::function<void(std::int64_t blocks)>& done = {},
               Communicator& comm = single_process());

/// The same for some rows of blocks, by this process alone.
BandScan scan_band(const Mask& mask, BlockShape block, IndexRange rows, PatternTable* table,
                   const std::function<void(std::int64_t blocks)>& done = {});

/// Runs of queries, end to end from the first to the last, and what each sees of the masks that were scanned.
struct QueryRuns {
  /// Run r is [bounds[r], bounds[r + 1]); ascending, from 0 to q_length.
  QueryRuns(std::vector<std::int64_t> run_bounds, std::int64_t kv_length);

  std::int64_t count() const { return static_cast<std::int64_t>(pairs.size()); }
  Word* keys_of(std::int64_t run) { return keys.data() + run * row_words; }
  const Word* keys_of(std::int64_t run) const { return keys.data() + run * row_words; }

  std::vector<std::int64_t> bounds;
  std::int64_t row_words;
  std::vector<std::int64_t> pairs;  // True elements of each run, of all scans together
  std::vector<Word> keys;           // (runs, row_words): the keys that a query of the run sees in any scan
};

/// scan_mask for several block sizes, in one pass over the elements: one that any size must look at is filled
/// once, none where the mask tells its bands. tables[s] is for blocks[s]. `runs` may be null; else every row of
/// blocks[0] is cut at a bound of the runs, and the True elements count `weight` times.
///
/// Time: as scan_mask for each size, without the filling, which is done once. Memory: sizes_bytes, and of
/// each size the states, the ids, the partial blocks and scan_bytes.
std::vector<Scan> scan_sizes(const Mask& mask, const std::vector<BlockShape>& blocks,
                             const std::vector<PatternTable*>& tables, QueryRuns* runs, std::int64_t weight,
                             const std::function<void(std::int64_t blocks)>& done = {});

/// Bytes of the elements that scan_sizes holds for any of these masks, and of what it notes. Nothing where that is more than any memory has.
std::optional<std::int64_t> sizes_bytes(const std::vector<Mask>& masks, const std::vector<BlockShape>& blocks,
                                        Reading reading);

/// The blocks of which a scan holds the states and ids.
struct HeldBlocks {
  std::int64_t all = 0;
  std::int64_t widest = 0;   // the most in a row of blocks
  std::int64_t tallest = 0;  // and in a column
};
HeldBlocks held_blocks(const Mask& mask, BlockShape block);

/// Bytes in which a thread notes what it finds of one block size, with so many words of bits that it looks at.
/// Nothing where that is more than any memory has.
std::optional<std::int64_t> part_bytes(std::int64_t q_length, std::int64_t kv_length, BlockShape block,
                                       Patterns patterns, std::int64_t panel_words);

/// Bytes that scan_mask works in, on all threads: beside the states, the ids and the partial blocks that it
/// finds. A mask that is read in order takes whole rows of blocks, on one thread; what is enough for that one
/// is enough for any other. Nothing where that is more than any memory has.
std::optional<std::int64_t> scan_bytes(std::int64_t q_length, std::int64_t kv_length, BlockShape block,
                                       Patterns patterns, Reading reading);

}  // namespace ejk::blocks
