// Block pictures of masks. What a page says beside the states is worked out when a page is made: how dense cells
// of blocks are, from what the pass over the mask counted, and which of the masks whose intersection this is
// emptied a block, by asking each for its blocks once more. No element is looked at for that.
//
// tests: tests/mask/test_picture.cpp
#include "mask/picture.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "mask/node.hpp"
#include "mask/scan.hpp"

namespace ejk {

namespace mask {

namespace {

using States = std::shared_ptr<const std::vector<std::uint8_t>>;

// The elements of cell i along one axis.
std::int64_t cell_length(std::int64_t i, std::int64_t cell, std::int64_t length) {
  return std::min((i + 1) * cell, length) - i * cell;
}

std::vector<double> densities(const BlockPicture& picture, std::int64_t cell_blocks,
                              std::vector<std::int64_t> elements) {
  const std::int64_t columns = core::ceil_div(picture.columns, cell_blocks);
  const std::int64_t full = picture.row_axis.block * picture.column_axis.block;
  const std::uint8_t* state = picture.states->data();
  for (std::int64_t r = 0; r < picture.rows; ++r) {
    std::int64_t* row = elements.data() + r / cell_blocks * columns;
    for (std::int64_t c = 0; c < picture.columns; ++c)
      if (*state++ == 2) row[c / cell_blocks] += full;
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

// Which factors are empty in a block, as an index into texts: of up to four factors any combination of them, of
// more the first; after them the case that none is and yet nothing is left.
class Causes {
 public:
  Causes(const Mask& mask, BlockShape block) : block_(block), mask_(mask) {
    std::vector<Mask> factors = mask.node().factors();
    if (factors.empty()) factors = {mask};
    if (factors.size() > kMost) factors.erase(factors.begin() + kMost, factors.end());
    all_ = factors.size() <= kCombined;
    for (const Mask& factor : factors) classifiers_.push_back(factor.node().classifier(block.q, block.kv));
    states_.resize(static_cast<std::size_t>(core::ceil_div(mask.kv_length(), block.kv)));
    if (all_) {
      for (std::size_t some = 1; some < std::size_t{1} << factors.size(); ++some) {
        std::string text;
        for (std::size_t f = 0; f < factors.size(); ++f)
          if ((some >> f & 1) != 0) text += (text.empty() ? "" : ", ") + factors[f].text();
        texts_.push_back(std::move(text));
      }
    } else {
      for (const Mask& factor : factors) texts_.push_back(factor.text());
    }
    if (factors.size() > 1) texts_.emplace_back("no term alone");
  }

  const std::vector<std::string>& texts() const { return texts_; }

  void of_row(std::int64_t row, std::uint8_t* causes) {
    const std::int64_t begin = row * block_.q, end = std::min(begin + block_.q, mask_.q_length());
    std::vector<std::uint32_t> empty(states_.size()), open(states_.size());
    for (std::size_t f = 0; f < classifiers_.size(); ++f) {
      classifiers_[f]->classify(begin, end, states_.data());
      for (std::size_t c = 0; c < states_.size(); ++c) {
        empty[c] |= static_cast<std::uint32_t>(states_[c] == BlockState::empty) << f;
        open[c] |= static_cast<std::uint32_t>(states_[c] != BlockState::full) << f;
      }
    }
    const std::size_t none = texts_.size() - (classifiers_.size() > 1 ? 1 : 0);
    for (std::size_t c = 0; c < states_.size(); ++c) {
      // Where a single one could have emptied it, it did.
      if (empty[c] == 0 && std::has_single_bit(open[c])) empty[c] = open[c];
      causes[c] = static_cast<std::uint8_t>(empty[c] == 0 ? none
                                            : all_        ? empty[c] - 1
                                                   : static_cast<std::uint32_t>(std::countr_zero(empty[c])));
    }
  }

 private:
  static constexpr std::size_t kCombined = 4;  // whose combinations have 15 letters
  static constexpr std::size_t kMost = 24;

  BlockShape block_;
  Mask mask_;
  bool all_ = false;
  std::vector<std::unique_ptr<BlockClassifier>> classifiers_;
  std::vector<std::string> texts_;
  std::vector<BlockState> states_;
};

}  // namespace

BlockPicture picture_of(const Mask& mask, BlockShape block, const MaskSummary& summary) {
  BlockPicture picture;
  picture.rows = summary.states.shape()[0];
  picture.columns = summary.states.shape()[1];
  const auto states = summary.states.elements<std::uint8_t>();
  picture.states = std::make_shared<const std::vector<std::uint8_t>>(states.begin(), states.end());
  picture.row_axis = {"queries", block.q, mask.q_length()};
  picture.column_axis = {"keys", block.kv, mask.kv_length()};
  BlockPicture plain = picture;  // shares the states
  picture.details = [plain = std::move(plain), mask, block, cell_blocks = summary.cell_blocks,
                     elements = summary.partial_elements] {
    BlockDetails details;
    details.blocks_per_cell = cell_blocks;
    details.density = densities(plain, cell_blocks, elements);
    const auto causes = std::make_shared<Causes>(mask, block);
    details.causes = causes->texts();
    details.causes_of = [causes](std::int64_t row, std::uint8_t* of) { causes->of_row(row, of); };
    return details;
  };
  return picture;
}

}  // namespace mask

BlockPicture picture_of(const Mask& mask, std::string key, std::string title) {
  constexpr std::int64_t kMost = 2048;
  std::int64_t side = 1;
  while (core::ceil_div(std::max(mask.q_length(), mask.kv_length()), side) > kMost) side *= 2;
  BlockPicture picture =
      mask::picture_of(mask, {side, side}, mask::scan_mask(mask, {side, side}, nullptr).summary);
  picture.key = std::move(key);
  picture.title = std::move(title);
  picture.page_only = true;
  if (side == 1) {
    picture.state_names[0] = "False";
    picture.state_names[2] = "True";
    picture.block_name = "element";
  }
  return picture;
}

}  // namespace ejk
