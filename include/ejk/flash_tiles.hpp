// Tiles of FlashAttention-4's kernels, and which blocks of a mask fit them. Hopper (sm90) needs blocks of as many
// keys as its tile, Blackwell (sm100) of a multiple; both of a multiple of the tile's queries, or of as many for
// packed sequences. Source: flash-attn-4 4.0.0b36, _get_fwd_config, normalize_block_sparse_config,
// _flash_attn_bwd; without packed heads (pack_gqa).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "ejk/mask_info.hpp"

namespace ejk {

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

}  // namespace ejk
