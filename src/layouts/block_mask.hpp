// Block masks: the non-empty blocks of a mask, and the elements of those that are partial. Every layout is
// read into one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ejk/mask.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

using namespace mask;  // bits, rectangles and states of blocks

/// The non-empty blocks of a mask. Memory is proportional to their number.
struct BlockGrid {
  static constexpr std::int32_t kFull = -1;
  struct Entry {
    std::int32_t column = 0;
    std::int32_t pattern = kFull;  // of a partial block; kFull: all True
  };

  BlockShape block;
  std::int64_t q_blocks = 0;
  std::int64_t kv_blocks = 0;
  std::vector<std::int64_t> begins;  // (q blocks + 1): row i has entries [begins[i], begins[i + 1])
  std::vector<Entry> entries;        // in each row by ascending column

  std::span<const Entry> row(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return std::span(entries).subspan(static_cast<std::size_t>(begins[at]),
                                      static_cast<std::size_t>(begins[at + 1] - begins[at]));
  }
  Rectangle whole_block(std::int64_t i, std::int64_t j) const {
    return {i * block.q, (i + 1) * block.q, j * block.kv, (j + 1) * block.kv};
  }
};

class BlockElements {
 public:
  virtual ~BlockElements() = default;
  /// Fills a part of a block in block row `i`, relative to the block. Thread-safe.
  virtual void fill(std::int64_t i, std::int32_t pattern, const Rectangle& part,
                    const BitRows& out) const = 0;
};

/// One head's mask by blocks: what layouts are read into. Copies share grid and elements.
struct BlockMask {
  std::shared_ptr<const BlockGrid> grid;
  std::shared_ptr<const BlockElements> elements;  // null if no block is partial
  std::int64_t q_length = 0, kv_length = 0;       // may cut the last blocks short

  BlockMask padded() const {
    return {grid, elements, grid->q_blocks * grid->block.q, grid->kv_blocks * grid->block.kv};
  }
};

/// `text`: the mask as an expression.
Mask to_mask(BlockMask blocks, std::string text);

}  // namespace ejk::blocks
