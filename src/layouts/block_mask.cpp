// Block masks as Mask: blocks(...) of an array, and stored block masks. Blocks are classified from the lists
// of non-empty blocks; elements of partial blocks are read on demand.
// tests: tests/layouts/test_block_mask.cpp, test_mask.cpp
#include "layouts/block_mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/checked.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

using namespace blocks;

// State of a block with two parts. `partial` has a True and a False, whatever the other part is.
BlockState state_of_both(BlockState a, BlockState b) {
  if (a == BlockState::partial || b == BlockState::partial) return BlockState::partial;
  if (a == BlockState::undecided || b == BlockState::undecided) return BlockState::undecided;
  return a == b ? a : BlockState::partial;
}

class GridMask final : public MaskNode {
 public:
  GridMask(BlockMask blocks, std::string text)
      : MaskNode(blocks.q_length, blocks.kv_length),
        grid_(std::move(blocks.grid)),
        elements_(std::move(blocks.elements)),
        text_(std::move(text)) {}

  std::string text() const override { return text_; }
  std::optional<BlockShape> stored_block() const override { return grid_->block; }
  std::int64_t stored_bytes() const override { return elements_ ? 1 : 0; }
  const BlockGrid& grid() const { return *grid_; }

  bool same_as(const MaskNode& other, IndexRange queries) const override;

  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    const auto [bq, bk] = grid_->block;
    for (std::int64_t i = where.q_begin / bq; i * bq < where.q_end; ++i) {
      const std::int64_t begin = std::max(i * bq, where.q_begin), end = std::min((i + 1) * bq, where.q_end);
      const BitRows rows{out.row(begin - where.q_begin), out.row_words, end - begin, out.columns};
      Word* first = rows.words;
      std::fill(first, first + out.row_words, Word{0});
      const auto row = grid_->row(i);
      const auto from = std::lower_bound(
          row.begin(), row.end(), where.k_begin / bk,
          [](const BlockGrid::Entry& entry, std::int64_t column) { return entry.column < column; });
      const auto keys = [&, bk = bk](const BlockGrid::Entry& entry) {
        return std::pair(std::max(entry.column * bk, where.k_begin),
                         std::min((entry.column + 1) * bk, where.k_end));
      };
      bool partial = false;
      auto to = from;
      for (; to != row.end() && to->column * bk < where.k_end; ++to) {
        const auto [k_begin, k_end] = keys(*to);
        if (to->pattern == BlockGrid::kFull)
          set_bits(first, k_begin - where.k_begin, k_end - where.k_begin);
        else
          partial = true;
      }
      for (std::int64_t r = 1; r < rows.rows; ++r) std::copy(first, first + out.row_words, rows.row(r));
      if (!partial) continue;
      thread_local BitBuffer buffer;
      for (auto entry = from; entry != to; ++entry) {
        if (entry->pattern == BlockGrid::kFull) continue;
        const auto [k_begin, k_end] = keys(*entry);
        const std::int64_t key = entry->column * bk;
        const BitRows bits = buffer.rows(rows.rows, k_end - k_begin);
        elements_->fill(i, entry->pattern, {begin - i * bq, end - i * bq, k_begin - key, k_end - key}, bits);
        for (std::int64_t r = 0; r < rows.rows; ++r)
          put_bits(rows.row(r), k_begin - where.k_begin, bits.row(r), bits.columns);
      }
    }
  }

 private:
  std::shared_ptr<const BlockGrid> grid_;
  std::shared_ptr<const BlockElements> elements_;
  std::string text_;
};

class GridClassifier final : public BlockClassifier {
 public:
  GridClassifier(const GridMask& mask, std::int64_t kv_block) : mask_(mask), kv_block_(kv_block) {}

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    const BlockGrid& grid = mask_.grid();
    std::int64_t begin = INT64_MAX, end = 0;  // keys
    for (std::int64_t i = q_begin / grid.block.q; i * grid.block.q < q_end; ++i) {
      const auto row = grid.row(i);
      if (row.empty()) continue;
      begin = std::min(begin, row.front().column * grid.block.kv);
      end = std::max(end, std::min((row.back().column + 1) * grid.block.kv, mask_.kv_length()));
    }
    return begin < end ? IndexRange{begin / kv_block_, core::ceil_div(end, kv_block_)} : IndexRange{};
  }

  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange blocks, BlockState* out) const override {
    const BlockGrid& grid = mask_.grid();
    const std::int64_t bk = grid.block.kv, keys = mask_.kv_length();
    // The grid rows that the blocks cover, reduced to one, in the grid columns that they cover.
    const std::int64_t first = blocks.begin * kv_block_ / bk,
                       last = core::ceil_div(std::min(blocks.end * kv_block_, keys), bk);
    std::vector<BlockState> columns, more;
    for (std::int64_t i = q_begin / grid.block.q; i * grid.block.q < q_end; ++i) {
      const bool is_first = columns.empty();
      std::vector<BlockState>& row = is_first ? columns : more;
      row.assign(static_cast<std::size_t>(std::max<std::int64_t>(last - first, 0)), BlockState::empty);
      for (const BlockGrid::Entry& entry : grid.row(i))
        if (entry.column >= first && entry.column < last)
          row[static_cast<std::size_t>(entry.column - first)] =
              entry.pattern == BlockGrid::kFull ? BlockState::full : BlockState::undecided;
      if (!is_first)
        std::transform(columns.begin(), columns.end(), more.begin(), columns.begin(), state_of_both);
    }
    for (std::int64_t j = blocks.begin; j < blocks.end; ++j, ++out) {
      const std::int64_t begin = j * kv_block_ / bk, end = (std::min((j + 1) * kv_block_, keys) - 1) / bk;
      *out = columns[static_cast<std::size_t>(begin - first)];
      for (std::int64_t c = begin + 1; c <= end && *out != BlockState::partial; ++c)
        *out = state_of_both(*out, columns[static_cast<std::size_t>(c - first)]);
    }
  }

 private:
  const GridMask& mask_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> GridMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<GridClassifier>(*this, kv_block);
}

