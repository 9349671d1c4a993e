// SVG of a block picture: one path per state, of rectangles of cells, scaled to pixels. Cells have the
// aspect of their elements, so a causal edge is a diagonal.
//
// Cost: a pass over the blocks, and some 20 bytes a rectangle.
//
// tests: tests/report/test_svg.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/checked.hpp"
#include "ejk/error.hpp"
#include "ejk/program/text.hpp"
#include "report/drawing.hpp"
#include "report/units.hpp"

namespace ejk {

namespace report {

namespace {

constexpr std::int64_t kMostShapes = 1'000'000;
constexpr double kShortestSide = 24;  // of a plot, in pixels: a row of a thousand blocks is still seen
constexpr double kHatchedCell = 6;    // from this side on partial cells are hatched as well
constexpr double kLegendLine = 18;
constexpr double kLeft = 76, kTop = 30, kRight = 16, kBelow = 84, kProfile = 44;

// The cells of each state as the data of a path.
struct Paths {
  std::array<std::string, 5> data;
  std::int64_t shapes = 0;
};

// Ranges of a row, extended over following rows with the same range.
Paths paths_of(const CellGrid& grid) {
  struct Run {
    std::int64_t begin, end, row;
    CellState state;
  };
  Paths paths;
  std::vector<Run> open, runs;
  for (std::int64_t r = 0; r <= grid.rows; ++r) {
    runs.clear();
    for (std::int64_t c = 0; r < grid.rows && c < grid.columns;) {
      std::int64_t end = c + 1;
      const CellState state = grid.at(r, c);
      while (end < grid.columns && grid.at(r, end) == state) ++end;
      if (state != CellState::empty) runs.push_back({c, end, r, state});
      c = end;
    }
    auto next = runs.begin();
    for (const Run& run : open) {
      while (next != runs.end() && next->begin < run.begin) ++next;
      if (next != runs.end() && next->begin == run.begin && next->end == run.end &&
          next->state == run.state) {
        next->row = run.row;
        continue;
      }
      if (++paths.shapes > kMostShapes)
        throw Error(Error::Kind::output, fmt::format("the picture has more than {} shapes: a PNG holds it",
                                                     format_count(kMostShapes)));
      const std::int64_t width = run.end - run.begin;
      fmt::format_to(std::back_inserter(paths.data[static_cast<std::size_t>(run.state)]), "M{} {}h{}v{}h-{}z",
                     run.begin, run.row, width, r - run.row, width);
    }
    std::swap(open, runs);
  }
  return paths;
}

std::int64_t elements_along(const PictureAxis& axis, std::int64_t blocks) {
  return axis.length > 0 ? axis.length : blocks;
}

// The largest fraction of non-empty blocks in each row (or column) of cells.
std::vector<double> profile(const std::vector<std::int64_t>& counts, std::int64_t all, std::int64_t each) {
  std::vector<double> shares(static_cast<std::size_t>(core::ceil_div(std::ssize(counts), each)));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    double& share = shares[i / static_cast<std::size_t>(each)];
    share = std::max(share, static_cast<double>(counts[i]) / static_cast<double>(all));
  }
  return shares;
}

// The step between ticks: a power of two, four to eight of them.
std::int64_t tick_step(std::int64_t length) {
  std::int64_t step = 1;
  while (length / step > 8) step *= 2;
  return step;
}

class Drawing {
 public:
  Drawing(const BlockPicture& picture, const BlockCounts& counts, const SvgStyle& style)
      : picture_(picture),
        counts_(counts),
        style_(style),
        grid_(shrink(picture, style.most_cells, style.most_cells)),
        rows_(elements_along(picture.row_axis, picture.rows())),
        columns_(elements_along(picture.column_axis, picture.columns())) {
    const double scale =
        style.longest_side / static_cast<double>(std::max({rows_, columns_, std::int64_t{1}}));
    width_ = std::max(static_cast<double>(columns_) * scale, kShortestSide);
    height_ = std::max(static_cast<double>(rows_) * scale, kShortestSide);
  }

  std::string draw() {
    const double gap = style_.profiles ? kProfile + 8 : 0;
    // Room for the title, the last tick's label and the legend, whatever the plot has.
    const std::string title = printable(picture_.title, 90);
    const double beside = std::max(gap + kRight, text_width(std::to_string(columns_)) / 2);
    const double all_width = std::max({kLeft + width_ + beside, kLeft + text_width(title) + kRight, 420.0});
    const std::vector<Swatch> swatches = legend(all_width);
    const double all_height = kTop + height_ + gap + kBelow + kLegendLine * swatches.back().line;
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" class="blocks" viewBox="0 0 {} {}" width="{}" )"
        R"(height="{}" role="img" font-family="sans-serif" font-size="12">)",
        number(all_width), number(all_height), number(all_width), number(all_height));
    if (!style_.style.empty()) put("<style>{}</style>", style_.style);
    put("<title>{}</title>", escaped(picture_.title));
    if (!style_.description.empty()) put("<desc>{}</desc>", escaped(style_.description, 2000));
    if (!style_.style.empty()) put(R"(<rect class="paper" width="100%" height="100%"/>)");
    put(R"(<text x="{}" y="18" class="title">{}</text>)", number(kLeft), escaped(title));
    cells();
    axes(gap);
    if (style_.profiles) profiles();
    draw_legend(swatches, kTop + height_ + gap + 52);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... T>
  void put(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<T>(values)...);
  }

