// Tile sizes of FlashAttention-4 by architecture and head size, as its interface chooses them. O(1).
// tests: tests/sparsity/test_flash_tiles.cpp
#include "ejk/sparsity.hpp"

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

// The backward pass of Hopper, of masks by blocks: without causal and window.
BlockShape sm90_backward_tile(const Fa4Kernel& kernel, BlockShape block) {
  if (kernel.head_dim <= 64) return {128, 128};
  if (kernel.head_dim <= 96) return {64, 128};
  if (kernel.head_dim <= 128) return {block.q % 80 == 0 ? 80 : 64, 128};
  return {64, kernel.head_dim <= 192 ? 96 : 64};
}

}  // namespace

std::string_view name_of(Fa4Arch arch) { return arch == Fa4Arch::sm90 ? "sm90" : "sm100"; }

BlockShape fa4_tile(const Fa4Kernel& kernel, BlockShape block, std::int64_t queries) {
  for (const std::int64_t size : {kernel.head_dim, kernel.head_dim_v})
    if (size < 1 || size > kLargestFa4Head)
      throw core::usage("a head has 1 to {} elements, not {}", kLargestFa4Head, size);
  const bool hopper = kernel.arch == Fa4Arch::sm90;
  if (kernel.direction == Direction::dkv)
    return hopper ? sm90_backward_tile(kernel, block) : BlockShape{128, 128};
  return hopper ? sm90_tile(kernel, block) : sm100_tile(kernel, queries);
}

std::string fa4_refusal(const Fa4Kernel& kernel, BlockShape block, std::int64_t queries) {
  const BlockShape tile = fa4_tile(kernel, block, queries);
  const bool hopper = kernel.arch == Fa4Arch::sm90, backward = kernel.direction == Direction::dkv;
  const std::string name = fmt::format("{}{}", name_of(kernel.arch), backward ? "'s backward pass" : "");
  if (backward && kernel.is_varlen) return "there is no backward pass over blocks of packed sequences";
  if (backward && !hopper && kernel.head_dim == 256 && kernel.head_dim_v == 256)
    return fmt::format("{} takes no blocks at head size 256", name);
  if (hopper ? block.kv != tile.kv : block.kv % tile.kv != 0)
    return fmt::format("{} has tiles of {} keys at this head size, and blocks have {}, not {}", name, tile.kv,
                       block.kv, hopper ? "as many" : "a multiple");
  if (backward && !hopper && kernel.head_dim == 192 && block.kv % (2 * tile.kv) != 0)
    return fmt::format(
        "{} has pairs of tiles of {} keys at head size 192, and blocks have {}, not a multiple", name,
        tile.kv, block.kv);
  if (kernel.is_varlen ? block.q != tile.q : block.q % tile.q != 0)
    return fmt::format("{} has tiles of {} queries{}, and blocks have {}, not {}", name, tile.q,
                       kernel.is_varlen ? " for packed sequences" : "", block.q,
                       kernel.is_varlen ? "as many" : "a multiple");
  return "";
}

}  // namespace ejk