// Grids of different block sizes are different masks. Elements are read where one of two blocks is partial.
bool GridMask::same_as(const MaskNode& other, IndexRange queries) const {
  const auto& o = static_cast<const GridMask&>(other);
  if (grid_ == o.grid_ && elements_ == o.elements_) return true;
  const BlockShape block = grid_->block;
  if (block.q != o.grid_->block.q || block.kv != o.grid_->block.kv) return false;
  if (queries.begin >= queries.end) return true;
  BitBuffer own, theirs;
  const auto same = [&](std::int64_t i, std::int64_t column) {
    const Rectangle where{i * block.q, std::min((i + 1) * block.q, q_length()), column * block.kv,
                          std::min((column + 1) * block.kv, kv_length())};
    const BitRows a = own.rows(where.rows(), where.columns()), b = theirs.rows(where.rows(), where.columns());
    fill(where, a);
    o.fill(where, b);
    return std::equal(a.words, a.words + a.rows * a.row_words, b.words);
  };
  for (std::int64_t i = queries.begin / block.q; i * block.q < queries.end; ++i) {
    const auto row = grid_->row(i), their_row = o.grid_->row(i);
    for (auto a = row.begin(), b = their_row.begin(); a != row.end() || b != their_row.end();) {
      const bool in_mine = a != row.end() && (b == their_row.end() || a->column <= b->column);
      const bool in_theirs = b != their_row.end() && (a == row.end() || b->column <= a->column);
      const std::int32_t column = in_mine ? a->column : b->column;
      // A block in only one of the grids is equal only if all of its elements are False.
      const bool known = in_mine && in_theirs && a->pattern == b->pattern &&
                         (a->pattern == BlockGrid::kFull || elements_ == o.elements_);
      const bool differ = in_mine != in_theirs && (in_mine ? a : b)->pattern == BlockGrid::kFull;
      if (differ || (!known && !same(i, column))) return false;
      a += in_mine;
      b += in_theirs;
    }
  }
  return true;
}

}  // namespace

Mask blocks::to_mask(BlockMask blocks, std::string text) {
  return Mask(std::make_shared<GridMask>(std::move(blocks), std::move(text)));
}

Mask blocks_mask(std::shared_ptr<const ArraySource> blocks, BlockShape block, std::int64_t q_length,
                 std::int64_t kv_length, Polarity polarity) {
  for (const std::int64_t length : {block.q, block.kv})
    if (length < 1 || length > kLongestMask)
      throw core::invalid("a block of {} is no block", to_string(block));
  const std::string name = core::required(blocks).name();
  const Mask of_blocks = array_mask(std::move(blocks), polarity);
  auto grid = std::make_shared<BlockGrid>();
  grid->block = block;
  grid->q_blocks = of_blocks.q_length();
  grid->kv_blocks = of_blocks.kv_length();
  if (q_length < 1 || kv_length < 1 || core::ceil_div(q_length, block.q) != grid->q_blocks ||
      core::ceil_div(kv_length, block.kv) != grid->kv_blocks)
    throw core::invalid("{}: {} x {} blocks of {} do not make {} queries x {} keys", name, grid->q_blocks,
                        grid->kv_blocks, to_string(block), q_length, kv_length);
  if (grid->kv_blocks > INT32_MAX) throw core::invalid("{}: more than 2^31 blocks in a row", name);
  const auto row = std::make_unique<bool[]>(static_cast<std::size_t>(grid->kv_blocks));
  for (std::int64_t i = 0; i < grid->q_blocks; ++i) {
    grid->begins.push_back(std::ssize(grid->entries));
    of_blocks.read(i, i + 1, 0, grid->kv_blocks, row.get());
    for (std::int64_t j = 0; j < grid->kv_blocks; ++j)
      if (row[static_cast<std::size_t>(j)])
        grid->entries.push_back({static_cast<std::int32_t>(j), BlockGrid::kFull});
  }
  grid->begins.push_back(std::ssize(grid->entries));
  return blocks::to_mask({std::move(grid), nullptr, q_length, kv_length},
                         fmt::format("blocks({}, {})", name, to_string(block)));
}

}  // namespace ejk
