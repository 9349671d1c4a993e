// One pass over a mask: the state of every block, its partial blocks, and what the report counts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ejk/mask_info.hpp"
#include "mask/patterns.hpp"

namespace ejk::mask {

/// Words of bits that a panel has at the most, unless a single block has more.
inline constexpr std::int64_t kPanelWords = std::int64_t{1} << 17;

struct Scan {
  MaskSummary summary;
  Array pattern_ids;  // (q blocks, kv blocks) int32: the pattern of each partial block; others 0
};

/// Cuts the mask into blocks (the last of a row or column may be cut short; what is missing of it counts as
/// False) and looks into those that cannot be told otherwise. Partial blocks are entered into `table` in
/// row-major order when one is given; else no pattern is kept.
///
/// Time: a few operations a block, and reading every undecided or partial block once. Memory: the states, the
/// ids, and scan_bytes: with a table a block's bits are held whole, cut short or not, else as far as the mask
/// goes. Throws Error{budget} for a block that no memory can hold.
Scan scan_mask(const Mask& mask, BlockShape block, PatternTable* table,
               const std::function<void(std::int64_t blocks)>& done = {});

/// Runs of queries, end to end from the first to the last, and what each sees of the masks that were scanned.
struct QueryRuns {
  /// Run r is [bounds[r], bounds[r + 1]); ascending, from 0 to q_length.
  QueryRuns(std::vector<std::int64_t> run_bounds, std::int64_t kv_length);

  std::int64_t count() const { return static_cast<std::int64_t>(pairs.size()); }
  const Word* keys_of(std::int64_t run) const { return keys.data() + run * row_words; }

  std::vector<std::int64_t> bounds;
  std::int64_t row_words;
  std::vector<std::int64_t> pairs;  // True elements of each run, of all scans together
  std::vector<Word> keys;           // (runs, row_words): the keys that a query of the run sees in any scan
};

/// scan_mask for several block sizes, in one pass over the mask: an element that any size must look at is
/// filled once. tables[s] is for blocks[s]. `runs` may be null; else every row of blocks[0] is cut at a bound
/// of the runs, and the True elements count `weight` times.
///
/// Time: as scan_mask for each size, without the filling, which is done once. Memory: sizes_bytes, and of
/// each size the states, the ids, the partial blocks and scan_bytes.
std::vector<Scan> scan_sizes(const Mask& mask, const std::vector<BlockShape>& blocks,
                             const std::vector<PatternTable*>& tables, QueryRuns* runs, std::int64_t weight,
                             const std::function<void(std::int64_t blocks)>& done = {});

/// Bytes of the elements that scan_sizes holds. Nothing where that is more than any memory has.
std::optional<std::int64_t> sizes_bytes(std::int64_t q_length, std::int64_t kv_length,
                                        const std::vector<BlockShape>& blocks);

enum class Patterns { kept, dropped };
enum class Reading { any_order, in_order };

/// Bytes that scan_mask works in, on all threads: beside the states, the ids and the partial blocks that it
/// finds. A mask that is read in order takes whole rows of blocks, on one thread; what is enough for that one
/// is enough for any other. Nothing where that is more than any memory has.
std::optional<std::int64_t> scan_bytes(std::int64_t q_length, std::int64_t kv_length, BlockShape block,
                                       Patterns patterns, Reading reading);

}  // namespace ejk::mask
