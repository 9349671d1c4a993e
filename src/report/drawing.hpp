// Drawings of block pictures: the layout, for markup and pixels alike; colours; escaping of text in markup.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/report.hpp"
#include "report/picture.hpp"

namespace ejk::report {

using Colors = std::array<std::uint32_t, kCellStates>;
/// 0xRRGGBB, by CellState. Distinguishable by the colour-blind, and in grey print by lightness: on white 95,
/// 65, 21, 79, 44 and 33 of 100.
inline constexpr Colors kColors = {0xf1f1f1, 0xde8a2b, 0x08306b, 0x9ecae1, 0xc51b7d, 0x0b5a2e};
/// The same on a dark page, where full is the lightest.
inline constexpr Colors kDarkColors = {0x23282f, 0xc9761a, 0xd6e8f7, 0x3d6f94, 0xffaadb, 0x44bd70};

/// The marks of missing (x) and extra (+) cells on a cell of 10 x 10: from and to. page.js has the same.
struct Stroke {
  double x, y, to_x, to_y;
};
inline std::array<Stroke, 2> mark_of(CellState state) {
  if (state == CellState::missing) return {{{2, 2, 8, 8}, {8, 2, 2, 8}}};
  return {{{5, 1.5, 5, 8.5}, {1.5, 5, 8.5, 5}}};
}
inline bool is_marked(CellState state) { return state >= CellState::missing; }

constexpr double kHatchedCell = 6;  // from this side on, in pixels, cells have hatches and marks as well
constexpr double kLinedCell = 8;    // above this side lines between them
constexpr double kSwatch = 12;      // side

/// Valid text of an element and of a quoted attribute of HTML, SVG and XML: no markup, no control
/// character, none that changes the direction of writing; at most `limit` characters and three dots.
std::string escaped(std::string_view text, std::size_t limit = 400);

/// How many blocks are in each state, and not empty in each row and column.
struct BlockCounts {
  std::array<std::int64_t, kCellStates> by_state{};  // by CellState; none is mixed
  std::vector<std::int64_t> by_row, by_column;
};
BlockCounts counts_of(const BlockPicture& picture);

std::int64_t elements_along(const PictureAxis& axis, std::int64_t blocks);
/// "queries, in tokens"
std::string label_of(const PictureAxis& axis, const std::string& block_name);

/// Width and height of a plot: of the elements, the shorter at least a quarter of the longer.
std::pair<double, double> plot_size(const BlockPicture& picture, double longest_side);

struct Box {
  double x, y, width, height;
};
enum class Lettering { heading, title, left, right, middle, upward };  // the last is centred, too

/// What a drawing is made on. Coordinates are those of an SVG, whose letters are 12 high.
class Surface {
 public:
  Surface() = default;
  Surface(const Surface&) = delete;
  Surface& operator=(const Surface&) = delete;
  virtual ~Surface() = default;

  virtual void begin(double width, double height) = 0;
  /// `y` is the baseline.
  virtual void text(double x, double y, Lettering lettering, std::string_view text) = 0;
  /// A line of 4, to the left or down.
  virtual void tick(double x, double y, bool is_left) = 0;
  virtual void swatch(CellState state, double x, double y) = 0;
  /// The frame with the cells, which are `width` x `height` each, clipped.
  virtual void plot(const CellGrid& grid, const Box& box, double width, double height) = 0;
  /// Bars from a line of length `all` to the right or down, each `side` thick, the last one cut.
  virtual void bars(double, double, bool /*by_rows*/, double /*side*/, double /*all*/,
                    const std::vector<double>&) {}
};

struct DrawingStyle {
  std::int64_t most_cells = 4096;          // a side
  double longest_side = 640;               // of the plot, in pixels
  double cell_width = 0, cell_height = 0;  // where they are not 0, in place of the longest side
  bool profiles = false;  // blocks that are not empty, by row at the right and by column below
};
void draw(const BlockPicture& picture, const BlockCounts& counts, const DrawingStyle& style,
          Surface& surface);

struct SvgStyle : DrawingStyle {
  std::string id = {};     // of its patterns: one for each drawing on a page
  std::string style = {};  // rules of a style sheet; empty: the page has them
  std::string description = {};
};

/// One <svg> element. A state is a class: cell-E, cell-P, cell-F, cell-M, cell-X, cell-O.
std::string draw_svg(const BlockPicture& picture, const BlockCounts& counts, const SvgStyle& style);

/// The fill of the classes of draw_svg, below the selector `root`.
std::string cell_rules(const Colors& colors, std::string_view root = "");

}  // namespace ejk::report
