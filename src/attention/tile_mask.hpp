// Mask bits of a task's queries, for one block of keys at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "attention/packing.hpp"
#include "attention/problem.hpp"

namespace ejk::attn {

class TileMask {
 public:
  enum class Rows { queries, keys };

  /// `tiles` null: all pairs attend.
  void begin(const CheckedArguments& setup, const MaskTiles* tiles, Positions queries, Rows rows) {
    tiles_ = tiles;
    queries_ = queries;
    block_ = setup.block;
    by_keys_ = rows == Rows::keys;
  }

  /// Goes to some keys; false if all pairs are masked. Reads partial blocks.
  bool keys(Positions keys) {
    keys_ = keys;
    state_ = state_of(tiles_, block_, queries_, keys);
    if (state_ != mask::BlockState::partial) return state_ == mask::BlockState::full;
    bits_ = buffer_.rows(queries_.count(), keys.count());
    const Positions unsure = by_keys_ ? queries_ : unsure_queries();
    mask::BitRows some = bits_;
    some.words = bits_.row(unsure.begin - queries_.begin);
    some.rows = unsure.count();
    MaskPlan::fill(*tiles_, {unsure.begin, unsure.end, keys.begin, keys.end}, some);
    if (by_keys_) transpose();
    return true;
  }

  /// The columns from the first to the last pair of some rows (at most 64); row() and allowed() then refer to
  /// them.
  Positions columns(Positions rows) {
    masked_ = state_ == mask::BlockState::partial;
    if (masked_ && !by_keys_) {
      const Positions queries{queries_.begin + rows.begin, queries_.begin + rows.end};
      const mask::BlockState state = state_of(tiles_, block_, queries, keys_);
      if (state == mask::BlockState::empty) return {};
      masked_ = state == mask::BlockState::partial;
    }
    if (!masked_) return {0, by_keys_ ? queries_.count() : keys_.count()};
    std::int64_t first = -1, last = -1;
    for (std::int64_t w = 0; w < bits_.row_words; ++w) {
      mask::Word any = 0;
      for (std::int64_t r = rows.begin; r < rows.end; ++r) any |= bits_.row(r)[w];
      if (any == 0) continue;
      if (first < 0) first = 64 * w + std::countr_zero(any);
      last = 64 * w + 63 - std::countl_zero(any);
    }
    if (first < 0) return {};
    return {first, last + 1};
  }

  /// The bits of a row of the last columns(); null: all pairs. By keys all rows are alike.
  const mask::Word* row(std::int64_t r) const { return masked_ ? bits_.row(r) : nullptr; }
  bool allowed(std::int64_t r, std::int64_t column) const {
    return !masked_ || (bits_.row(r)[column / 64] >> (column % 64) & 1u) != 0;
  }

  static mask::BlockState state_of(const MaskTiles* tiles, BlockShape block, Positions queries,
                                   Positions keys) {
    if (!tiles) return mask::BlockState::full;
    bool some = false, all = true;
    for (std::int64_t i = queries.begin / block.q; i * block.q < queries.end; ++i)
      for (std::int64_t j = keys.begin / block.kv; j * block.kv < keys.end; ++j) {
        const mask::BlockState state = tiles->state(i, j);
        some = some || state != mask::BlockState::empty;
        all = all && state == mask::BlockState::full;
      }
    return !some ? mask::BlockState::empty : all ? mask::BlockState::full : mask::BlockState::partial;
  }

 private:
  // Without empty or full blocks at both ends: rows within them have a state of their own.
  Positions unsure_queries() const {
    const auto state = [&](std::int64_t b) {
      return state_of(tiles_, block_, {b * block_.q, b * block_.q + 1}, keys_);
    };
    std::int64_t first = queries_.begin / block_.q, last = (queries_.end - 1) / block_.q;
    const auto sure = [&](std::int64_t b, std::int64_t neighbour) {
      return first < last && state(b) != mask::BlockState::partial && state(b) == state(neighbour);
    };
    while (sure(first, first + 1)) ++first;
    while (sure(last, last - 1)) --last;
    return {std::max(queries_.begin, first * block_.q - kTogether),
            std::min(queries_.end, (last + 1) * block_.q + kTogether)};
  }

  void transpose() {
    const mask::BitRows from = bits_;
    bits_ = transposed_.rows(core::round_up(keys_.count(), 64), queries_.count());
    mask::transpose(from, bits_);
  }

  static constexpr std::int64_t kTogether = 64;

  const MaskTiles* tiles_ = nullptr;
  Positions queries_, keys_;
  BlockShape block_{1, 1};
  bool by_keys_ = false, masked_ = false;
  mask::BlockState state_ = mask::BlockState::full;
  mask::BitRows bits_;
  mask::BitBuffer buffer_, transposed_;
};

}  // namespace ejk::attn
