// One pass over a mask: the state of every block, its partial blocks, and what the report counts.
#pragma once

#include <cstdint>
#include <functional>

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
/// ids, and per thread the bits of a part of a row of blocks.
Scan scan_mask(const Mask& mask, BlockShape block, PatternTable* table,
               const std::function<void(std::int64_t blocks)>& done = {});

}  // namespace ejk::mask
