// Index arrays of a MaskInfo from the states of blocks: look-ahead, shrinking, downcasting.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ejk/mask_info.hpp"

namespace ejk::blocks {

/// Partition of heads and queries into shards. A slab is one head shard × one query shard.
struct Layout {
  Direction direction = Direction::forward;
  std::int64_t head_shards = 1;
  std::int64_t q_shards = 1;
  std::int64_t rows = 1;  // of the index arrays: one a head, or one a head shard
  std::int64_t q_blocks = 1;
  std::int64_t kv_blocks = 1;

  std::int64_t rows_per_shard() const { return rows / head_shards; }
  std::int64_t q_blocks_per_shard() const { return q_blocks / q_shards; }
  std::int64_t grid() const { return q_blocks * kv_blocks; }
};

/// Source of a row of the index arrays; a pattern id for each stored state.
struct RowGrid {
  const BlockStates* states;
  const std::int32_t* patterns;  // null if there are no partial blocks
};

/// The three arrays, (rows, height, width); mask_next is empty if there are no partial blocks.
struct IndexArrays {
  Array data_next, mask_next, block_mask;
};

/// Whether step 6 applies; all rows have the same states then.
enum class Empty { kept, omitted };

struct IndexTypes {
  Shape shape;
  DType data_next, mask_next, block_mask;
};
IndexTypes index_types(const Layout& layout, const std::vector<RowGrid>& rows, std::int64_t patterns,
                       Empty empty, const std::function<DType(std::int64_t)>& dtype_of);

/// Steps 5, 6 and 8 of the procedure in mask_info.cpp, with arrays of the type `dtype_of` their largest value
/// (int8, int16 or int32). Pattern ids in `rows` are below `patterns`.
IndexArrays index_arrays(const Layout& layout, const std::vector<RowGrid>& rows, std::int64_t patterns,
                         Empty empty, const std::function<DType(std::int64_t)>& dtype_of);

/// The narrowest of int8, int16 and int32 for values up to `largest`.
DType narrowest(std::int64_t largest);

Array narrowed(Array array, DType dtype);

}  // namespace ejk::blocks
