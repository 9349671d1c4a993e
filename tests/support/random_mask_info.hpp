// Random masks of several heads, and MaskInfo settings.
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/mask_info.hpp"
#include "support/random_mask.hpp"

namespace plain {

using ejk::BlockShape;
using ejk::Direction;
using ejk::Mask;
using ejk::MaskInfo;
using ejk::MaskInfoKind;
using ejk::ProcessMaskOptions;

struct Setting {
  Direction direction;
  MaskInfoKind kind;
  ProcessMaskOptions how;
};

inline MaskInfo processed(const std::vector<Mask>& heads, BlockShape block, const Setting& s) {
  if (s.kind == MaskInfoKind::dynamic)
    return s.direction == Direction::forward ? process_dynamic_mask(heads, block, s.how)
                                             : process_dynamic_mask_dkv(heads, block, s.how);
  return s.direction == Direction::forward ? process_mask(heads, block, s.how)
                                           : process_mask_dkv(heads, block, s.how);
}

/// Some heads of which several may share a mask, at lengths that the setting can cut up.
struct Example {
  Setting setting;
  BlockShape block;
  std::int64_t q = 0, kv = 0;
  std::vector<Pair> heads;
};

inline Example random_example(Random& random) {
  Example e;
  e.setting.direction = between(random, 0, 1) ? Direction::dkv : Direction::forward;
  e.setting.kind = between(random, 0, 2) == 0 ? MaskInfoKind::dynamic : MaskInfoKind::fixed;
  ProcessMaskOptions& how = e.setting.how;
  how.head_shards = between(random, 1, 2);
  how.q_seq_shards = between(random, 1, 3);
  how.shrink_grid = between(random, 0, 3) != 0;
  how.downcast = between(random, 0, 1) == 1;
  how.pad = between(random, 0, 1) == 1;
  how.computable = false;
  e.block = {between(random, 1, 12), between(random, 1, 70)};
  const std::int64_t q_blocks = how.q_seq_shards * between(random, 1, 3), kv_blocks = between(random, 1, 4);
  e.q = q_blocks * e.block.q - (how.pad ? between(random, 0, e.block.q - 1) : 0);
  e.kv = kv_blocks * e.block.kv - (how.pad ? between(random, 0, e.block.kv - 1) : 0);
  const std::int64_t heads = how.head_shards * between(random, 1, 3);
  const bool one = between(random, 0, 1) == 1;
  for (std::int64_t h = 0; h < heads; ++h) {
    const bool repeat = h > 0 && (one || between(random, 0, 2) == 0);
    e.heads.push_back(repeat ? e.heads.back() : random_mask(random, e.q, e.kv, 2));
  }
  return e;
}

inline MaskInfo info_of(const Example& e) {
  std::vector<Mask> heads;
  for (const Pair& head : e.heads) heads.push_back(head.mask);
  return processed(heads, e.block, e.setting);
}

}  // namespace plain
