#include "commands.hpp"

namespace ejk::app {

std::span<const Command> commands() {
  static const std::vector<Command> table{
      {"mask-info",
       "Masks",
       "block metadata of attention masks, and how sparse they are",
       "ejk mask-info --mask 'causal & documents(cu.npy)' --block 128x128 -o info.h5",
       {"data_next", "mask_next", "block_mask", "partial_mask_blocks", "q_sequence", "is_dynamic_mask"},
       mask_info},
      {"mask",
       "Masks",
       "write a mask out as a bool array",
       "ejk mask --mask 'local(left=3, right=0)' --shape 8x8",
       {"mask"},
       mask},
  };
  return table;
}

}  // namespace ejk::app