  static std::string number(double value) {
    const std::string text = fmt::format("{:.2f}", value);
    const std::size_t last = text.find_last_not_of('0');
    return text.substr(0, text[last] == '.' ? last : last + 1);
  }

  // Partial cells of the last row and column are drawn in full and clipped.
  void cells() {
    const double sx = width_ / static_cast<double>(columns_) *
                      static_cast<double>(picture_.column_axis.block * grid_.columns_per_cell);
    const double sy = height_ / static_cast<double>(rows_) *
                      static_cast<double>(picture_.row_axis.block * grid_.rows_per_cell);
    const Paths paths = paths_of(grid_);
    const bool hatched = std::min(sx, sy) >= kHatchedCell;
    put(R"(<clipPath id="plot{0}"><rect x="{1}" y="{2}" width="{3}" height="{4}"/></clipPath>)", style_.id,
        number(kLeft), number(kTop), number(width_), number(height_));
    if (hatched)
      put(R"(<pattern id="hatch{}" patternUnits="userSpaceOnUse" width="6" height="6" )"
          R"svg(patternTransform="scale({:.6g} {:.6g}) rotate(45)"><rect class="cell-P" width="6" height="6"/>)svg"
          R"(<path class="hatch" d="M0 0v6"/></pattern>)",
          style_.id, 1 / sx, 1 / sy);
    put(R"(<rect class="cell-E" x="{}" y="{}" width="{}" height="{}"/>)", number(kLeft), number(kTop),
        number(width_), number(height_));
    put(R"svg(<g clip-path="url(#plot{})"><g transform="translate({} {}) scale({:.6g} {:.6g})" )svg"
        R"(shape-rendering="crispEdges">)",
        style_.id, number(kLeft), number(kTop), sx, sy);
    for (const CellState state : states_of(picture_)) {
      const std::string& data = paths.data[static_cast<std::size_t>(state)];
      if (data.empty()) continue;
      const std::string fill = state == CellState::partial && hatched
                                   ? fmt::format(R"svg( style="fill:url(#hatch{})")svg", style_.id)
                                   : "";
      put(R"(<path class="cell-{}" d="{}"{}><title>{}</title></path>)", letter_of(state), data, fill,
          escaped(state_name(picture_, state), kLongestName));
    }
    out_ += "</g></g>";
    put(R"(<rect class="frame" x="{}" y="{}" width="{}" height="{}"/>)", number(kLeft), number(kTop),
        number(width_), number(height_));
  }

  std::string axis_name(const PictureAxis& axis) const {
    return axis.name.empty() ? picture_.block_name + "s" : axis.name;
  }

  void axes(double gap) {
    const auto ticks = [](std::int64_t length, double pixels, double least, const auto& draw) {
      std::int64_t step = tick_step(length);
      while (static_cast<double>(step) / static_cast<double>(length) * pixels < least && step < length)
        step *= 2;
      for (std::int64_t at = 0; at <= length; at += step)
        draw(at, static_cast<double>(at) / static_cast<double>(length) * pixels);
    };
    if (rows_ < 1 || columns_ < 1) return;
    ticks(rows_, height_, 16, [&](std::int64_t at, double y) {
      put(R"(<path class="frame" d="M{} {}h-4"/><text x="{}" y="{}" text-anchor="end">{}</text>)",
          number(kLeft), number(kTop + y), number(kLeft - 7), number(kTop + y + 4), at);
    });
    const double bottom = kTop + height_ + gap;
    ticks(columns_, width_, 9 + text_width(std::to_string(columns_)), [&](std::int64_t at, double x) {
      put(R"(<path class="frame" d="M{} {}v4"/><text x="{}" y="{}" text-anchor="middle">{}</text>)",
          number(kLeft + x), number(bottom), number(kLeft + x), number(bottom + 17), at);
    });
    put(R"svg(<text transform="translate(14 {}) rotate(-90)" text-anchor="middle">{}</text>)svg",
        number(kTop + height_ / 2), escaped(axis_name(picture_.row_axis)));
    put(R"(<text x="{}" y="{}" text-anchor="middle">{}</text>)", number(kLeft + width_ / 2),
        number(bottom + 33), escaped(axis_name(picture_.column_axis)));
  }

  // Bars along the axes of the plot, scaled to the heaviest.
  void profiles() {
    const auto bars = [&](bool by_rows) {
      const std::vector<double> shares =
          by_rows ? profile(counts_.by_row, picture_.columns(), grid_.rows_per_cell)
                  : profile(counts_.by_column, picture_.rows(), grid_.columns_per_cell);
      const double most = shares.empty() ? 0 : *std::max_element(shares.begin(), shares.end());
      const double side = (by_rows ? height_ : width_) / static_cast<double>(shares.size());
      std::string data;
      for (std::size_t i = 0; i < shares.size(); ++i) {
        const double length = most > 0 ? shares[i] / most * kProfile : 0;
        const double at = static_cast<double>(i) * side;
        fmt::format_to(std::back_inserter(data), "{}{}{}{}{}", i == 0 ? "M0 0" : "", by_rows ? "H" : "V",
                       number(length), by_rows ? "V" : "H", number(at + side));
      }
      if (!data.empty()) data += by_rows ? "H0z" : "V0z";
      put(R"svg(<g transform="translate({} {})"><path class="profile" d="{}"><title>{}</title></path></g>)svg",
          number(by_rows ? kLeft + width_ + 8 : kLeft), number(by_rows ? kTop : kTop + height_ + 8), data,
          by_rows ? "blocks of each row that are not empty; at the most " + percent(most)
                  : "blocks of each column that are not empty; at the most " + percent(most));
    };
    bars(true);
    bars(false);
  }

  struct Swatch {
    CellState state;
    std::string text;
    double x = 0;
    int line = 0;
  };

  static double text_width(std::string_view text) { return 7 * static_cast<double>(text.size()); }

  // Side by side, in as many lines as it takes.
  std::vector<Swatch> legend(double all_width) const {
    std::vector<Swatch> all;
    double x = kLeft;
    int line = 0;
    for (const CellState state : states_of(picture_)) {
      const bool is_mixed = state == CellState::mixed;
      if (is_mixed && std::find(grid_.cells.begin(), grid_.cells.end(), state) == grid_.cells.end()) continue;
      std::string text = printable(state_name(picture_, state), kLongestName);
      if (!is_mixed) text += " " + format_count(counts_.by_state[static_cast<std::size_t>(state)]);
      const double width = 17 + text_width(text) + 14;
      if (x > kLeft && x + width > all_width) x = kLeft, ++line;
      all.push_back({state, std::move(text), x, line});
      x += width;
    }
    return all;
  }

  void draw_legend(const std::vector<Swatch>& swatches, double top) {
    for (const Swatch& swatch : swatches) {
      const double y = top + kLegendLine * swatch.line;
      put(R"(<rect class="cell-{} swatch" x="{}" y="{}" width="12" height="12"/><text x="{}" )"
          R"(y="{}">{}</text>)",
          letter_of(swatch.state), number(swatch.x), number(y - 10), number(swatch.x + 17), number(y),
          escaped(swatch.text));
    }
    put(R"(<text x="{}" y="{}">1 cell = {} x {} {}{}</text>)", number(kLeft),
        number(top + kLegendLine * (swatches.back().line + 1)), format_count(grid_.rows_per_cell),
        format_count(grid_.columns_per_cell), escaped(picture_.block_name, kLongestName),
        grid_.rows_per_cell * grid_.columns_per_cell == 1 ? "" : "s");
  }

  const BlockPicture& picture_;
  const BlockCounts& counts_;
  const SvgStyle& style_;
  CellGrid grid_;
  std::int64_t rows_, columns_;  // elements
  double width_ = 0, height_ = 0;
  std::string out_;
};

}  // namespace

std::string escaped(std::string_view text, std::size_t limit) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : printable(text, limit))
    if (const std::size_t special = kSpecial.find(c); special != std::string_view::npos)
      out += kEntities[special];
    else
      out += c;
  return out;
}

std::string cell_rules(const std::array<std::uint32_t, 5>& colors, std::string_view root) {
  std::string rules;
  for (std::size_t state = 0; state < colors.size(); ++state)
    rules += fmt::format("{}.cell-{}{{fill:#{:06x}}}", root, letter_of(static_cast<CellState>(state)),
                         colors[state]);
  return rules;
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

std::string draw_svg(const BlockPicture& picture, const BlockCounts& counts, const SvgStyle& style) {
  return Drawing(picture, counts, style).draw();
}

}  // namespace report

std::string to_svg(const BlockPicture& picture, const std::string& command_line) {
  report::SvgStyle style;
  style.style = ".paper{fill:#fff}" + report::cell_rules(report::kColors) +
                ".blocks text{fill:#222}.blocks .title{font-weight:bold}"
                ".frame,.swatch{stroke:#222;stroke-width:1}.frame{fill:none}.swatch{stroke-width:.5}"
                ".hatch{stroke:#222;stroke-opacity:.45;stroke-width:1.5}.profile{fill:#222;fill-opacity:.55}";
  style.description = command_line;
  return report::draw_svg(picture, report::counts_of(picture), style);
}

}  // namespace ejk
