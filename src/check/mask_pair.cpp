// Comparison of two masks by block rows, in panels: ranges of neighbouring undecided blocks whose bits fit
// the cache. Cost: a few operations a block, and filling the blocks that are undecided in either mask.
// tests: tests/check/test_mask.cpp
#include "check/mask_pair.hpp"

#include <bit>

#include "blocks/scan.hpp"
#include "core/checked.hpp"
#include "core/require.hpp"

namespace ejk::check {

namespace {

using mask::BitRows;
using mask::BlockState;
using mask::Rectangle;
using mask::Word;

bool decided(BlockState state) { return state == BlockState::empty || state == BlockState::full; }

// Adds the pairs in `width` columns of the bits of a rectangle.
void add_columns(const BitRows& a, const BitRows& b, const Rectangle& where, std::int64_t first_column,
                 std::int64_t width, BlockDifference& d) {
  for (std::int64_t r = 0; r < where.rows(); ++r)
    for (std::int64_t c = 0; c < width; c += 64) {
      const std::int64_t n = std::min<std::int64_t>(64, width - c), column = first_column + c;
      const Word x = mask::get_bits(a.row(r), column, n, a.row(r) + a.row_words),
                 y = mask::get_bits(b.row(r), column, n, b.row(r) + b.row_words);
      d.wanted += std::popcount(y);
      if (x == y) continue;
      const auto count = [&](Word bits, std::int64_t& all, std::int64_t& q, std::int64_t& k) {
        if (all == 0 && bits != 0) q = where.q_begin + r, k = where.k_begin + column + std::countr_zero(bits);
        all += std::popcount(bits);
      };
      count(~x & y, d.missing, d.missing_q, d.missing_k);
      count(x & ~y, d.outside, d.outside_q, d.outside_k);
    }
}

}  // namespace

void add(BlockDifference& into, const BlockDifference& part) {
  const auto add_pairs = [](std::int64_t& all, std::int64_t& q, std::int64_t& k, std::int64_t more,
                            std::int64_t more_q, std::int64_t more_k) {
    if (more > 0 && (all == 0 || std::pair(more_q, more_k) < std::pair(q, k))) q = more_q, k = more_k;
    all += more;
  };
  add_pairs(into.missing, into.missing_q, into.missing_k, part.missing, part.missing_q, part.missing_k);
  add_pairs(into.outside, into.outside_q, into.outside_k, part.outside, part.outside_q, part.outside_k);
  into.wanted += part.wanted;
}

MaskPair::MaskPair(const Mask& first, const Mask& second, BlockShape block)
    : first_(first),
      second_(second),
      block_(block),
      rows_(core::ceil_div(first.q_length(), block.q)),
      columns_(core::ceil_div(first.kv_length(), block.kv)),
      first_states_(first.node().classifier(block.q, block.kv)),
      second_states_(second.node().classifier(block.q, block.kv)) {
  if (first.q_length() != second.q_length() || first.kv_length() != second.kv_length())
    throw core::invalid("masks of different shapes are compared");
}

BlockDifference MaskPair::difference(const Rectangle& where) const {
  mask::BitBuffer first_bits, second_bits;
  const BitRows a = first_bits.rows(where.rows(), where.columns()),
                b = second_bits.rows(where.rows(), where.columns());
  first_.node().fill(where, a);
  second_.node().fill(where, b);
  BlockDifference d;
  add_columns(a, b, where, 0, where.columns(), d);
  return d;
}

Rectangle MaskPair::pairs_of(const BlockDifference& d) const {
  return {d.i * block_.q, std::min((d.i + 1) * block_.q, first_.q_length()), d.j * block_.kv,
          std::min((d.j + 1) * block_.kv, first_.kv_length())};
}

// Sequential masks are read by one thread.
int MaskPair::threads() const {
  if (!first_.node().random_access() || !second_.node().random_access()) return 1;
  return core::threads_for(
      rows_, static_cast<double>(first_.q_length()) * static_cast<double>(first_.kv_length()) / 8);
}

void MaskPair::find_differences(std::int64_t i, Scratch& scratch,
                                const std::function<void(const BlockDifference&)>& found) const {
  const std::int64_t q_begin = i * block_.q, q_end = std::min(q_begin + block_.q, first_.q_length());
  const std::int64_t keys = first_.kv_length();
  scratch.first.resize(static_cast<std::size_t>(columns_));
  scratch.second.resize(static_cast<std::size_t>(columns_));
  first_states_->classify(q_begin, q_end, {0, columns_}, scratch.first.data());
  second_states_->classify(q_begin, q_end, {0, columns_}, scratch.second.data());
  const auto state = [&](const std::vector<BlockState>& states, std::int64_t j) {
    return states[static_cast<std::size_t>(j)];
  };
  const auto both_decided = [&](std::int64_t j) {
    return decided(state(scratch.first, j)) && decided(state(scratch.second, j));
  };
  const auto width = [&](std::int64_t j) { return std::min(block_.kv, keys - j * block_.kv); };
  const std::int64_t rows = q_end - q_begin;
  const auto of_block = core::checked_mul(rows, std::min(block_.kv, keys));
  const std::int64_t panel_blocks =
      of_block ? std::max<std::int64_t>(1, 64 * blocks::kPanelWords / std::max<std::int64_t>(1, *of_block))
               : 1;
  for (std::int64_t j = 0; j < columns_;) {
    if (both_decided(j)) {
      const BlockState a = state(scratch.first, j), b = state(scratch.second, j);
      if (a != b) {
        BlockDifference d{i, j};
        const std::int64_t all = rows * width(j), k = j * block_.kv;
        if (b == BlockState::full)
          d.missing = d.wanted = all, d.missing_q = q_begin, d.missing_k = k;
        else
          d.outside = all, d.outside_q = q_begin, d.outside_k = k;
        found(d);
      }
      ++j;
      continue;
    }
    std::int64_t end = j + 1;
    while (end < columns_ && end < j + panel_blocks && !both_decided(end)) ++end;
    const Rectangle where{q_begin, q_end, j * block_.kv, std::min(end * block_.kv, keys)};
    const BitRows a = scratch.first_bits.rows(where.rows(), where.columns()),
                  b = scratch.second_bits.rows(where.rows(), where.columns());
    first_.node().fill(where, a);
    second_.node().fill(where, b);
    if (std::equal(a.words, a.words + a.rows * a.row_words, b.words)) {
      j = end;
      continue;
    }
    for (; j < end; ++j) {
      BlockDifference d{i, j};
      add_columns(a, b, where, j * block_.kv - where.k_begin, width(j), d);
      if (d.missing + d.outside > 0) found(d);
    }
  }
}

}  // namespace ejk::check
