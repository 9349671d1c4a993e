// The layout of a drawing: headings, the plot of cells with ticks at block boundaries, and a legend. Cells have
// the aspect of their elements, so a causal edge is a diagonal, unless that makes a sliver.
//
// Cost: a pass over the blocks.
//
// tests: tests/report/test_svg.cpp, tests/report/test_png.cpp
#include "report/drawing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/checked.hpp"
#include "ejk/program/text.hpp"
#include "report/units.hpp"

namespace ejk::report {

namespace {

constexpr double kLine = 18;  // of headings and of the legend
constexpr double kRight = 16, kBelow = 48, kProfile = 44;
constexpr std::size_t kLongestLine = 88;  // of characters
constexpr double kLongestAspect = 4;

double text_width(std::string_view text) { return 7 * static_cast<double>(text.size()); }

// Both ends remain: masks of one kind differ in the last of their parameters.
std::string cut_in_middle(std::string_view text) {
  std::string all = printable(text, 10'000);
  std::vector<std::size_t> characters;
  for (std::size_t i = 0; i < all.size(); ++i)
    if ((static_cast<unsigned char>(all[i]) & 0xc0) != 0x80) characters.push_back(i);
  if (characters.size() <= kLongestLine) return all;
  constexpr std::size_t kHalf = (kLongestLine - 5) / 2;
  return all.substr(0, characters[kHalf]) + " ... " + all.substr(characters[characters.size() - kHalf]);
}

// Block boundaries in equal steps, and the end.
std::vector<std::int64_t> ticks(std::int64_t block, std::int64_t length, double pixels, double least) {
  const double each = pixels / static_cast<double>(length);
  std::int64_t step = block;
  while (length / step > 8 || (static_cast<double>(step) * each < least && step < length)) step *= 2;
  std::vector<std::int64_t> all{0};
  for (std::int64_t at = step; at < length; at += step)
    if (static_cast<double>(length - at) * each >= least) all.push_back(at);
  all.push_back(length);
  return all;
}

class Drawing {
 public:
  Drawing(const BlockPicture& picture, const BlockCounts& counts, const DrawingStyle& style, Surface& surface)
      : picture_(picture),
        counts_(counts),
        style_(style),
        surface_(surface),
        grid_(shrink(picture, style.most_cells, style.most_cells)),
        rows_(std::max<std::int64_t>(1, elements_along(picture.row_axis, picture.rows()))),
        columns_(std::max<std::int64_t>(1, elements_along(picture.column_axis, picture.columns()))) {
    const auto cells = [](std::int64_t elements, const PictureAxis& axis, std::int64_t blocks_per_cell) {
      return static_cast<double>(elements) / static_cast<double>(axis.block * blocks_per_cell);
    };
    const double across = cells(columns_, picture.column_axis, grid_.columns_per_cell),
                 down = cells(rows_, picture.row_axis, grid_.rows_per_cell);
    std::tie(box_.width, box_.height) = style.cell_width > 0
                                            ? std::pair(style.cell_width * across, style.cell_height * down)
                                            : plot_size(picture, style.longest_side);
    cell_width_ = box_.width / across, cell_height_ = box_.height / down;
    box_.x = std::max(76.0, 34 + text_width(format_count(rows_)));
  }

  void draw() {
    const std::vector<std::string> lines = headings();
    box_.y = 14 + kLine * static_cast<double>(lines.size());
    const double gap = style_.profiles ? kProfile + 8 : 0;
    const double beside = std::max(gap + kRight, text_width(format_count(columns_)) / 2 + 4);
    double width = std::max(box_.x + box_.width + beside, 420.0);
    for (const std::string& line : lines) width = std::max(width, box_.x + text_width(line) + kRight);
    const std::vector<Swatch> swatches = legend(width);
    const double below = box_.y + box_.height + gap;
    double y = below + kBelow + 4;
    const double last = swatches.empty() ? y : y + kLine * swatches.back().line;
    std::vector<std::string> notes;
    if (grid_.rows_per_cell * grid_.columns_per_cell > 1)
      notes.push_back(fmt::format("1 cell = {} x {} {}s", format_count(grid_.rows_per_cell),
                                  format_count(grid_.columns_per_cell),
                                  printable(picture_.block_name, kLongestName)));
    if (style_.profiles) notes.push_back(note_of_bars());
    surface_.begin(width, last + kLine * static_cast<double>(notes.size()) + 14);
    for (std::size_t i = 0; i < lines.size(); ++i)
      surface_.text(box_.x, kLine * static_cast<double>(i + 1),
                    i == 0 ? Lettering::title : Lettering::heading, lines[i]);
    surface_.plot(grid_, box_, cell_width_, cell_height_);
    axes(below);
    if (style_.profiles) profiles();
    for (const Swatch& swatch : swatches) {
      surface_.swatch(swatch.state, swatch.x, y + kLine * swatch.line - 10);
      surface_.text(swatch.x + 17, y + kLine * swatch.line, Lettering::left, swatch.text);
    }
    for (y = last; const std::string& note : notes) surface_.text(box_.x, y += kLine, Lettering::left, note);
  }

 private:
  // The title, the mask, and how many blocks there are.
  std::vector<std::string> headings() const {
    std::vector<std::string> lines{printable(picture_.title, kLongestLine)};
    if (!picture_.subject.empty()) lines.push_back(cut_in_middle(picture_.subject));
    const std::int64_t blocks = picture_.rows() * picture_.columns();
    std::string size =
        fmt::format("{} x {} {}s", format_count(picture_.rows()), format_count(picture_.columns()),
                    printable(picture_.block_name, kLongestName));
    if (picture_.row_axis.block * picture_.column_axis.block > 1)
      size += fmt::format(" of {} x {}", picture_.row_axis.block, picture_.column_axis.block);
    // A marked block may be one that is skipped.
    if (picture_.state_names[0] == "empty" && picture_.marked_names[0].empty() && blocks > 0)
      size += fmt::format(", {} skipped",
                          percent(static_cast<double>(counts_.by_state[0]) / static_cast<double>(blocks)));
    lines.push_back(std::move(size));
    return lines;
  }

  void axes(double below) {
    for (const std::int64_t at : ticks(picture_.row_axis.block, rows_, box_.height, 18)) {
      const double y = box_.y + static_cast<double>(at) / static_cast<double>(rows_) * box_.height;
      surface_.tick(box_.x, y, true);
      surface_.text(box_.x - 7, y + 4, Lettering::right, format_count(at));
    }
    for (const std::int64_t at :
         ticks(picture_.column_axis.block, columns_, box_.width, 9 + text_width(format_count(columns_)))) {
      const double x = box_.x + static_cast<double>(at) / static_cast<double>(columns_) * box_.width;
      surface_.tick(x, below, false);
      surface_.text(x, below + 17, Lettering::middle, format_count(at));
    }
    surface_.text(14, box_.y + box_.height / 2, Lettering::upward,
                  label_of(picture_.row_axis, picture_.block_name));
    surface_.text(box_.x + box_.width / 2, below + 33, Lettering::middle,
                  label_of(picture_.column_axis, picture_.block_name));
  }

  std::string note_of_bars() const {
    const auto most = [](const std::vector<std::int64_t>& counts) {
      return format_count(counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end()));
    };
    return fmt::format("bars: {}s other than \"{}\", at most {} in a row and {} in a column",
                       printable(picture_.block_name, kLongestName),
                       printable(picture_.state_names[0], kLongestName), most(counts_.by_row),
                       most(counts_.by_column));
  }

  // Scaled to the heaviest row or column; a cell has the heaviest of its blocks.
  void profiles() {
    const auto bars = [&](const std::vector<std::int64_t>& counts, std::int64_t per_cell) {
      std::vector<double> lengths(static_cast<std::size_t>(core::ceil_div(std::ssize(counts), per_cell)));
      const auto most = std::max<std::int64_t>(1, *std::max_element(counts.begin(), counts.end()));
      for (std::size_t i = 0; i < counts.size(); ++i) {
        double& length = lengths[i / static_cast<std::size_t>(per_cell)];
        length = std::max(length, kProfile * static_cast<double>(counts[i]) / static_cast<double>(most));
      }
      return lengths;
    };
    if (grid_.cells.empty()) return;
    surface_.bars(box_.x + box_.width + 8, box_.y, true, cell_height_, box_.height,
                  bars(counts_.by_row, grid_.rows_per_cell));
    surface_.bars(box_.x, box_.y + box_.height + 8, false, cell_width_, box_.width,
                  bars(counts_.by_column, grid_.columns_per_cell));
  }

  struct Swatch {
    CellState state;
    std::string text;
    double x = 0;
    int line = 0;
  };

  // Of the states that there are, side by side, in as many lines as it takes.
  std::vector<Swatch> legend(double all_width) const {
    std::vector<Swatch> all;
    double x = box_.x;
    int line = 0;
    for (const CellState state : states_of(picture_)) {
      const bool is_mixed = state == CellState::mixed;
      const std::int64_t count = counts_.by_state[static_cast<std::size_t>(state)];
      if (is_mixed ? std::find(grid_.cells.begin(), grid_.cells.end(), state) == grid_.cells.end()
                   : count == 0)
        continue;
      std::string text = printable(state_name(picture_, state), kLongestName);
      if (!is_mixed) text += " " + format_count(count);
      const double width = 17 + text_width(text) + 14;
      if (x > box_.x && x + width > all_width) x = box_.x, ++line;
      all.push_back({state, std::move(text), x, line});
      x += width;
    }
    return all;
  }

  const BlockPicture& picture_;
  const BlockCounts& counts_;
  const DrawingStyle& style_;
  Surface& surface_;
  CellGrid grid_;
  std::int64_t rows_, columns_;  // elements
  Box box_{};
  double cell_width_ = 0, cell_height_ = 0;
};

}  // namespace

std::int64_t elements_along(const PictureAxis& axis, std::int64_t blocks) {
  return axis.length > 0 ? axis.length : blocks * axis.block;
}

std::string label_of(const PictureAxis& axis, const std::string& block_name) {
  if (axis.name.empty()) return printable(block_name, kLongestName) + "s";
  const std::string name = printable(axis.name, kLongestName);
  return axis.unit.empty() ? name : name + ", in " + axis.unit;
}

std::pair<double, double> plot_size(const BlockPicture& picture, double longest_side) {
  const auto width = static_cast<double>(elements_along(picture.column_axis, picture.columns())),
             height = static_cast<double>(elements_along(picture.row_axis, picture.rows()));
  const double longest = std::max({width, height, 1.0}), shortest = longest / kLongestAspect;
  return {std::max(width, shortest) / longest * longest_side,
          std::max(height, shortest) / longest * longest_side};
}

BlockCounts counts_of(const BlockPicture& picture) {
  BlockCounts counts;
  counts.by_row.resize(static_cast<std::size_t>(picture.rows()));
  counts.by_column.resize(static_cast<std::size_t>(picture.columns()));
  for (std::int64_t r = 0; r < picture.rows(); ++r) {
    std::int64_t c = picture.states->run(r).begin;
    for (const std::uint8_t state : picture.states->states(r)) {
      ++counts.by_state[static_cast<std::size_t>(state_of(state))];
      counts.by_row[static_cast<std::size_t>(r)] += state != 0;
      counts.by_column[static_cast<std::size_t>(c++)] += state != 0;
    }
    counts.by_state[0] += picture.columns() - std::ssize(picture.states->states(r));
  }
  return counts;
}

void draw(const BlockPicture& picture, const BlockCounts& counts, const DrawingStyle& style,
          Surface& surface) {
  Drawing(picture, counts, style, surface).draw();
}

}  // namespace ejk::report
