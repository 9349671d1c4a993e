// The names of the lists of FlexAttention and FlashAttention-4, the patterns beside them, and the form of packed
// sequences (fa4_varlen.cpp).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "layouts/layouts.hpp"
#include "layouts/writing.hpp"

namespace ejk::blocks {

struct ListNames {
  const char* partial_count;
  const char* partial;
  const char* full_count;
  const char* full;
};
inline constexpr ListNames kFa4Lists{"mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx"};

/// Whether a pattern is True for all of these rows and columns, where it has no other True elements.
bool is_all_true(const MaskScans& scans, std::int32_t pattern, std::int64_t rows, std::int64_t columns);

/// Numbers of the patterns that lists name, by first use.
class UsedPatterns {
 public:
  explicit UsedPatterns(std::shared_ptr<const PatternTable> table)
      : table_(std::move(table)), number_(static_cast<std::size_t>(table_->size()), -1) {}
  std::int32_t number_of(std::int32_t pattern) {
    std::int32_t& number = number_[static_cast<std::size_t>(pattern)];
    if (number < 0) {
      number = static_cast<std::int32_t>(used_.size());
      used_.push_back(pattern);
    }
    return number;
  }
  /// partial_mask_blocks, and the number of each entry; nothing without partial blocks.
  void write(Array ids, ArraysMade& to) const;

 private:
  std::shared_ptr<const PatternTable> table_;
  std::vector<std::int32_t> number_, used_;
};

/// The lists of packed sequences.
bool is_varlen(const ArrayGroup& group);
std::shared_ptr<const ListedBlocks> list_varlen(const ArrayGroup& group, const StoredSettings& settings);
void write_varlen(const MaskScans& scans, ArraysMade& to);

}  // namespace ejk::blocks
