// SVG of a block picture: one path per state, of rectangles of cells, scaled; some 20 bytes a rectangle.
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

// The cells of each state as the data of a path.
struct Paths {
  std::array<std::string, kCellStates> data;
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

class SvgSurface final : public Surface {
 public:
  SvgSurface(const BlockPicture& picture, const SvgStyle& style) : picture_(picture), style_(style) {}

  std::string take() { return std::move(out_ += "</svg>\n"); }

  void begin(double width, double height) override {
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" class="blocks" viewBox="0 0 {0} {1}" width="{0}" )"
        R"(height="{1}" role="img" font-family="sans-serif" font-size="12">)",
        number(width), number(height));
    if (!style_.style.empty()) put("<style>{}</style>", style_.style);
    put("<title>{}</title>", escaped(picture_.title));
    if (!style_.description.empty()) put("<desc>{}</desc>", escaped(style_.description, 2000));
    if (!style_.style.empty()) put(R"(<rect class="paper" width="100%" height="100%"/>)");
  }

  void text(double x, double y, Lettering lettering, std::string_view text) override {
    static constexpr const char* kAttributes[] = {R"( class="heading")", R"( class="title")", "",
                                                  R"( text-anchor="end")", R"( text-anchor="middle")"};
    if (lettering == Lettering::upward)
      put(R"svg(<text transform="translate({} {}) rotate(-90)" text-anchor="middle">{}</text>)svg", number(x),
          number(y), escaped(text));
    else
      put(R"(<text x="{}" y="{}"{}>{}</text>)", number(x), number(y),
          kAttributes[static_cast<std::size_t>(lettering)], escaped(text));
  }

  void tick(double x, double y, bool is_left) override {
    put(R"(<path class="frame" d="M{} {}{}"/>)", number(x), number(y), is_left ? "h-4" : "v4");
  }

  void swatch(CellState state, double x, double y) override {
    put(R"(<rect class="cell-{} swatch" x="{}" y="{}" width="{}" height="{}"/>)", letter_of(state), number(x),
        number(y), kSwatch, kSwatch);
    if (!is_hatched_ || (state != CellState::partial && !is_marked(state))) return;
    put(R"svg(<path transform="translate({} {}) scale(1.2)" class="{}"/>)svg", number(x), number(y),
        state == CellState::partial ? R"(hatch" d="M0 5L5 0M0 10L10 0M5 10L10 5)"
                                    : fmt::format(R"(mark" d="{})", path_of_mark(state)));
  }

  // Partial cells of the last row and column are drawn in full and clipped.
  void plot(const CellGrid& grid, const Box& box, double width, double height) override {
    const Paths paths = paths_of(grid);
    is_hatched_ = std::min(width, height) >= kHatchedCell;
    const std::string place = fmt::format(R"(x="{}" y="{}" width="{}" height="{}")", number(box.x),
                                          number(box.y), number(box.width), number(box.height));
    put(R"(<clipPath id="plot{}"><rect {}/></clipPath>)", style_.id, place);
    put(R"(<rect class="cell-E" {}/>)", place);
    const auto has_pattern = [&](CellState state) {
      return is_hatched_ && (state == CellState::partial || is_marked(state)) &&
             !paths.data[static_cast<std::size_t>(state)].empty();
    };
    for (const CellState state : states_of(picture_))
      if (has_pattern(state)) pattern(state, width, height);
    put(R"svg(<g clip-path="url(#plot{})"><g transform="translate({} {}) scale({:.6g} {:.6g})" )svg"
        R"(shape-rendering="crispEdges">)",
        style_.id, number(box.x), number(box.y), width, height);
    for (const CellState state : states_of(picture_)) {
      const std::string& data = paths.data[static_cast<std::size_t>(state)];
      if (data.empty()) continue;
      put(R"(<path class="cell-{}" d="{}"{}><title>{}</title></path>)", letter_of(state), data,
          has_pattern(state) ? fmt::format(R"svg( style="fill:url(#{}{})")svg", letter_of(state), style_.id)
                             : "",
          escaped(state_name(picture_, state), kLongestName));
    }
    if (std::min(width, height) > kLinedCell) {
      std::string lines;
      for (std::int64_t r = 1; r < grid.rows; ++r) lines += fmt::format("M0 {}h{}", r, grid.columns);
      for (std::int64_t c = 1; c < grid.columns; ++c) lines += fmt::format("M{} 0v{}", c, grid.rows);
      put(R"(<path class="line" d="{}"/>)", lines);
    }
    put(R"(</g></g><rect class="frame" {}/>)", place);
  }

  void bars(double x, double y, bool by_rows, double side, double all,
            const std::vector<double>& lengths) override {
    std::string data = "M0 0";
    for (std::size_t i = 0; i < lengths.size(); ++i)
      fmt::format_to(std::back_inserter(data), "{}{}{}{}", by_rows ? "H" : "V", number(lengths[i]),
                     by_rows ? "V" : "H", number(std::min(all, static_cast<double>(i + 1) * side)));
    put(R"svg(<g transform="translate({} {})"><path class="profile" d="{}{}0z"/></g>)svg", number(x),
        number(y), data, by_rows ? "H" : "V");
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

  static std::string path_of_mark(CellState state) {
    std::string path;
    for (const Stroke& s : mark_of(state)) path += fmt::format("M{} {}L{} {}", s.x, s.y, s.to_x, s.to_y);
    return path;
  }

  // Hatches of equal width whatever the cells; a mark for each cell.
  void pattern(CellState state, double width, double height) {
    const bool is_hatch = state == CellState::partial;
    put(R"(<pattern id="{0}{1}" patternUnits="userSpaceOnUse" width="{2}" height="{2}" )"
        R"svg(patternTransform="{3}"><rect class="cell-{0}" width="{2}" height="{2}"/>)svg"
        R"(<path class="{4}" d="{5}"/></pattern>)",
        letter_of(state), style_.id, is_hatch ? 6 : 10,
        is_hatch ? fmt::format("scale({:.6g} {:.6g}) rotate(45)", 1 / width, 1 / height) : "scale(.1)",
        is_hatch ? "hatch" : "mark", is_hatch ? "M0 0v6" : path_of_mark(state));
  }

  const BlockPicture& picture_;
  const SvgStyle& style_;
  bool is_hatched_ = false;
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

std::string cell_rules(const Colors& colors, std::string_view root) {
  std::string rules;
  for (std::size_t state = 0; state < colors.size(); ++state)
    rules += fmt::format("{}.cell-{}{{fill:#{:06x}}}", root, letter_of(static_cast<CellState>(state)),
                         colors[state]);
  return rules;
}

std::string draw_svg(const BlockPicture& picture, const BlockCounts& counts, const SvgStyle& style) {
  SvgSurface surface(picture, style);
  draw(picture, counts, style, surface);
  return surface.take();
}

}  // namespace report

std::string to_svg(const BlockPicture& picture, const std::string& command_line) {
  report::SvgStyle style;
  style.style = ".paper{fill:#fff}" + report::cell_rules(report::kColors) +
                ".blocks text{fill:#222}.blocks .title{font-weight:bold}"
                ".frame,.swatch{stroke:#222;stroke-width:1}.frame{fill:none}.swatch{stroke-width:.5}"
                ".line{stroke:#fff;vector-effect:non-scaling-stroke}.mark{stroke:#fff;stroke-width:1.4}"
                ".hatch{stroke:#222;stroke-opacity:.45;stroke-width:1.5}.profile{fill:#222;fill-opacity:.55}";
  style.description = command_line;
  return report::draw_svg(picture, report::counts_of(picture), style);
}

}  // namespace ejk
