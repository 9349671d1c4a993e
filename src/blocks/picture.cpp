// Block pictures of masks. Densities of cells, which only pages need, are computed on demand from the counts of
// the scan.
// tests: tests/blocks/test_picture.cpp
#include <algorithm>
#include <utility>
#include <vector>

#include "blocks/scan.hpp"
#include "core/checked.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace blocks {

namespace {

std::int64_t cell_length(std::int64_t i, std::int64_t cell, std::int64_t length) {
  return std::min((i + 1) * cell, length) - i * cell;
}

std::vector<double> densities(const BlockPicture& picture, std::int64_t cell_blocks,
                              std::vector<std::int64_t> elements) {
  const std::int64_t columns = core::ceil_div(picture.columns(), cell_blocks);
  const std::int64_t full = picture.row_axis.block * picture.column_axis.block;
  for (std::int64_t r = 0; r < picture.rows(); ++r) {
    std::int64_t* row = elements.data() + r / cell_blocks * columns;
    std::int64_t c = picture.states->run(r).begin;
    for (const std::uint8_t state : picture.states->states(r)) {
      if (state == 2) row[c / cell_blocks] += full;
      ++c;
    }
  }
  std::vector<double> shares;
  for (std::size_t n = 0; n < elements.size(); ++n) {
    const auto at = static_cast<std::int64_t>(n);
    const std::int64_t rows =
        cell_length(at / columns, cell_blocks * picture.row_axis.block, picture.row_axis.length);
    const std::int64_t wide =
        cell_length(at % columns, cell_blocks * picture.column_axis.block, picture.column_axis.length);
    shares.push_back(static_cast<double>(elements[n]) /
                     (static_cast<double>(rows) * static_cast<double>(wide)));
  }
  return shares;
}

}  // namespace

BlockPicture picture_of(BlockShape block, const MaskSummary& summary) {
  BlockPicture picture;
  picture.states = summary.states;
  picture.row_axis = {"queries", block.q, summary.q_length, "tokens"};
  picture.column_axis = {"keys", block.kv, summary.kv_length, "tokens"};
  BlockPicture plain = picture;  // shares the states
  picture.details = [plain = std::move(plain), cell_blocks = summary.cell_blocks,
                     elements = summary.partial_elements] {
    return BlockDetails{cell_blocks, densities(plain, cell_blocks, elements)};
  };
  return picture;
}

}  // namespace blocks

namespace {

std::int64_t side_of(const Mask& mask) {
  constexpr std::int64_t kMost = 2048;
  std::int64_t side = 1;
  while (core::ceil_div(std::max(mask.q_length(), mask.kv_length()), side) > kMost) side *= 2;
  return side;
}

}  // namespace

BlockPicture picture_of(const Mask& mask, std::string key, std::string title) {
  const std::int64_t side = side_of(mask);
  BlockPicture picture =
      blocks::picture_of({side, side}, blocks::scan_mask(mask, {side, side}, nullptr).summary);
  picture.key = std::move(key);
  picture.title = std::move(title);
  picture.subject = mask.text();
  picture.page_only = true;
  if (side == 1) {
    picture.state_names[0] = "False";
    picture.state_names[2] = "True";
    picture.block_name = "element";
  }
  return picture;
}

std::int64_t picture_bytes(const Mask& mask) {
  // The states of the scan, of the picture and of a page.
  constexpr std::int64_t kOfBlock = 3;
  const std::int64_t side = side_of(mask);
  const auto reading = mask.node().random_access() ? blocks::Reading::any_order : blocks::Reading::in_order;
  const auto scan =
      blocks::scan_bytes(mask.q_length(), mask.kv_length(), {side, side}, blocks::Patterns::dropped, reading);
  return core::sum_of_bytes(
      {kOfBlock * core::ceil_div(mask.q_length(), side) * core::ceil_div(mask.kv_length(), side),
       scan.value_or(core::kMostBytes)});
}

}  // namespace ejk
