// A report for people: labels and values in two columns, tables, sections under titles, pictures of blocks.
//
// Fields that follow each other are aligned with each other; a section's content is indented by two.
//
// tests: tests/report/test_text.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.hpp"
#include "ejk/report.hpp"
#include "report/picture.hpp"
#include "report/units.hpp"

namespace ejk {

namespace {

using report::CellGrid;
using report::CellState;

constexpr std::int64_t kPictureRows = 32;
constexpr double kBarWidth = 24;
constexpr std::size_t kNarrowest = 8;  // columns that a column of text keeps

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

// Columns that a text takes: one a character (no wide characters are written here).
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string left(std::string text, std::size_t width) {
  const std::size_t used = width_of(text);
  return used < width ? text.append(width - used, ' ') : text;
}

std::string right(const std::string& text, std::size_t width) {
  const std::size_t used = width_of(text);
  return used < width ? std::string(width - used, ' ') + text : text;
}

// The first `width` columns, the last of them three dots when something is cut.
std::string cut(const std::string& text, std::size_t width) {
  if (width_of(text) <= width || width < 4) return text;
  std::string out;
  for (std::size_t i = 0, columns = 0; i < text.size(); ++i) {
    if ((text[i] & 0xC0) != 0x80 && columns++ == width - 3) break;
    out += text[i];
  }
  return out + "...";
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// The words in lines of at most `width` columns.
std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  for (const std::string& word : words_of(text)) {
    if (lines.empty() || width_of(lines.back()) + 1 + width_of(word) > width)
      lines.push_back(word);
    else
      lines.back() += " " + word;
  }
  return lines;
}

class TextWriter {
 public:
  explicit TextWriter(const TextStyle& style) : style_(style) {}

  void write(const Report& report, std::size_t indent) {
    for (std::size_t i = 0; i < report.items.size();) {
      if (std::holds_alternative<Field>(report.items[i])) {
        std::size_t end = i;
        while (end < report.items.size() && std::holds_alternative<Field>(report.items[end])) ++end;
        fields(report, i, end, indent);
        i = end;
      } else {
        std::visit([&](const auto& item) { write_item(item, indent); }, report.items[i++]);
      }
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void line(std::size_t indent, std::string_view text) {
    while (text.ends_with(' ')) text.remove_suffix(1);
    if (!text.empty()) out_.append(indent, ' ').append(text);
    out_ += '\n';
  }

  // An empty line between parts, but none at the top or under a title.
  void gap() {
    if (!out_.empty() && !fresh_) out_ += '\n';
    fresh_ = false;
  }

  void title(std::size_t indent, std::string_view text) {
    if (text.empty()) return;
    line(indent,
         style_.color ? fmt::format("{}{}{}", kBold, core::printable(text), kPlain) : core::printable(text));
  }

  std::size_t space(std::size_t indent) const {
    const auto width = static_cast<std::size_t>(std::max(style_.width, 40));
    return width > indent + 20 ? width - indent : 20;
  }

  void fields(const Report& report, std::size_t begin, std::size_t end, std::size_t indent) {
    gap();
    std::size_t label_width = 0;
    for (std::size_t i = begin; i < end; ++i)
      label_width = std::max(label_width, width_of(std::get<Field>(report.items[i]).label));
    for (std::size_t i = begin; i < end; ++i) {
      const Field& field = std::get<Field>(report.items[i]);
      const std::string label = left(field.label, label_width);
      line(indent, fmt::format("{}{}{}  {}", style_.color ? kDim : "", label, style_.color ? kPlain : "",
                               report::with_unit(field.value, field.unit)));
    }
  }

  void write_item(const Field&, std::size_t) {}  // fields come in runs, see above

  void write_item(const Section& section, std::size_t indent) {
    if (!section.content || section.content->items.empty()) return;
    gap();
    title(indent, section.title);
    fresh_ = !section.title.empty();
    write(*section.content, indent + 2);
    fresh_ = false;
  }

  void write_item(const Remark& remark, std::size_t indent) {
    gap();
    for (const std::string& row : wrapped(core::printable(remark.text, remark.text.size()), space(indent)))
      line(indent, row);
  }

  // In eighths of a character; anything above 0 shows.
  std::string bar(const ReportValue& value, double largest) const {
    const double* number = std::get_if<double>(&value);
    if (number == nullptr || !(*number > 0) || !(largest > 0)) return "";
    static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const auto eighths =
        std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(8 * kBarWidth * *number / largest)));
    std::string out;
    for (std::size_t i = 0; i < eighths / 8; ++i) out += style_.unicode ? "█" : "#";
    if (style_.unicode) out += kEighths[eighths % 8];
    return out.empty() ? "." : out;
  }

