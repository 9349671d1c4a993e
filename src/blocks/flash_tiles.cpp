// Tile sizes of FlashAttention-4 by architecture and head size, as its interface chooses them. O(1).
// tests: tests/blocks/test_flash_tiles.cpp
#include "ejk/flash_tiles.hpp"

#include <fmt/format.h>

#include "core/require.hpp"

namespace ejk {

namespace {

// Of Hopper, which shrinks its tile to the blocks where it can.
BlockShape sm90_tile(const Fa4Kernel& kernel, BlockShape block) {
  constexpr std::int64_t kSmallest = 64, kStep = 16;  // queries of a tile; what its keys are a multiple of
  BlockShape tile{128, 128};
  if (kernel.head_dim <= 96 && block.q % 192 == 0)
    tile = {192, kernel.head_dim <= 64 ? 128 : 144};
  else if (kernel.head_dim > 192)
    tile.kv = 80;
  else if (kernel.head_dim > 128 && kernel.head_dim_v > 128)
    tile.kv = 112;
  if (block.q % tile.q != 0 && block.q % kSmallest == 0) tile.q = kSmallest;
  if (block.kv < tile.kv && block.kv % kStep == 0) tile.kv = block.kv;
  return tile;
}

// Of Blackwell, with two stages of queries unless these fit one, or two do not fit its memory.
BlockShape sm100_tile(const Fa4Kernel& kernel, std::int64_t queries) {
  constexpr std::int64_t kTile = 128;
  return {queries > kTile && kernel.head_dim_v != 256 ? 2 * kTile : kTile, kTile};
}

}  // namespace

std::string_view name_of(Fa4Arch arch) { return arch == Fa4Arch::sm90 ? "sm90" : "sm100"; }

BlockShape fa4_tile(const Fa4Kernel& kernel, BlockShape block, std::int64_t queries) {
  for (const std::int64_t size : {kernel.head_dim, kernel.head_dim_v})
    if (size < 1 || size > 256) throw core::usage("a head has 1 to 256 elements, not {}", size);
  return kernel.arch == Fa4Arch::sm90 ? sm90_tile(kernel, block) : sm100_tile(kernel, queries);
}

std::string fa4_refusal(const Fa4Kernel& kernel, BlockShape block, std::int64_t queries) {
  const BlockShape tile = fa4_tile(kernel, block, queries);
  const bool same_keys = kernel.arch == Fa4Arch::sm90;
  if (same_keys ? block.kv != tile.kv : block.kv % tile.kv != 0)
    return fmt::format("{} has tiles of {} keys at this head size, and blocks have {}, not {}",
                       name_of(kernel.arch), tile.kv, block.kv, same_keys ? "as many" : "a multiple");
  if (block.q % tile.q != 0)
    return fmt::format("{} has tiles of {} queries, and blocks have {}, not a multiple", name_of(kernel.arch),
                       tile.q, block.q);
  return "";
}

}  // namespace ejk
