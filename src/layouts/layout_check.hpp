// The part of `check mask-info` that depends on the layout: its rules, the masks that a kernel computes from
// the arrays, and which index or element makes a block wrong.
// tests: tests/layouts/test_check_mask_info.cpp
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "check/mask_pair.hpp"
#include "ejk/check.hpp"
#include "layouts/block_mask.hpp"
#include "layouts/listed.hpp"

namespace ejk::check {

/// The lengths to check arrays for: those of the given masks, or of the arrays, where 0 is unknown. Throws
/// Error{input} where they differ, Error{usage} (Code::unknown_lengths) where nothing says them.
Shape checked_shape(const MaskShape& stored, const MaskInfoClaims& claims, const std::string& name,
                    const char* array);

/// Whether all of these elements are False, or True.
std::optional<mask::BlockState> decided(std::span<const mask::Word> bits, std::int64_t elements);

using BlockSet = std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

class LayoutCheck {
 public:
  LayoutCheck(const ArrayGroup& of_arrays, const MaskInfoClaims& claimed, Findings& findings)
      : group(of_arrays), claims(claimed), found(findings) {}
  virtual ~LayoutCheck() = default;
  LayoutCheck(const LayoutCheck&) = delete;
  LayoutCheck& operator=(const LayoutCheck&) = delete;

  /// False if the arrays are not those of a mask, which is then a finding.
  bool open();
  /// Applies the rules that need no other mask, and fills `row_masks`.
  virtual void check_rules() = 0;
  /// The same after the comparison, for blocks of a row that do not differ from the given mask.
  virtual void check_elements(std::int64_t, const BlockSet&) {}

  std::int64_t row_of(std::int64_t head) const { return head / (head_count / row_count); }
  /// A kernel computes elements of partial blocks of a row. The pattern of a block is its column then.
  virtual bool is_computed(std::int64_t row) const = 0;
  /// The mask of a row's blocks in the positions of the given masks, and one of those in the blocks' positions.
  virtual Mask mask_of(blocks::BlockMask blocks, std::string text) const {
    return blocks::to_mask(std::move(blocks), std::move(text));
  }
  virtual Mask in_blocks(const Mask& mask) const { return mask; }
  /// The block of a pair; nothing where no block can have it.
  virtual std::optional<std::pair<std::int64_t, std::int64_t>> block_of(std::int64_t q,
                                                                        std::int64_t k) const {
    return std::pair(q / block_shape.q, k / block_shape.kv);
  }
  /// Where the blocks of a row begin, if they are of any sizes; each is one finding then.
  virtual blocks::BlockBounds bounds(std::int64_t) const { return {}; }
  /// The finding for a block that differs from the wanted mask; `what` describes the difference.
  virtual Finding explain(std::int64_t row, const BlockDifference& difference, const Mask& wanted,
                          const std::string& what) const = 0;
  /// The same for a pair (q, k) outside of the mask in block (i, j).
  virtual Finding explain_padding(std::int64_t row, std::int64_t i, std::int64_t j, std::int64_t q,
                                  std::int64_t k, const std::string& what) const = 0;

  std::int64_t head_count = 1, row_count = 1;  // rows: stored masks
  std::int64_t walk_count = 1;                 // of a kernel over each of them
  std::int64_t longest_sequence = 0;           // queries of packed sequences, whose blocks begin with them
  bool full_blocks_end_with_mask = false;      // as of ListedBlocks
  BlockShape block_shape;
  std::vector<blocks::BlockMask> row_masks;  // of each walk in turn; without a grid, the mask of row_rules
  std::vector<Mask> row_rules;

 protected:
  virtual void open_arrays() = 0;

  /// Distinct partial blocks (P, q, kv) or (P, kv, q) that are not partial, or that no block uses; calls each(p, bits)
  /// with the elements in the order of the array.
  void check_patterns(const ArraySource& patterns, const std::vector<bool>& used,
                      const std::function<void(std::int64_t, std::span<const mask::Word>)>& each = {});

  /// Elements that a kernel computes from positions are not stored and cannot be compared.
  void report_assumed(const char* array, std::int64_t partial_blocks);

  const ArrayGroup& group;
  const MaskInfoClaims& claims;
  Findings& found;
};

}  // namespace ejk::check
