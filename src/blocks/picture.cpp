// Block pictures of masks. Details for pages are computed on demand: densities of cells from the counts of
// the scan, and for an empty block the factors of the mask that are empty in it, by classifying these.
// Elements are read only if no classification decides.
// tests: tests/blocks/test_picture.cpp
#include <algorithm>
#include <memory>
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

// The factors that are empty in an empty block. If none is known to be, undecided ones are read.
class Causes {
 public:
  Causes(const Mask& mask, BlockShape block)
      : block_(block),
        factors_(mask.node().factors()),
        states_(static_cast<std::size_t>(core::ceil_div(mask.kv_length(), block.kv))) {
    if (factors_.empty()) factors_ = {mask};
    if (factors_.size() > kMost) factors_.erase(factors_.begin() + kMost, factors_.end());
    for (const Mask& factor : factors_) classifiers_.push_back(factor.node().classifier(block.q, block.kv));
  }

  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const Mask& factor : factors_) texts.push_back(factor.text());
    return texts;
  }

  void of_row(std::int64_t row, const BlockStates& blocks, std::uint32_t* terms) {
    const std::int64_t begin = row * block_.q, end = std::min(begin + block_.q, factors_[0].q_length());
    std::vector<std::uint32_t> undecided(states_.size());
    std::fill(terms, terms + states_.size(), 0);
    for (std::size_t f = 0; f < factors_.size(); ++f) {
      classifiers_[f]->classify(begin, end, {0, std::ssize(states_)}, states_.data());
      for (std::size_t c = 0; c < states_.size(); ++c) {
        terms[c] |= static_cast<std::uint32_t>(states_[c] == BlockState::empty) << f;
        undecided[c] |= static_cast<std::uint32_t>(states_[c] == BlockState::undecided) << f;
      }
    }
    for (std::size_t c = 0; c < states_.size(); ++c) {
      const bool is_empty_block = blocks.at(row, static_cast<std::int64_t>(c)) == 0;
      if (!is_empty_block) terms[c] = 0;
      if (!is_empty_block || terms[c] != 0) continue;
      const std::int64_t k = static_cast<std::int64_t>(c) * block_.kv;
      const Rectangle where{begin, end, k, std::min(k + block_.kv, factors_[0].kv_length())};
      bool known = true;
      for (std::size_t f = 0; f < factors_.size(); ++f) {
        if ((undecided[c] >> f & 1) == 0) continue;
        if (!factors_[f].node().random_access())
          known = false;
        else if (is_empty(factors_[f], where))
          terms[c] |= std::uint32_t{1} << f;
      }
      if (terms[c] == 0 && known && factors_.size() > 1) terms[c] = BlockDetails::kNoTermAlone;
    }
  }

 private:
  static constexpr std::size_t kMost = 31;

  bool is_empty(const Mask& factor, const Rectangle& where) {
    const BitRows bits = buffer_.rows(where.rows(), where.columns());
    factor.node().fill(where, bits);
    return std::all_of(bits.words, bits.words + bits.rows * bits.row_words,
                       [](Word word) { return word == 0; });
  }

  BlockShape block_;
  std::vector<Mask> factors_;
  std::vector<std::unique_ptr<BlockClassifier>> classifiers_;
  std::vector<BlockState> states_;
  BitBuffer buffer_;
};

}  // namespace

BlockPicture picture_of(const Mask& mask, BlockShape block, const MaskSummary& summary) {
  BlockPicture picture;
  picture.states = summary.states;
  picture.row_axis = {"queries", block.q, mask.q_length()};
  picture.column_axis = {"keys", block.kv, mask.kv_length()};
  BlockPicture plain = picture;  // shares the states
  picture.details = [plain = std::move(plain), mask, block, cell_blocks = summary.cell_blocks,
                     elements = summary.partial_elements] {
    BlockDetails details;
    details.blocks_per_cell = cell_blocks;
    details.density = densities(plain, cell_blocks, elements);
    const auto causes = std::make_shared<Causes>(mask, block);
    details.terms = causes->texts();
    details.emptied_by = [causes, plain](std::int64_t row, std::uint32_t* terms) {
      causes->of_row(row, *plain.states, terms);
    };
    return details;
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
      blocks::picture_of(mask, {side, side}, blocks::scan_mask(mask, {side, side}, nullptr).summary);
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
