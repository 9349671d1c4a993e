// Drawings of block pictures: colours, escaping of text in markup, and the SVG, as a file or part of a page.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/report.hpp"
#include "report/picture.hpp"

namespace ejk::report {

/// 0xRRGGBB, by CellState. Distinguishable by the colour-blind, and in grey print by lightness: on white 95,
/// 62, 21, 79 and 45 of 100.
inline constexpr std::array<std::uint32_t, 5> kColors = {0xf1f1f1, 0xde8a2b, 0x08306b, 0x9ecae1, 0xc51b7d};
/// The same on a dark page, where full is the lightest.
inline constexpr std::array<std::uint32_t, 5> kDarkColors = {0x23282f, 0xc9761a, 0xd6e8f7, 0x3d6f94,
                                                             0xff9ed2};

/// Valid text of an element and of a quoted attribute of HTML, SVG and XML: no markup, no control
/// character, none that changes the direction of writing; at most `limit` characters and three dots.
std::string escaped(std::string_view text, std::size_t limit = 400);

struct SvgStyle {
  std::int64_t most_cells = 4096;  // a side
  double longest_side = 640;       // of the plot, in pixels
  std::string id;                  // of its patterns: one for each drawing on a page
  bool profiles = false;           // blocks that are not empty, by row at the right and by column below
  std::string style;               // rules of a style sheet; empty: the page has them
  std::string description;
};

/// How many blocks are in each state, and not empty in each row and column.
struct BlockCounts {
  std::array<std::int64_t, 5> by_state{};  // by CellState; none is mixed
  std::vector<std::int64_t> by_row, by_column;
};
BlockCounts counts_of(const BlockPicture& picture);

/// One <svg> element. A state is a class: cell-E, cell-P, cell-F, cell-M, cell-X.
std::string draw_svg(const BlockPicture& picture, const BlockCounts& counts, const SvgStyle& style);

/// The fill of the classes of draw_svg, below the selector `root`.
std::string cell_rules(const std::array<std::uint32_t, 5>& colors, std::string_view root = "");

}  // namespace ejk::report