  void write_item(const Table& table, std::size_t indent) {
    gap();
    title(indent, table.title);
    if (!table.title.empty()) indent += 2;
    std::vector<std::size_t> shown_columns;
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      if (!table.columns[c].json_only) shown_columns.push_back(c);
    const std::size_t columns = shown_columns.size();
    const auto column = [&](std::size_t c) -> const TableColumn& { return table.columns[shown_columns[c]]; };
    const std::size_t shown =
        std::min(table.rows.size(), static_cast<std::size_t>(std::max<std::int64_t>(table.text_rows, 0)));

    // A bar is as long as its number, the column's largest being kBarWidth.
    std::vector<double> largest(columns);
    for (std::size_t c = 0; c < columns; ++c)
      if (column(c).unit == Unit::bar)
        for (const auto& cells_of_row : table.rows)
          if (const double* value = std::get_if<double>(&cells_of_row.at(shown_columns[c])))
            largest[c] = std::max(largest[c], *value);

    std::vector<std::vector<std::string>> cells(shown, std::vector<std::string>(columns));
    std::vector<std::size_t> widths(columns);
    std::vector<bool> is_text(columns, false);
    for (std::size_t c = 0; c < columns; ++c) {
      widths[c] = width_of(column(c).label);
      for (std::size_t r = 0; r < shown; ++r) {
        const ReportValue& value = table.rows[r].at(shown_columns[c]);
        const bool is_bar = column(c).unit == Unit::bar;
        cells[r][c] = is_bar ? bar(value, largest[c]) : report::cell(value, column(c).unit);
        widths[c] = std::max(widths[c], width_of(cells[r][c]));
        if (std::holds_alternative<std::string>(value) ||
            std::holds_alternative<std::vector<std::int64_t>>(value) || is_bar)
          is_text[c] = true;
      }
    }
    // Too wide: labels are broken at spaces, then the widest column of text gives way.
    const auto total = [&] {
      return std::accumulate(widths.begin(), widths.end(), columns == 0 ? 0 : 2 * (columns - 1));
    };
    std::vector<std::vector<std::string>> labels(columns);
    const bool wide = total() > space(indent);
    for (std::size_t c = 0; c < columns; ++c) {
      if (wide) {
        widths[c] = 0;
        for (const std::string& word : words_of(column(c).label))
          widths[c] = std::max(widths[c], width_of(word));
        for (std::size_t r = 0; r < shown; ++r) widths[c] = std::max(widths[c], width_of(cells[r][c]));
      }
      labels[c] = wrapped(column(c).label, widths[c]);
    }
    if (total() > space(indent)) {
      std::size_t widest = columns;
      for (std::size_t c = 0; c < columns; ++c)
        if (is_text[c] && (widest == columns || widths[c] > widths[widest])) widest = c;
      if (widest != columns)
        widths[widest] = std::max<std::size_t>(
            widths[widest] - std::min(total() - space(indent), widths[widest]), kNarrowest);
    }

    const auto row = [&](const auto& text_of) {
      std::string out;
      for (std::size_t c = 0; c < columns; ++c) {
        const std::string text = cut(text_of(c), widths[c]);
        out += (c > 0 ? "  " : "") + (is_text[c] ? left(text, widths[c]) : right(text, widths[c]));
      }
      while (out.ends_with(' ')) out.pop_back();
      return out;
    };
    std::size_t height = 0;
    for (const auto& label : labels) height = std::max(height, label.size());
    for (std::size_t h = 0; h < height; ++h) {  // labels stand on the first row of numbers
      const std::string header = row([&](std::size_t c) {
        const std::size_t above = height - labels[c].size();
        return h < above ? std::string() : labels[c][h - above];
      });
      line(indent, style_.color ? fmt::format("{}{}{}", kDim, header, kPlain) : header);
    }
    for (std::size_t r = 0; r < shown; ++r) line(indent, row([&](std::size_t c) { return cells[r][c]; }));
    if (table.rows.size() > shown)
      line(indent, fmt::format("... and {} more",
                               core::format_count(static_cast<std::int64_t>(table.rows.size() - shown))));
  }

  struct Glyph {
    const char* unicode;
    const char* ascii;
    const char* color;
    const char* name;
  };
  static const Glyph& glyph(CellState state) {
    static constexpr Glyph glyphs[] = {{"·", ".", "\x1b[2m", "empty"},
                                       {"▒", "p", "\x1b[33m", "partial"},
                                       {"█", "F", "\x1b[32m", "full"},
                                       {"░", "m", "\x1b[36m", "mixed"}};
    return glyphs[static_cast<std::size_t>(state)];
  }
  const char* character(CellState state) const {
    return style_.unicode ? glyph(state).unicode : glyph(state).ascii;
  }

  void write_item(const BlockPicture& picture, std::size_t indent) {
    gap();
    title(indent, picture.title);
    if (!picture.title.empty()) indent += 2;
    const auto columns = static_cast<std::int64_t>(space(indent));
    const CellGrid grid = report::shrink(picture, kPictureRows, columns);
    if (grid.cells.empty()) return line(indent, "(no blocks)");

    // A character is about twice as high as wide: cells are two wide where there is room.
    const int repeat = 2 * grid.columns <= columns ? 2 : 1;
    bool seen[4] = {};
    for (std::int64_t r = 0; r < grid.rows; ++r) {
      std::string row;
      const char* color = "";
      for (std::int64_t c = 0; c < grid.columns; ++c) {
        const CellState state = grid.at(r, c);
        seen[static_cast<std::size_t>(state)] = true;
        if (style_.color && color != glyph(state).color) {
          row += fmt::format("{}{}", kPlain, glyph(state).color);
          color = glyph(state).color;
        }
        for (int k = 0; k < repeat; ++k) row += character(state);
      }
      if (style_.color) row += kPlain;
      line(indent, row);
    }

    std::string legend;
    for (const CellState s : {CellState::empty, CellState::partial, CellState::full, CellState::mixed}) {
      if (!seen[static_cast<std::size_t>(s)]) continue;
      legend += legend.empty() ? "" : "  ";
      legend += style_.color ? fmt::format("{}{}{}", glyph(s).color, character(s), kPlain) : character(s);
      legend += fmt::format(" {}", glyph(s).name);
    }
    line(indent, fmt::format("{}; 1 cell = {} x {} block{}", legend, core::format_count(grid.rows_per_cell),
                             core::format_count(grid.columns_per_cell),
                             grid.rows_per_cell * grid.columns_per_cell == 1 ? "" : "s"));
  }

  const TextStyle& style_;
  std::string out_;
  bool fresh_ = false;
};

}  // namespace

std::string to_text(const Report& report, const TextStyle& style) {
  TextWriter writer(style);
  writer.write(report, 0);
  return writer.take();
}

}  // namespace ejk
